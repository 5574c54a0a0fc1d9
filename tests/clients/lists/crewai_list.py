"""The list of features that are tested with CrewAI."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from typing import Any

from crewai import LLM
from listing import RIVER, TEXT, case, expect, main
from pydantic import BaseModel

URL, SIDE, MODEL = sys.argv[1:4]


class River(BaseModel):
    name: str
    km: int


def llm(**more: Any) -> Any:
    base_url = URL if SIDE == "anthropic" else f"{URL}/v1"
    return LLM(model=MODEL, provider=SIDE, base_url=base_url, api_key="x", max_tokens=99, **more)


@case
def completes() -> None:
    expect(llm().call("Hi"), TEXT)


@case
def streams() -> None:
    expect(llm(stream=True).call("Hi"), TEXT)


@case
def tools() -> None:
    places: list[str] = []

    def weather(city: str) -> str:
        places.append(city)
        return "rain"

    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "weather", "description": "W", "parameters": parameters}
    llm().call(
        "CALL",
        tools=[{"type": "function", "function": function}],
        available_functions={"weather": weather},
    )
    expect(places, ["Paris"])


@case
def structured() -> None:
    made = llm().call("RIVER", response_model=River)
    found = made.model_dump() if isinstance(made, BaseModel) else River.model_validate_json(made)
    expect(found if isinstance(found, dict) else found.model_dump(), RIVER)


main()
