"""A reply that arrives in one piece is decoded like one that arrives in many pieces."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.capabilities import Capabilities
from dragoman.errors import ProviderError
from dragoman.events import check_events
from dragoman.messages import Request, RuntimeConfig, User
from dragoman.wire import CODECS, Codec

from .cases import Case, DecodedReply, bytewise, decode, find_cases, lines_of, open_decoder

REPLIES = [
    case
    for wire in sorted(CODECS)
    for case in find_cases(wire, "reply.json", "reply.sse", "reply.ndjson")
    if case.reply is not None and case.options.status < 300
]


def read(codec: Codec, request: Request, reply: bytes) -> tuple[DecodedReply, Any]:
    decoder = open_decoder(codec, request)
    events = [*decoder.feed(reply), *decoder.end()]
    check_events(events)
    assert decoder.done
    assert decoder.end() == []
    return DecodedReply(
        events, decoder.error
    ), decoder.out.kept.value if decoder.out.kept is not None else None


@pytest.mark.parametrize("case", REPLIES, ids=str)
def test_unstreamed_body_gives_the_same_reply_as_decoding_in_pieces(case: Case) -> None:
    reply = case.reply or b""
    heard, raw = read(case.codec(), case.request, reply)
    fed = decode(case.codec(), case.request, [reply])
    assert heard.facts == fed.facts
    assert lines_of(heard) == lines_of(fed)
    if fed.response is not None:
        assert raw == fed.response.raw


@pytest.mark.parametrize(
    "reply", [b"", b" ", b"{", b'{"a": 1', b"[1]", b"<html>", b"\xef\xbb\xbf{}", b"{} and more"]
)
@pytest.mark.parametrize("wire", sorted(CODECS))
def test_non_reply_bodies_are_rejected(wire: str, reply: bytes) -> None:
    codec = CODECS[wire].connect("m", "http://test", None, Capabilities())
    request = Request((User("Hi"),), config=RuntimeConfig(max_tokens=9), model="m")
    heard, _ = read(codec, request, reply)
    assert heard.facts == decode(codec, request, bytewise(reply)).facts
    assert isinstance(heard.error, ProviderError)
