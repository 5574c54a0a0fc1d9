"""Text from clients and servers is truncated before it is scanned or quoted in errors."""

import asyncio
import json
from typing import Any

import pytest

import dragoman
from dragoman import ProviderError, Tool
from dragoman.errors import MAX_CODE, MAX_MESSAGE, MAX_PROVIDER_MESSAGE, scrub
from dragoman.transport import FixtureTransport
from dragoman.wire.server_errors import message_of

from .. import cpu
from ..patterns import grows
from .fuzzers import APP
from .gateway_app import post

# A text that resembles keys; a badly written pattern for keys takes quadratic time on it.
LONG = "-eyJaaaaaaaaaa" * 20_000
PLAIN = "nothing secret. " * 20_000  # a text without secrets, which scrubbing does not shorten


@pytest.mark.parametrize(
    "unit", ["-eyJaaaaaaaaaa", "a-a-", "bearer ", "sk-", "AIza", "a.", "key_a-", "eyJaaaaaaaaaa."]
)
def test_scrubbing_secrets_takes_linear_time(unit: str) -> None:
    assert (
        grows(lambda text: scrub(text, limit=None), lambda size: unit * (size // len(unit)))
        is None
    )


@pytest.mark.parametrize("is_hidden", [False, True])
@pytest.mark.parametrize("text", [LONG, PLAIN], ids=["like a key", "plain"])
def test_error_keeps_only_a_limited_part_of_every_text(text: str, is_hidden: bool) -> None:
    headers = {"x-ratelimit-a": text, "x-ratelimit-" + text: "1", "retry-after": "1"}
    error = ProviderError(text, provider_code=text, provider_message=text, headers=headers)
    if is_hidden:
        error.hide(["k"], [text])
    assert len(error.message) <= MAX_MESSAGE
    assert len(error.provider_code or "") <= MAX_CODE
    assert len(error.provider_message or "") <= MAX_PROVIDER_MESSAGE
    assert all(len(name) + len(value) <= 1200 for name, value in error.headers.items())
    assert len(str(error)) < 3000
    assert len(message_of(error)) <= MAX_MESSAGE


HI = {"role": "user", "content": "x"}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "role": ("openai", {"messages": [{"role": PLAIN, "content": "x"}]}),
    "tool choice": ("openai", {"messages": [HI], "tool_choice": PLAIN}),
    "content type": ("openai", {"messages": [{"role": "user", "content": [{"type": PLAIN}]}]}),
    "block type": (
        "anthropic",
        {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": PLAIN}]}]},
    ),
    "unknown field": ("gemini", {"contents": [{"parts": [{"text": "x"}]}], PLAIN: 1}),
}


@pytest.mark.parametrize("name", ASKED)
def test_error_response_quotes_only_a_limited_part_of_the_request(name: str) -> None:
    wire, fields = ASKED[name]
    answer = asyncio.run(post(APP, wire, json.dumps({"model": "fast", **fields}).encode()))
    assert answer.status == (200 if name == "unknown field" else 400)
    assert (b"nothing secret" in answer.body) == (name in ("role", "tool choice"))
    assert len(answer.body) + len(str(answer.headers)) < 2000


def body(**error: Any) -> bytes:
    return json.dumps({"error": {"message": "x", **error}}).encode()


def call_tool(name: str) -> bytes:
    call = {"id": "c", "function": {"name": name, "arguments": "{}"}}
    return json.dumps(
        {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    ).encode()


REFUSALS: dict[str, tuple[int, bytes]] = {
    "code": (400, body(code=LONG)),
    "type": (400, body(type=LONG)),
    "message": (400, body(message=LONG)),
    "message that is a list": (400, body(message=[LONG])),
    "code in a stream": (200, b"data: " + body(code=LONG) + b"\n\n"),
    "code of many digits": (400, b'{"error":{"message":"x","code":1' + b"0" * 4000 + b"}}"),
    "nested message": (400, b'{"error":{"message":' + b"[" * 900 + b"]" * 900 + b"}}"),
    "nested body": (400, b"[" * 900 + b"]" * 900),
    "tool name": (200, call_tool(LONG)),
    "plain code": (400, body(code=PLAIN)),
    "plain type": (400, body(type=PLAIN)),
    "plain message": (400, body(message=PLAIN)),
    "plain tool name": (200, call_tool(PLAIN)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_server_cannot_make_an_error_long_or_slow(name: str) -> None:
    status, reply = REFUSALS[name]
    transport = FixtureTransport((status, {}, [reply]), (status, {}, [reply]))
    provider = dragoman.connect(
        "m", base_url="http://127.0.0.1:9", api_key="k" * 30, transport=transport
    )
    tool = Tool("look", "", parameters={"type": "object"})
    with cpu.spending() as spent:
        with pytest.raises(ProviderError) as caught:
            asyncio.run(provider.complete("Hi", [tool]))
        text = str(caught.value)
    # If scrubbing secrets from the error took quadratic time, this would take minutes.
    assert spent.units < 4 * cpu.QUARTER_SECOND
    assert len(text) < 3000
    assert "aaaaaaaaaa" * 30 not in text
    assert len(caught.value.provider_code or "") <= MAX_CODE
    if "tool name" in name:
        assert text.count("nothing secret") < 10


def test_prompt_echoed_by_a_server_is_found_in_linear_time() -> None:
    def run(prompt: str) -> None:
        error = ProviderError("m", provider_message="abcdefghij" * 400)
        error.hide([], [prompt])
        assert error.quotable

    assert grows(run, lambda size: "xbcdefghij" * (size // 10)) is None
    error = ProviderError(
        "m", provider_message="It was refused: once upon a time there was a king."
    )
    error.hide([], ["x" * 995 + "once upon a time there was a king" + "x" * 1000])
    assert not error.quotable
