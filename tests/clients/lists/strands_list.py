"""The list of features that are tested with Strands Agents."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from typing import Any

from listing import RIVER, TEXT, case, expect, main
from pydantic import BaseModel
from strands import Agent, tool

URL, SIDE, MODEL = sys.argv[1:4]


class River(BaseModel):
    name: str
    km: int


def model() -> Any:
    if SIDE == "ollama":
        from strands.models.ollama import OllamaModel

        return OllamaModel(URL, model_id=MODEL)
    if SIDE == "anthropic":
        from strands.models.anthropic import AnthropicModel

        args = {"base_url": URL, "api_key": "x"}
        return AnthropicModel(client_args=args, model_id=MODEL, max_tokens=99)
    from strands.models.openai import OpenAIModel

    args = {"base_url": f"{URL}/v1", "api_key": "x"}
    return OpenAIModel(client_args=args, model_id=MODEL)


def agent(**more: Any) -> Any:
    return Agent(model=model(), callback_handler=None, **more)


@case
def completes() -> None:
    made = agent()("Hi")
    expect([str(made).strip(), made.metrics.accumulated_usage["inputTokens"] > 0], [TEXT, True])


@case
async def streams() -> None:
    texts = [event["data"] async for event in agent().stream_async("Hi") if "data" in event]
    expect("".join(texts), TEXT)


@case
def tools() -> None:
    places: list[str] = []

    @tool
    def weather(city: str) -> str:
        """Return the weather in a city."""
        places.append(city)
        return "rain"

    made = agent(tools=[weather])("BOTH")
    expect([str(made).strip(), sorted(places)], ["It rains.", ["Paris", "Rome"]])


@case
def structured() -> None:
    made = agent().structured_output(River, "FINAL" if SIDE == "anthropic" else "RIVER")
    expect(made.model_dump(), RIVER)


main()
