"""The list of features that are tested with the llm library, over the wire that it uses without
plugins.
"""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import sys
from typing import Any

from listing import RIVER, TEXT, case, expect, main

URL, SIDE, MODEL = sys.argv[1:4]
os.environ["LLM_USER_PATH"] = os.environ["HOME"]

from llm import Attachment  # noqa: E402
from llm.default_plugins.openai_models import Chat  # noqa: E402

KEY = "x"


def model() -> Any:
    return Chat(
        f"gateway/{MODEL}",
        model_name=MODEL,
        api_base=f"{URL}/v1",
        key=KEY,
        supports_tools=True,
        supports_schema=True,
        vision=True,
    )


@case
def completes() -> None:
    made = model().prompt("Hi", stream=False, key=KEY)
    expect([made.text(), made.usage().input > 0], [TEXT, True])


@case
def streams() -> None:
    expect("".join(model().prompt("Hi", stream=True, key=KEY)), TEXT)


def run_tools(word: str, wanted: list[str]) -> None:
    places: list[str] = []

    def weather(city: str) -> str:
        places.append(city)
        return "rain"

    made = model().chain(word, tools=[weather], key=KEY)
    expect([made.text().endswith("It rains."), sorted(places)], [True, wanted])


@case
def tools() -> None:
    run_tools("CALL", ["Paris"])


@case
def parallel() -> None:
    run_tools("BOTH", ["Paris", "Rome"])


@case
def structured() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "km": {"type": "integer"}},
    }
    expect(json.loads(model().prompt("RIVER", schema=schema, stream=False, key=KEY).text()), RIVER)


@case
def image() -> None:
    picture = Attachment(type="image/png", content=b"\x89PNG\r\n\x1a\n")
    expect(model().prompt("What?", attachments=[picture], stream=False, key=KEY).text(), TEXT)


main()
