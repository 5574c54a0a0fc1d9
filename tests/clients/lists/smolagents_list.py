"""The list of features that are tested with smolagents."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import sys

from listing import TEXT, case, expect, main
from smolagents import ChatMessage, OpenAIServerModel, tool

URL, SIDE, MODEL = sys.argv[1:4]
MODEL_CLIENT = OpenAIServerModel(MODEL, api_base=f"{URL}/v1", api_key="x")


def ask(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=[{"type": "text", "text": text}])]


@tool
def weather(city: str) -> str:
    """Return the weather in a city.

    Args:
        city: The city.
    """
    return "rain"


@case
def completes() -> None:
    made = MODEL_CLIENT.generate(ask("Hi"))
    expect([made.content, made.token_usage.input_tokens > 0], [TEXT, True])


@case
def streams() -> None:
    pieces = [piece.content or "" for piece in MODEL_CLIENT.generate_stream(ask("Hi"))]
    expect("".join(pieces), TEXT)


@case
def tools() -> None:
    made = MODEL_CLIENT.generate(ask("CALL"), tools_to_call_from=[weather])
    call = made.tool_calls[0].function
    expect([call.name, "Paris" in str(call.arguments)], ["weather", True])


main()
