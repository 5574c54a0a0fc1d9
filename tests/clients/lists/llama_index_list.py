"""The list of features that are tested with LlamaIndex."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from typing import Any

from listing import TEXT, case, expect, main
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool

URL, SIDE, MODEL = sys.argv[1:4]


def llm() -> Any:
    if SIDE == "ollama":
        from llama_index.llms.ollama import Ollama

        return Ollama(model=MODEL, base_url=URL)
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(
        model=MODEL, api_base=f"{URL}/v1", api_key="x", is_chat_model=True,
        is_function_calling_model=True, max_tokens=99,
    )  # fmt: skip


def ask(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=text)]


@case
def completes() -> None:
    expect(llm().chat(ask("Hi")).message.content, TEXT)


@case
def streams() -> None:
    expect("".join([piece.delta or "" for piece in llm().stream_chat(ask("Hi"))]), TEXT)


@case
def tools() -> None:
    def weather(city: str) -> str:
        """Return the weather in a city."""
        return "rain"

    made = llm()
    offered = [FunctionTool.from_defaults(weather)]
    reply = made.chat_with_tools(offered, "BOTH", allow_parallel_tool_calls=True)
    calls = made.get_tool_calls_from_response(reply)
    found = sorted([call.tool_kwargs["city"] for call in calls])
    expect(found, ["Paris", "Rome"])


main()
