"""The list of features that are tested with Semantic Kernel."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from typing import Any

from listing import TEXT, case, expect, main
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function

URL, SIDE, MODEL = sys.argv[1:4]


def service() -> tuple[Any, Any]:
    """Return a chat service and its settings."""
    if SIDE == "google":
        from google.genai import Client
        from google.genai.types import HttpOptions
        from semantic_kernel.connectors.ai.google.google_ai import (
            GoogleAIChatCompletion,
            GoogleAIChatPromptExecutionSettings,
        )

        client = Client(api_key="x", http_options=HttpOptions(base_url=URL))
        made = GoogleAIChatCompletion(gemini_model_id=MODEL, api_key="x", client=client)
        return made, GoogleAIChatPromptExecutionSettings()
    from openai import AsyncOpenAI
    from semantic_kernel.connectors.ai.open_ai import (
        OpenAIChatCompletion,
        OpenAIChatPromptExecutionSettings,
    )

    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="x")
    made = OpenAIChatCompletion(ai_model_id=MODEL, async_client=client)
    return made, OpenAIChatPromptExecutionSettings()


def ask(text: str) -> ChatHistory:
    history = ChatHistory()
    history.add_user_message(text)
    return history


@case
async def completes() -> None:
    chat, settings = service()
    expect(str(await chat.get_chat_message_content(ask("Hi"), settings)), TEXT)


@case
async def streams() -> None:
    chat, settings = service()
    pieces = [
        str(piece)
        async for piece in chat.get_streaming_chat_message_content(ask("Hi"), settings)
        if piece is not None
    ]
    expect("".join(pieces), TEXT)


@case
async def tools() -> None:
    """The names of functions in calls and in results differ on the google side."""
    places: list[str] = []

    class Plugin:
        @kernel_function(name="weather")
        def weather(self, city: str) -> str:
            """Return the weather in a city."""
            places.append(city)
            return "rain"

    kernel = Kernel()
    kernel.add_plugin(Plugin(), "w")
    chat, settings = service()
    settings.function_choice_behavior = FunctionChoiceBehavior.Auto()
    made = await chat.get_chat_message_content(ask("PLUGIN"), settings, kernel=kernel)
    expect([str(made), sorted(places)], ["It rains.", ["Paris"]])


main()
