"""Any server response, on any wire and with any status, gives a reply or a provider error."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

import dragoman
from dragoman import Provider, ProviderError, Response, check_events
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS

from .listed import collect

HTML = b"<!doctype html><html><body><h1>502 Bad Gateway</h1></body></html>"
KEYS = [
    "error", "choices", "content", "candidates", "output", "message", "type", "usage", "id",
    "model", "done",
]  # fmt: skip
WRONG: list[Any] = [None, True, -1, 1e308, "", "x", [], [None], [[]], {}, {"x": None}]

BODIES: dict[str, Callable[[int], bytes]] = {
    "empty": lambda _: b"",
    "html": lambda _: HTML,
    "array": lambda _: b"[]",
    "array of objects": lambda _: b'[{"error": {"code": 429, "message": "slow down"}}]',
    "truncated": lambda _: b'{"choices": [{"message": {"role": "assistant", "conte',
    "wrong types": lambda turn: json.dumps(
        {key: WRONG[(turn + at) % 11] for at, key in enumerate(KEYS)}
    ).encode(),
    "wrong types in a stream": lambda turn: (
        b"data: " + json.dumps({KEYS[turn % 11]: WRONG[turn % 7]}).encode() + b"\n\n"
    ),
    "not utf-8": lambda _: b'{"error": {"message": "\xff\xfe\xfa"}}',
    "nan": lambda _: (
        b'{"usage": {"input_tokens": NaN, "prompt_tokens": Infinity}, "content": NaN}'
    ),
    "deep": lambda _: b'{"error": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "half a surrogate": lambda _: (
        b'{"error": {"message": "\\ud800"}, "message": {"content": "\\udfff"}}'
    ),
    "an end and no more": lambda _: b"data: [DONE]\n\n",
    "comments": lambda _: b": keep-alive\n\n: keep-alive\n\n",
    "an error event": lambda _: (
        b'event: error\ndata: {"type": "error", "error": {"message": "overloaded"}}\n\n'
    ),
}
KINDS = list(BODIES.values())
# How far apart the tested status codes are.
STEP = 7 if "DRAGOMAN_EXHAUSTIVE" in os.environ else 59
LABELS = ["application/json", "text/event-stream", "text/html", "application/x-ndjson", ""]


def model(wire: str, status: int, turn: int) -> Provider:
    body = KINDS[turn % len(KINDS)](turn)
    headers = {"content-type": LABELS[turn % len(LABELS)], "retry-after": "soon"}
    transport = FixtureTransport(
        (status, headers, [body[:7], body[7:]]), (status, headers, [body])
    )
    return dragoman.connect(
        "m1", wire=wire, base_url="http://127.0.0.1:9", api_key="k", transport=transport
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(len(KINDS)), ids=list(BODIES))
@pytest.mark.parametrize("wire", sorted(CODECS))
async def test_any_body_with_any_status_gives_a_reply_or_one_error(wire: str, first: int) -> None:
    for turn, status in enumerate(range(200 + first % 7, 600, STEP)):
        provider = model(wire, status, first + turn * len(KINDS))
        end: Response | ProviderError
        try:
            end = await provider.complete("Hi")
        except ProviderError as error:
            end = error
        assert str(end)
        assert status < 300 or not isinstance(end, Response), "only a success can be an answer"


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(len(KINDS)), ids=list(BODIES))
@pytest.mark.parametrize("wire", sorted(CODECS))
async def test_any_stream_gives_valid_events_or_one_error(wire: str, first: int) -> None:
    for turn, status in enumerate(range(200 + first % 7, 600, STEP)):
        provider = model(wire, status, first + turn * len(KINDS))
        heard, error = await collect(provider.stream("Hi"))
        assert error is None or isinstance(error, ProviderError)
        assert heard or error
        if heard:
            check_events(heard)
