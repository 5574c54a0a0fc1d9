"""The list of features that are tested with Haystack."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import sys
from typing import Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage, ImageContent
from haystack.tools import tool
from haystack.utils import Secret
from haystack_integrations.components.generators.anthropic import AnthropicChatGenerator
from haystack_integrations.components.generators.google_genai import GoogleGenAIChatGenerator
from haystack_integrations.components.generators.ollama import OllamaChatGenerator
from listing import NotOffered, add_cases, listen, main
from pydantic import BaseModel

URL, SIDE, MODEL = sys.argv[1:4]
os.environ |= {"ANTHROPIC_BASE_URL": URL, "GOOGLE_GEMINI_BASE_URL": URL}
KEY = {"api_key": Secret.from_token("x"), "max_retries": 0}
OPENAI = {**KEY, "api_base_url": f"{URL}/v1"}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "openai": (OpenAIChatGenerator, OPENAI),
    "responses": (OpenAIResponsesChatGenerator, OPENAI),
    "anthropic": (AnthropicChatGenerator, KEY),
    "google": (GoogleGenAIChatGenerator, KEY),
    "ollama": (OllamaChatGenerator, {"url": URL}),
}


class River(BaseModel):
    name: str
    km: int


def generator(**more: Any) -> Any:
    kind, settings = KINDS[SIDE]
    return kind(model=MODEL, **settings, **more)


async def run(content: Any, **more: Any) -> str:
    messages = [ChatMessage.from_user(content_parts=content)]
    return (await generator(**more).run_async(messages))["replies"][0].text


async def ask(text: str, image: str = "") -> str:
    return await run([text, ImageContent(image, "image/png")] if image else [text])


def stream(text: str) -> Any:
    async def follow(send: Any) -> None:
        async def receive(chunk: Any) -> None:
            if chunk.content:
                send(chunk.content)

        await run([text], streaming_callback=receive)

    return listen(follow)


async def use_tool(text: str, places: list[str]) -> str:
    @tool
    def weather(city: str) -> str:
        """Return the weather in a city."""
        places.append(city)
        return "rain"

    agent = Agent(chat_generator=generator(), tools=[weather])
    made = await agent.run_async(messages=[ChatMessage.from_user(text)])
    return made["messages"][-1].text


async def structure(text: str) -> Any:
    if SIDE == "anthropic":  # the component has no parameter for a schema
        raise NotOffered
    if SIDE == "ollama":
        return json.loads(await run([text], response_format=River.model_json_schema()))
    name = "text_format" if SIDE == "responses" else "response_format"
    return json.loads(await run([text], generation_kwargs={name: River}))


add_cases(ask, stream, use_tool, structure)
main()
