"""Test that request bodies with random parts replaced by random JSON never cause an internal
error.
"""

from __future__ import annotations

import copy
import random
import time
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import ProviderError
from dragoman.gateway.policy import (
    NAMES,
    Target,
    openai,
    prepare,
    settle_shape,
    translate,
    unwrap_count,
    write_echo,
)
from dragoman.provider import connect
from dragoman.validate import check_request
from dragoman.wire import SERVER_CODECS
from dragoman.wire.ollama.generate import to_chat
from tests.attacks.hold import check_held

from .upstream import EXHAUSTIVE, WIRES

ROUNDS = 20_000 if EXHAUSTIVE else 400
SCHEMA = {
    "type": "OBJECT",
    "properties": {"a": {"type": "STRING", "nullable": True}},
    "required": ["a"],
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}}
FILE = {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}}
FUNCTION = {
    "name": "f",
    "description": "d",
    "parameters": {"type": "object", "properties": {}},
    "strict": True,
}
BODIES: dict[str, dict[str, Any]] = {
    "openai": {
        "model": "m",
        "messages": [
            {
                "role": "system",
                "content": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
            },
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hi"}, IMAGE, FILE],
                "name": "ann",
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"name": "f"}]},
        },
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "object"}},
        },
        "stream": True,
        "stream_options": {"include_usage": True},
        "reasoning": {"effort": "low"},
        "thinking": {"type": "enabled"},
        "chat_template_kwargs": {"enable_thinking": True},
        "stop": ["a"],
    },
    "responses": {
        "model": "m",
        "instructions": "I",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Hi"},
                    {"type": "input_image", "image_url": "x"},
                ],
            },
            {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "y"},
            {
                "type": "function_call",
                "call_id": "d",
                "name": "f",
                "namespace": "n",
                "arguments": "{}",
            },
            {
                "type": "function_call_output",
                "call_id": "d",
                "output": [{"type": "input_text", "text": "z"}],
            },
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
        ],
        "tools": [
            {"type": "function", **FUNCTION},
            {"type": "custom", "name": "p", "format": {"type": "grammar"}},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]},
        ],
        "tool_choice": {"type": "custom", "name": "p"},
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "reasoning": {"effort": "max", "summary": "auto"},
        "metadata": {"a": "b"},
    },
    "anthropic": {
        "model": "m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {
                "role": "user",
                "content": [{"type": "search_result", "title": "t", "content": [{"text": "x"}]}],
            },
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c",
                        "content": [{"type": "text", "text": "r"}],
                    }
                ],
            },
            {"role": "system", "content": "mid"},
            {
                "role": "user",
                "content": [
                    {
                        "type": "document",
                        "source": {"type": "content", "content": "x"},
                        "citations": {},
                    }
                ],
            },
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "max"},
        "metadata": {"user_id": "u"},
    },
    "gemini": {
        "system_instruction": {"parts": [{"text": "S"}]},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "Hi"},
                    {"inline_data": {"mime_type": "image/png", "data": "-_"}},
                ],
            },
            {"role": "model", "parts": [{"function_call": {"name": "f", "args": {}}}]},
            {"role": "user", "parts": [{"function_response": {"name": "f", "response": {}}}]},
        ],
        "tools": [
            {"function_declarations": [{"name": "f", "parameters": SCHEMA}], "google_search": {}}
        ],
        "tool_config": {
            "function_calling_config": {"mode": "VALIDATED", "allowed_function_names": ["f"]}
        },
        "generation_config": {
            "response_mime_type": "application/json",
            "response_schema": SCHEMA,
            "thinking_config": {"thinking_budget": 5},
            "stop_sequences": ["a"],
            "candidate_count": 2,
        },
        "safety_settings": [{}],
    },
    "ollama": {
        "model": "m",
        "messages": [
            {"role": "user", "content": "Hi", "images": ["iVBORw0KGgo="]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
            },
            {"role": "tool", "tool_name": "f", "content": "r"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        ],
        "format": {"type": "object"},
        "options": {"num_predict": -1, "top_k": 4, "num_ctx": 5},
        "think": "high",
        "keep_alive": 5,
    },
}
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        10**30,
        "",
        "x",
        "none",
        "auto",
        [],
        {},
        [[]],
        [{}],
        [None],
        {"type": []},
    ),
    *(
        {"type": {}},
        {"type": "text"},
        {"id": 5},
        {"a": {"b": [1]}},
        [{"type": ["x"]}],
        {"name": {}},
        ["a", 1],
        [["x"]],
    ),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return found + [place for name, item in items for place in places(item, (*path, name))]


