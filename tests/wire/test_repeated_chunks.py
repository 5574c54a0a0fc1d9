"""A chunk of the openai wire that differs from the one before it only in its text is decoded in
fewer steps; the events are the same as those of a decoder that parses every chunk.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count as counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.events import Assembler, Event, check_events
from dragoman.messages import Request, RuntimeConfig, Tool, User
from dragoman.validate import Expectation
from dragoman.wire.openai import OpenAICodec, Quirks
from dragoman.wire.openai.repeat import RepeatedChunk

from .cases import BASE_URL, find_cases, find_records

REQUESTS = [
    Request((User("Hi"),), model="m", request_id="R", stream=True),
    Request((User("Hi"),), (Tool("f", "A tool."),), model="m", request_id="R", stream=True),
    Request(
        (User("Hi"),),
        config=RuntimeConfig(extras={"n": 2}),
        model="m",
        request_id="R",
        stream=True,
    ),
]
QUIRKS: list[dict[str, Any]] = [
    {},
    {"reasoning_details": True},
    {"usage_path": "x.usage"},
    {"tools": "schema"},
]


def decode(
    body: bytes, size: int, request: Request = REQUESTS[0], quirks: dict[str, Any] | None = None
) -> list[Any]:
    """Decode a stream that arrives in pieces of ``size`` bytes; return everything about it."""
    numbers = counter()
    out = Assembler(
        request_id="R",
        model="m",
        provider="p",
        expected=Expectation(request),
        new_id=lambda: str(next(numbers)),
    )
    decoder = OpenAICodec("m", BASE_URL, Quirks(**(quirks or {}))).decoder(request, out)
    events: list[Event] = []
    for at in range(0, len(body), size):
        events += decoder.feed(body[at : at + size])
    events += decoder.end()
    check_events(events)
    error = None if out.error is None else (type(out.error), str(out.error))
    return [events, error, out.reported, out.model, out.warnings, out.response]


def compare(
    body: bytes,
    size: int = 100_000,
    request: Request = REQUESTS[0],
    quirks: dict[str, Any] | None = None,
) -> int:
    """Check that recognising chunks changes nothing; return how many were recognised."""
    recognised = 0
    read = RepeatedChunk.read

    def count_read(self: RepeatedChunk, data: bytes) -> str | None:
        nonlocal recognised
        text = read(self, data)
        recognised += text is not None
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RepeatedChunk, "read", count_read)
        shorter = decode(body, size, request, quirks)
        patch.setattr(RepeatedChunk, "read", lambda self, data: None)
        assert shorter == decode(body, size, request, quirks)
    return recognised


def as_stream(*chunks: Any) -> bytes:
    """Return chunks, given as JSON values or as bytes, as an event stream."""
    written = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in chunks]
    return b"".join([b"data: %b\n\n" % each for each in [*written, b"[DONE]"]])


def chunk(text: Any, index: Any = 0, **fields: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": None}
    return {"id": "1", "model": "m", "choices": [choice], **fields}


def test_known_streams_give_the_same_events(count: Callable[[str, int], None]) -> None:
    streams = [case.reply or b"" for case in find_cases("openai", "reply.sse")]
    streams += [
        each.body for each in find_records().values() if each.wire == "openai" and each.is_events
    ]
    recognised = sum([compare(body, size) for body in streams for size in (100_000, 997)])
    count("recognised chunks", recognised)
    assert recognised > 0


TEXTS = ["a", "m", "", "0", "index", 'say "x"', "\n", "é", "\\", '","index":1', "]}"]
CHANGES: list[dict[str, Any]] = [
    {},
    {"model": "other"},
    {"usage": {"prompt_tokens": 3, "completion_tokens": 1}},
    {"error": {"message": "broken"}},
    {"citations": ["http://a.test"]},
    {"x": {"usage": {"prompt_tokens": 9, "completion_tokens": 9}}},
    {"obfuscation": "r4nd0m"},
]
PARTS: list[dict[str, Any]] = [
    {},
    {"role": "assistant"},
    {"refusal": "no"},
    {"reasoning_content": "hm"},
    {"reasoning_details": [{"type": "reasoning.text", "text": "t"}]},
    {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    {"annotations": [{"type": "url_citation"}]},
]


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Return a stream of chunks, most of which differ only in their text."""
    chunks = []
    for _ in range(draw(st.integers(1, 6))):
        made = chunk(
            draw(st.sampled_from(TEXTS) | st.text(max_size=4) | st.none()),
            draw(st.sampled_from([0, 0, 0, 1, None, "0"])),
            **draw(st.sampled_from([{}, {}, {}, *CHANGES])),
        )
        made["choices"][0]["delta"] |= draw(st.sampled_from([{}, {}, {}, *PARTS]))
        made["choices"][0]["finish_reason"] = draw(st.sampled_from([None, None, None, "stop"]))
        chunks += [json.dumps(made, ensure_ascii=draw(st.booleans())).encode()]
    return as_stream(*chunks)


