"""The list of features that are tested with AutoGen."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import base64
import io
import json
import sys
from typing import Any

import PIL.Image
from autogen_agentchat.agents import AssistantAgent
from autogen_core import Image
from autogen_core.models import UserMessage
from autogen_ext.models.anthropic import AnthropicChatCompletionClient
from autogen_ext.models.ollama import OllamaChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient
from listing import NotOffered, add_cases, main
from pydantic import BaseModel

URL, SIDE, MODEL = sys.argv[1:4]
INFO = dict.fromkeys(["vision", "function_calling", "json_output", "structured_output"], True)
COMMON = {"model": MODEL, "model_info": {**INFO, "family": "unknown"}}


class River(BaseModel):
    name: str
    km: int


def client() -> Any:
    if SIDE == "ollama":
        return OllamaChatCompletionClient(host=URL, **COMMON)
    key = {"api_key": "x", "max_retries": 0, **COMMON}
    if SIDE == "anthropic":
        return AnthropicChatCompletionClient(base_url=URL, **key)
    return OpenAIChatCompletionClient(base_url=f"{URL}/v1", **key)


def question(content: Any) -> list[Any]:
    return [UserMessage(content=content, source="user")]


async def ask(text: str, image: str = "") -> str:
    if not image:
        return (await client().create(question(text))).content
    made = io.BytesIO()
    PIL.Image.new("RGB", (2, 2)).save(made, "png")  # the client opens each image
    picture = Image.from_base64(base64.b64encode(made.getvalue()).decode())
    return (await client().create(question([text, picture]))).content


async def stream(text: str) -> Any:
    async for piece in client().create_stream(question(text)):
        if isinstance(piece, str):
            yield piece


async def use_tool(text: str, places: list[str]) -> str:
    async def weather(city: str) -> str:
        """Return the weather in a city."""
        places.append(city)
        return "rain"

    agent = AssistantAgent("ann", client(), tools=[weather], reflect_on_tool_use=True)
    return (await agent.run(task=text)).messages[-1].content


async def structure(text: str) -> Any:
    if SIDE == "anthropic":  # the client refuses a schema
        raise NotOffered
    return json.loads((await client().create(question(text), json_output=River)).content)


add_cases(ask, stream, use_tool, structure)
main()