def mutate(body: Any, dice: random.Random) -> Any:
    body = copy.deepcopy(body)
    for _ in range(dice.choice((1, 1, 2, 3))):
        *path, last = dice.choice(places(body))
        holder = body
        for name in path:
            holder = holder[name]
        if dice.random() < 0.2 and isinstance(holder, dict):
            holder[dice.choice(("type", "role", "content", "extra", "parts", "id"))] = (
                copy.deepcopy(dice.choice(VALUES))
            )
        else:
            holder[last] = copy.deepcopy(dice.choice(VALUES))
    return body


@pytest.mark.exhaustive
@pytest.mark.parametrize("wire", WIRES)
def test_mutated_request_bodies_are_parsed_or_rejected(wire: str) -> None:
    dice = random.Random(20)
    codecs = {each: connect("m", wire=each, base_url="http://127.0.0.1:9") for each in WIRES}
    read = 0
    for number in range(ROUNDS):
        body = mutate(BODIES[wire], dice) if number else copy.deepcopy(BODIES[wire])
        began = time.thread_time()
        try:
            if wire == "ollama" and dice.random() < 0.3:
                body = to_chat(
                    {**body, "prompt": dice.choice(VALUES), "system": dice.choice(VALUES)}
                )
            if wire == "gemini" and dice.random() < 0.1:
                body = dict(unwrap_count({"generateContentRequest": body}))
            prepared = prepare(wire, body)
            write_echo(wire, prepared.client)
            asked = SERVER_CODECS[wire].decode(prepared.body, "/v1beta/models/m:generateContent")
            messages, prepared = settle_shape(wire, asked.request.messages, prepared)
            request = replace(asked.request, messages=messages)
            check_request(request)
        except ProviderError:
            check_held(time.thread_time() - began, f"{wire}, round {number}")
            continue
        for target in (frozenset({each}) for each in (*WIRES,)):
            try:
                made = translate(request, prepared, wire, Target("m", target), NAMES[wire])
                codecs[next(iter(target))].codec.encode(made.request)  # type: ignore[attr-defined]
                read += 1
            except ProviderError:
                continue
        check_held(time.thread_time() - began, f"{wire}, round {number}")
    assert read > ROUNDS // 20


SETTINGS = {"model": "m", "stream": True, "temperature": 0, "max_tokens": 5, "stop": "x"}
PLAIN = {**SETTINGS, "messages": [{"role": "user", "content": "Hi"}]}


def find_bodies() -> list[Any]:
    """Return plain bodies, bodies with one more field, and random changes of them."""
    others = [None, "", "high", True, 1, [], ["a"], {}, {"type": "json_object"}]
    made: list[Any] = [{**PLAIN, name: value} for name in openai.FIELDS for value in others]
    for name in ("name", "cache_control", "tool_calls", "refusal"):
        made += [
            {**PLAIN, "messages": [{"role": role, "content": "Hi", name: value}]}
            for role in ("user", "assistant", "robot")
            for value in others
        ]
    made += [{**PLAIN, "messages": [{"role": "system", "content": value}]} for value in others]
    dice = random.Random(11)
    return [PLAIN, SETTINGS, *made, *[mutate(PLAIN, dice) for _ in range(500)]]


def test_plain_body_is_prepared_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of texts and simple settings is prepared in fewer steps, with the same result."""
    is_plain, plain = openai._is_plain, 0  # noqa: SLF001 - the result is the same on both ways

    def prepare_or_reject(body: Any) -> Any:
        try:
            return prepare("openai", body)
        except ProviderError as error:
            return str(error)

    for body in find_bodies():
        plain += isinstance(body, dict) and is_plain(body)
        shorter = prepare_or_reject(body)
        with monkeypatch.context() as patch:
            patch.setattr(openai, "_is_plain", lambda body: False)
            assert shorter == prepare_or_reject(body)
    assert plain > 100
