"""The list of features that are tested with Agno."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from typing import Any

from agno.agent import Agent
from listing import RIVER, TEXT, case, expect, main
from pydantic import BaseModel

URL, SIDE, MODEL = sys.argv[1:4]


class River(BaseModel):
    name: str
    km: int


def model() -> Any:
    if SIDE == "ollama":
        from agno.models.ollama import Ollama

        return Ollama(id=MODEL, host=URL)
    if SIDE == "anthropic":
        from agno.models.anthropic import Claude

        return Claude(id=MODEL, api_key="x", client_params={"base_url": URL})
    from agno.models.openai import OpenAIChat

    return OpenAIChat(id=MODEL, base_url=f"{URL}/v1", api_key="x")


def agent(**more: Any) -> Any:
    return Agent(model=model(), telemetry=False, **more)


@case
def completes() -> None:
    expect(agent().run("Hi").content, TEXT)


@case
def streams() -> None:
    pieces = [each.content for each in agent().run("Hi", stream=True)]
    expect("".join([piece for piece in pieces if piece]), TEXT)


@case
def tools() -> None:
    places: list[str] = []

    def weather(city: str) -> str:
        """Return the weather in a city."""
        places.append(city)
        return "rain"

    made = agent(tools=[weather]).run("BOTH")
    expect([made.content, sorted(places)], ["It rains.", ["Paris", "Rome"]])


@case
def structured() -> None:
    expect(agent(output_schema=River).run("RIVER").content.model_dump(), RIVER)


main()
