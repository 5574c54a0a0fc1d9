"""The list of features that are tested with the instructor library."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from typing import Any

import instructor
from anthropic import Anthropic
from google import genai
from listing import RIVER, NotOffered, case, expect, main
from openai import OpenAI
from pydantic import BaseModel

URL, SIDE, MODEL = sys.argv[1:4]


class River(BaseModel):
    name: str
    km: int


def ask(mode: str, **more: Any) -> Any:
    client: Any
    if SIDE == "openai":
        client = instructor.from_openai(
            OpenAI(base_url=f"{URL}/v1", api_key="x"), mode=instructor.Mode[mode]
        )
    elif SIDE == "anthropic":
        client = instructor.from_anthropic(
            Anthropic(base_url=URL, api_key="x"), mode=instructor.Mode[mode]
        )
        more["max_tokens"] = 200
    else:
        google = genai.Client(api_key="x", http_options={"base_url": URL})
        client = instructor.from_genai(google, mode=instructor.Mode[mode])
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": more.pop("text")}],
        response_model=River,
        max_retries=1,
        **more,
    )


MODES = {
    "openai": {"tools": "TOOLS", "json": "JSON", "schema": "JSON_SCHEMA", "markdown": "MD_JSON"},
    "anthropic": {"tools": "ANTHROPIC_TOOLS", "json": "ANTHROPIC_JSON"},
    "gemini": {"tools": "GENAI_TOOLS", "schema": "GENAI_STRUCTURED_OUTPUTS"},
}


def check(kind: str, text: str) -> None:
    mode = MODES[SIDE].get(kind)
    if mode is None:
        raise NotOffered
    expect(ask(mode, text=text).model_dump(), RIVER)


@case
def tools() -> None:
    check("tools", "FINAL")


@case
def json_mode() -> None:
    check("json", "RIVER as JSON")


@case
def structured() -> None:
    check("schema", "RIVER")


@case
def markdown() -> None:
    check("markdown", "RIVER")


main()