@given(
    body=streams(),
    size=st.sampled_from([1, 7, 100_000]),
    request=st.sampled_from(REQUESTS),
    quirks=st.sampled_from(QUIRKS),
)
def test_any_stream_gives_the_same_events(
    body: bytes, size: int, request: Request, quirks: dict[str, Any]
) -> None:
    compare(body, size, request, quirks)


A, B = json.dumps(chunk("a")).encode(), json.dumps(chunk("b")).encode()
OTHER_FIELD = A.replace(b'"a"', b'"a", "finish_reason": "x", "content": "b"')


@pytest.mark.parametrize(
    ("chunks", "recognised"),
    [
        ([chunk("a"), chunk("b"), chunk("c")], 2),
        ([chunk("a"), chunk('"'), chunk("\n"), chunk("é")], 3),
        ([chunk("a"), chunk(""), chunk("b")], 2),
        ([chunk("a"), chunk(["b"]), chunk("c"), chunk("d")], 1),
        ([A, OTHER_FIELD, B], 0),
        ([A, B[:-30], B], 0),
        ([A, A.replace(b'"a"', b'"'), B], 0),
        ([A, A.replace(b'"a"', b'"\xff"'), B], 0),
        # The text is also the name of the model, of a field, or written in another way.
        ([b'{"choices":[{"index":0,"delta":{"content":","}}]}', chunk("a"), chunk("b")], 1),
        ([chunk("m"), chunk("m"), chunk("b"), chunk("c")], 1),
        ([chunk("content"), chunk("a"), chunk("b")], 1),
        ([A.replace(b'"a"', b'"mod\\u0065l"'), chunk("a"), chunk("b")], 1),
        # Another choice, or a chunk that also contains something else.
        ([chunk("a"), chunk("x", 1), chunk("y", 1), chunk("b")], 0),
        ([chunk("a", usage={"prompt_tokens": 1}), chunk("b", usage={"prompt_tokens": 1})], 0),
        ([chunk("a", citations=["x"]), chunk("b", citations=["x"])], 0),
        ([*[chunk("a", citations=["x"])] * 9, chunk("b"), chunk("c")], 1),
        ([chunk("a"), {"choices": []}, chunk("b"), chunk("c")], 1),
        ([chunk("a"), {"usage": {"prompt_tokens": 1}}, chunk("b"), chunk("c")], 1),
    ],
)
def test_only_chunks_that_differ_in_their_text_are_recognised(
    chunks: list[Any], recognised: int
) -> None:
    assert compare(as_stream(*chunks)) == recognised


@pytest.mark.parametrize("quirks", QUIRKS)
@pytest.mark.parametrize("request_", REQUESTS)
def test_servers_that_need_quirks_give_the_same_events(
    request_: Request, quirks: dict[str, Any]
) -> None:
    counts = {"x": {"usage": {"prompt_tokens": 9, "completion_tokens": 9}}}
    for fields in ({}, counts):
        chunks = [chunk(text, **fields) for text in ("a", "b", "x", "usage")]
        compare(as_stream(*chunks), request=request_, quirks=quirks)


def test_event_named_error_is_not_recognised() -> None:
    body = b"data: %b\n\nevent: error\ndata: %b\n\n" % (A, B)
    assert compare(body) == 0
    assert decode(body, 1000)[1] is not None


def test_stream_whose_chunks_all_differ_is_not_learned_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Learning takes as long as decoding, so it ends if no chunk is recognised."""
    learned = 0
    make = RepeatedChunk.__init__

    def note(self: RepeatedChunk) -> None:
        nonlocal made
        make(self)
        made = self

    made: Any = None
    monkeypatch.setattr(RepeatedChunk, "__init__", note)
    decode(as_stream(*[chunk("word", obfuscation=str(at)) for at in range(100)]), 100_000)
    learned = made._learned  # noqa: SLF001 - no event shows what was learned
    assert learned == 3
    # Every tenth chunk differs: then learning is worth its time.
    decode(as_stream(*[chunk("word", created=at // 10) for at in range(100)]), 100_000)
    assert made._learned == 10  # noqa: SLF001
