"""The list of features that are tested with the litellm library."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
from typing import Any

import litellm
from listing import CITY, PNG, RIVER, TEXT, NotOffered, case, expect, main

URL, SIDE, MODEL = sys.argv[1:4]
PLACES = {
    "openai": (f"openai/{MODEL}", f"{URL}/v1"),
    "responses": (f"openai/responses/{MODEL}", f"{URL}/v1"),
    "anthropic": (f"anthropic/{MODEL}", URL),
    "gemini": (f"gemini/{MODEL}", f"{URL}/v1beta"),
    "ollama": (f"ollama_chat/{MODEL}", URL),
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "W", "parameters": CITY}}
]


def ask(text: Any, **more: Any) -> Any:
    name, base = PLACES[SIDE]
    messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
    return litellm.completion(
        name, messages, api_base=base, api_key="x", num_retries=0, max_retries=0, **more
    )


@case
def completes() -> None:
    made = ask("Hi")
    expect([made.choices[0].message.content, made.choices[0].finish_reason], [TEXT, "stop"])
    expect(made.usage.prompt_tokens > 0, True)


@case
def streams() -> None:
    chunks = list(ask("Hi", stream=True, stream_options={"include_usage": True}))
    expect(
        "".join([chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]), TEXT
    )


def run_tools(word: str, *, stream: bool = False) -> None:
    made = ask(word, tools=TOOLS, stream=stream)
    if stream:
        made = litellm.stream_chunk_builder(list(made))
    message = made.choices[0].message
    cities = [json.loads(call.function.arguments)["city"] for call in message.tool_calls]
    expect(cities, ["Paris", "Rome"] if word == "BOTH" else ["Paris"])
    # litellm sends its own additional fields back. On the openai wire, the server rejects them, as
    # the vendor's server may do, so leave them out.
    added = {"provider_specific_fields"} if (SIDE, MODEL) == ("openai", "openai") else set()
    turns = [{"role": "user", "content": word}, message.model_dump(exclude=added)]
    turns += [
        {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "rain"}
        for call in message.tool_calls
    ]
    expect(ask(turns, tools=TOOLS).choices[0].message.content, "It rains.")


@case
def tools() -> None:
    run_tools("CALL")


@case
def tools_streamed() -> None:
    # litellm does not stream from models that it does not know, and repeats their tool calls.
    if SIDE == "responses":
        raise NotOffered
    run_tools("CALL", stream=True)


@case
def parallel() -> None:
    run_tools("BOTH")


@case
def tools_after_thinking() -> None:
    run_tools("PONDER")


@case
def structured() -> None:
    schema = {"name": "river", "strict": True, "schema": SCHEMA}
    made = ask("RIVER", response_format={"type": "json_schema", "json_schema": schema})
    expect(json.loads(made.choices[0].message.content), RIVER)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "km": {"type": "integer"}},
    "required": ["name", "km"],
    "additionalProperties": False,
}


@case
def json_mode() -> None:
    made = ask("RIVER as JSON", response_format={"type": "json_object"})
    expect(json.loads(made.choices[0].message.content), RIVER)


@case
def thinking() -> None:
    litellm.drop_params = True
    expect(ask("THINK", reasoning_effort="low").choices[0].message.content, "Yes.")


@case
def image() -> None:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    made = ask([{"role": "user", "content": [{"type": "text", "text": "What?"}, picture]}])
    expect(made.choices[0].message.content, TEXT)


@case
def errors() -> None:
    wanted = {
        "E400": litellm.BadRequestError,
        "E429": litellm.RateLimitError,
        "E500": litellm.InternalServerError,
    }
    for text, kind in wanted.items():
        if SIDE == "ollama":  # on this wire litellm raises one class for all errors
            raise NotOffered
        try:
            ask(text)
        except kind:
            continue
        raise AssertionError(f"no error for {text}")


main()
