"""An error inside a response with status 200 is raised, in every form and on every wire."""

import json
import re
from typing import Any

import pytest

import dragoman as d
from dragoman.conformance.cases import write_frames
from dragoman.wire import CODECS
from dragoman.wire.errors import is_failure

from .cases import DecodedReply, bytewise, decode


def said(*records: dict[str, Any]) -> bytes:
    return b"".join([b"data: " + json.dumps(record).encode() + b"\n\n" for record in records])


# The bytes that each wire sends before the error, and the bytes that would end the stream
# normally.
BEFORE = {
    "openai": said({"choices": [{"index": 0, "delta": {"content": "half"},
                                 "finish_reason": "stop"}]}),
    "gemini": said({"candidates": [{"content": {"parts": [{"text": "half"}]},
                                    "finishReason": "STOP"}]}),
    "anthropic": said(
        {"type": "message_start", "message": {"model": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "half"},
        },
    ),
    "responses": said({"type": "response.created", "response": {"model": "m"}},
                      {"type": "response.output_text.delta", "item_id": "i", "output_index": 0,
                       "content_index": 0, "delta": "half"}),
    "ollama": b'{"model":"m","message":{"role":"assistant","content":"half"},"done":false}\n',
    "bedrock": write_frames(
        b'{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"text":"half"}}}'
    ),
    "cohere": said(
        {"type": "message-start", "delta": {"message": {"role": "assistant"}}},
        {
            "type": "content-start",
            "index": 0,
            "delta": {"message": {"content": {"type": "text", "text": ""}}},
        },
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "half"}}}},
    ),
}  # fmt: skip
AFTER = {
    "openai": b"data: [DONE]\n\n",
    "gemini": said({"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]}),
    "anthropic": said({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                       "usage": {"output_tokens": 1}}, {"type": "message_stop"}),
    "responses": said({"type": "response.completed",
                       "response": {"status": "completed", "output": []}}),
    "ollama": (
        b'{"model":"m","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop"}\n'
    ),
    "cohere": said({"type": "message-end", "delta": {"finish_reason": "COMPLETE"}}),
    "bedrock": write_frames(
        b'{"messageStop":{"stopReason":"end_turn"}}\n{"metadata":{"usage":{"inputTokens":1}}}'
    ),
}  # fmt: skip
EVENTS = {  # errors in a stream of server-sent events, with their class
    "error of a status": (b'data: {"error": {"code": 429, "message": "slow down"}}',
                          d.RateLimitError),
    "error as text": (b'data: {"error": "it broke"}', d.UnavailableError),
    "object is error": (
        (
            b'data: {"object": "error", "message": "maximum context length is 5", "type": '
            b'"BadRequestError", "code": 400}'
        ),
        (d.ContextOverflowError, d.InvalidRequestError),
    ),
    "type is error": (b'data: {"type": "error", "message": "it broke", "code": 500}',
                      d.UnavailableError),
    "detail": (b'data: {"detail": "it broke"}', d.UnavailableError),
    "errors": (b'data: {"errors": [{"message": "it broke", "code": 503}]}', d.UnavailableError),
    "message and code": (b'data: {"message": "no", "code": 401}', d.AuthenticationError),
    "event of text": (b"event: error\ndata: it broke", d.UnavailableError),
    "event of an object": (b'event: error\ndata: {"message": "it broke", "code": 503}',
                           d.UnavailableError),
    "field": (b'error: {"code": 503, "message": "it broke", "type": "server_error"}',
              d.UnavailableError),
    "bare": (b'{"error": {"code": 503, "message": "it broke"}}', d.UnavailableError),
    "bare and tall": (b'{\n  "error": {\n    "code": 503,\n    "message": "it broke"\n  }\n}',
                      d.UnavailableError),
}  # fmt: skip
LINES = {
    "error of a status": (b'{"error": {"code": 429, "message": "slow down"}}', d.RateLimitError),
    "error of a type": (
        b'{"error": {"type": "authentication_error", "message": "who?"}}',
        d.AuthenticationError,
    ),
    "error as text": (b'{"error": "it broke"}', d.UnavailableError),
    "detail": (b'{"detail": "it broke"}', d.UnavailableError),
    "errors": (b'{"errors": [{"message": "it broke", "code": 401}]}', d.AuthenticationError),
}


NAMED = sorted(set(CODECS) - {"ollama", "bedrock"})  # the wires that use server-sent events


def hear(wire: str, reply: bytes, *, whole: bool = True) -> DecodedReply:
    codec = CODECS[wire].connect("m", "http://test", None, d.Capabilities())
    request = d.Request(
        (d.User("Hi"),), config=d.RuntimeConfig(max_tokens=9), model="m", stream=True
    )
    heard = decode(codec, request, [reply] if whole else bytewise(reply))
    d.check_events(heard.events)
    return heard


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_stream_fixture_without_the_inserted_error_is_a_valid_reply(wire: str) -> None:
    heard = hear(wire, BEFORE[wire] + AFTER[wire])
    assert heard.error is None
    assert heard.response is not None
    assert heard.response.text == "half"
    assert heard.response.finish_reason == "stop"


@pytest.mark.parametrize("wire", [*NAMED, "ollama"])
def test_error_in_the_middle_of_a_stream_is_raised(wire: str) -> None:
    end = b"\n" if wire == "ollama" else b"\n\n"
    for shape, (written, kind) in (LINES if wire == "ollama" else EVENTS).items():
        for whole in (True, False):
            heard = hear(wire, BEFORE[wire] + written + end + AFTER[wire], whole=whole)
            assert isinstance(heard.error, kind), shape
            stated = re.search(rb'"code": (\d+)', written)  # the HTTP status itself is 200
            assert heard.error.status == (None if stated is None else int(stated[1])), shape
            assert heard.error.response is not None, shape
            found = (heard.error.response.text, heard.error.response.finish_reason)
            assert found == ("half", "error"), shape
        assert isinstance(hear(wire, written + end).error, kind), shape


ASIDES = [
    b"event: ping\ndata: ping",
    b'{"note": 1}',
    b"nonsense",
    b"{ no json }",
    b"event: keepalive\ndata: 1",
    b"error:",
]


@pytest.mark.parametrize("wire", NAMED)
def test_stream_frames_without_content_are_ignored(wire: str) -> None:
    for aside in ASIDES:
        heard = hear(wire, BEFORE[wire] + aside + b"\n\n" + AFTER[wire])
        assert heard.error is None, aside
        assert heard.response is not None
        assert heard.response.text == "half", aside
    assert hear(wire, BEFORE[wire] + AFTER[wire] + b"event: ping\ndata: ping").error is None
    assert hear(wire, b": hello\n\nevent: ping\ndata: ping").error is not None


@pytest.mark.parametrize("wire", ["openai", "gemini", "anthropic", "responses"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"object": "error", "message": "m", "code": 401}',
        b'{"message": "m", "code": 401, "type": "error"}',
    ],
)
def test_error_body_with_status_200_is_raised(wire: str, body: bytes) -> None:
    assert isinstance(hear(wire, body).error, d.AuthenticationError)


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        (b'{"detail": ""}', False),
        (b'{"message": "m"}', False),
        (b'{"message": "", "code": 1}', False),
        (b'{"message": {}, "code": 1}', False),
        (b'{"message": "m", "status": "busy"}', True),
        (b"[]", False),
        (b"not json", False),
        (b'{"type": "ping"}', False),
    ],
)
def test_error_objects_in_a_stream_are_recognised(data: bytes, failure: bool) -> None:
    assert is_failure(data) is failure
