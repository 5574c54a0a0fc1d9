"""The responses wire: streams equal their last event, and nothing is stored."""

import json
from typing import Any

import pytest

import dragoman as d
import dragoman.errors
from dragoman.wire.responses import Quirks, ResponsesCodec
from tests.rows import read_table

from .cases import BASE_URL, MODEL, Case, decode, find_cases, with_between

CASE_LIST = find_cases("responses")
REPLIED = [case for case in CASE_LIST if case.reply is not None and case.options.status < 300]
STREAMED = [case for case in REPLIED if case.is_stream]


def make_codec(**quirks: Any) -> ResponsesCodec:
    return ResponsesCodec(MODEL, BASE_URL, Quirks(**quirks))


def event_of(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def events_in(data: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects of a stream, parsed without our decoder."""
    lines = data.decode().replace("\r\n", "\n").split("\n")
    found = [
        json.loads(line[5:])
        for line in lines
        if line.startswith("data:") and line[5:].strip().startswith("{")
    ]
    return [event for event in found if isinstance(event.get("type"), str)]


# Streams whose last event does not repeat the streamed content, with the reason. All other streams
# must give the reply that their last event contains.
UNLIKE = dict(read_table("unlike_responses"))


def test_streamed_replies_equal_the_response_in_their_last_event() -> None:
    for case in [case for case in STREAMED if case.name not in UNLIKE]:
        codec = case.codec(ResponsesCodec)
        streamed = decode(codec, case.request, [case.reply or b""])
        ends = [
            event
            for event in events_in(case.reply or b"")
            if event["type"] in ("response.completed", "response.incomplete")
        ]
        if not ends or isinstance(streamed.error, d.StreamInterruptedError):
            assert streamed.error is not None, case
            continue
        body = decode(codec, case.request, [json.dumps(ends[0]["response"]).encode()])
        assert body.facts == streamed.facts, case


def test_request_never_lets_the_server_store_the_response() -> None:
    for case in find_cases("responses", "wire.json"):
        assert case.json("wire.json")["store"] is False
        assert "previous_response_id" not in case.json("wire.json")


# Events without content; inserting one into a complete stream must not change the reply.
IDLE: list[dict[str, Any]] = read_table("idle_responses")


@pytest.mark.parametrize("idle", IDLE, ids=lambda event: event["type"])
def test_events_without_content_are_ignored(idle: dict[str, Any]) -> None:
    case = Case("responses", "text-stream")
    whole = decode(make_codec(), case.request, [case.reply or b""])
    heard = decode(make_codec(), case.request, [with_between(case.reply or b"", event_of(idle))])
    assert heard.facts == whole.facts
