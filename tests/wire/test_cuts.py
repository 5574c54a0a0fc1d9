"""A stream may end at any byte: its events are valid and contain nothing that did not arrive.

The tests truncate every streamed case of every wire, and every recorded stream if recordings
exist. The default run uses a sample of offsets; ``DRAGOMAN_EXHAUSTIVE=1`` tests every offset of a
case, and a larger sample of those of a recording.
"""

import os
import random
import re
from collections.abc import Callable, Sequence

import pytest

import dragoman as d
from dragoman.wire import CODECS

from .cases import (
    COMMENT,
    DecodedReply,
    Record,
    bytewise,
    cut_at_random,
    decode,
    find_cases,
    find_streams,
    with_between,
    with_crlf,
)

EXHAUSTIVE = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1"
CASE_OFFSETS = 10**9 if EXHAUSTIVE else 5
RECORD_OFFSETS = 400 if EXHAUSTIVE else 4  # of each recording
EVERY_NTH = 1 if EXHAUSTIVE else 12  # test every twelfth recording
# The exhaustive run is split, so that no single test takes minutes.
SHARES = range(120 if EXHAUSTIVE else 1)

pytestmark = pytest.mark.exhaustive

# The bytes that must have arrived before a stream may end without an error: the end marker of the
# wire, or a finish reason. A wire that is not listed needs the complete stream.
ENDS = {
    "openai": re.compile(rb'"finish_reason"\s*:\s*("[^"]+"|\{)|\[DONE\]'),
    "anthropic": re.compile(rb"message_stop|\[DONE\]"),
    "gemini": re.compile(rb'"finishReason"|"blockReason"'),
    "responses": re.compile(rb"response\.(completed|incomplete|failed|done)|\[DONE\]"),
    "bedrock": re.compile(rb"messageStop"),
}

# Cases in which truncation changes the meaning of the text, with the reason.
REREAD = {"coerced-text-after-finish": "text that becomes an answer only once all of it is there"}

STREAMED = [
    case
    for wire in sorted(CODECS)
    for case in find_cases(wire, "reply.sse", "reply.ndjson", "reply.frames")
    if case.options.status < 300 and case.part("events.jsonl") is not None
]


def test_every_wire_has_streams_to_truncate() -> None:
    assert {case.wire for case in STREAMED} == set(CODECS)


@pytest.mark.recordings
def test_every_wire_has_recorded_streams_to_truncate() -> None:
    assert {record.wire for record in find_streams()} == set(CODECS)


def seams_of(wire: str, data: bytes) -> list[int]:
    """Return the offsets of the boundaries between the events of a stream, including its start and
    its end.
    """
    if wire == "bedrock":
        edges = [0]
        while edges[-1] + 4 <= len(data):
            edges.append(edges[-1] + int.from_bytes(data[edges[-1] : edges[-1] + 4]))
        return sorted({*[min(edge, len(data)) for edge in edges], len(data)})
    mark = rb"\n" if wire == "ollama" else rb"\n\r?\n"
    return sorted({0, *(match.end() for match in re.finditer(mark, data)), len(data)})


def offsets_of(wire: str, data: bytes, most: int, seed: object) -> Sequence[int]:
    """Return all offsets of ``data``, or, if there are more than ``most``, a sample that includes
    both ends and some event boundaries.
    """
    size = len(data)
    if size + 1 <= most:
        return range(size + 1)
    chance = random.Random(str(seed))
    seams = seams_of(wire, data)
    some = [
        *chance.sample(seams, min(len(seams), most // 4)),
        *(chance.randrange(size + 1) for _ in range(most)),
    ]
    return sorted({0, 1, size - 1, *some})


def check_cut(
    wire: str, cut: bytes, whole: DecodedReply, heard: DecodedReply, *, stream: bool, reread: bool
) -> None:
    """Check ``heard``, the result of decoding the truncated bytes ``cut``, against ``whole``, the
    result of decoding all bytes.
    """
    error = heard.error
    if isinstance(error, d.StreamInterruptedError):
        assert error.response is None or error.response.finish_reason == "error"
    elif error is not None and not isinstance(
        error, d.MalformedToolCallError | d.StructuredOutputError
    ):
        # what was to be a body of one line is not a stream that was interrupted
        line = cut if wire == "ollama" and b"\n" not in cut else b""
        blank = not stream and not cut.removeprefix(line).strip()
        assert type(error) is type(whole.error) or (
            blank and type(error) is d.InvalidResponseError
        ), repr(error)
    else:  # the stream ended normally, or with a complete but invalid message
        assert heard.response is not None
        ended = ENDS[wire].search(cut) if wire in ENDS else heard.facts == whole.facts
        assert ended, "ended well before anything said that it had ended"
    check_words(heard, whole, reread=reread)


def check_words(heard: DecodedReply, whole: DecodedReply, *, reread: bool) -> None:
    if heard.response is None:
        return
    assert whole.response is not None
    if not reread:
        assert whole.response.text.startswith(heard.response.text)
    assert whole.response.message.thinking.startswith(heard.response.message.thinking)
    calls = dict(enumerate(whole.response.message.content))
    for event in heard.events:
        if isinstance(event, d.ToolUseEnd) and event.intent is not None:
            call = calls.get(event.content_block_index)
            assert isinstance(call, d.ToolCall), "an intent where the whole reply has no call"
            assert event.intent.tool_name == call.name
            assert event.intent.input == call.arguments


@pytest.mark.parametrize("share", range(10 if EXHAUSTIVE else 1))
@pytest.mark.parametrize("wire", sorted({case.wire for case in STREAMED}))
def test_truncated_streams_of_cases_give_only_content_that_arrived(
    wire: str, share: int, count: Callable[[str, int], None]
) -> None:
    cases = [case for case in STREAMED if case.wire == wire][share :: 10 if EXHAUSTIVE else 1]
    done = 0
    for case in cases:
        codec = case.codec()
        request = case.request
        data = case.reply or b""
        whole = decode(codec, request, [data])
        for offset in offsets_of(wire, data, CASE_OFFSETS, case.name):
            cut = data[:offset]
            heard = decode(codec, request, [cut])
            try:
                check_cut(
                    wire, cut, whole, heard, stream=request.stream, reread=case.name in REREAD
                )
            except AssertionError as failure:
                raise AssertionError(f"{wire}/{case} cut at {offset}: {failure}") from failure
            done += 1
    assert done >= min(
        CASE_OFFSETS, len(min([case.reply or b"" for case in cases], key=len))
    ) * len(cases)
    count(f"streamed cases of {wire} cut", len(cases))
    count("offsets that cases were cut at", done)


def test_done_marker_may_be_missing_after_a_finish_reason() -> None:
    checked = 0
    for case in [case for case in STREAMED if case.wire == "openai"]:
        data = case.reply or b""
        mark = re.search(rb"data: *\[DONE\] *\r?\n?\r?\n?$", data)
        whole = decode(case.codec(), case.request, [data])
        if mark is None or whole.error is not None or whole.response is None:
            continue  # the stream has no end marker, or failed before it
        heard = decode(case.codec(), case.request, [data[: mark.start()]])
        if whole.response.finish_raw is None:
            assert type(heard.error) is d.StreamInterruptedError, case
        else:
            assert heard.facts == whole.facts, case
        checked += 1
    assert checked > 100


# --- truncated recordings ----------------------------------------------------------------------


def recorded_streams(share: int, longest: int = 10**9) -> list[Record]:
    # Sort by wire, so that a sample of every nth recording contains all wires.
    streams = sorted(find_streams(), key=lambda record: record.wire)
    return [
        record
        for record in streams[::EVERY_NTH][share :: len(SHARES)]
        if len(record.body) < longest
    ]


@pytest.mark.recordings
@pytest.mark.parametrize("share", SHARES)
def test_truncated_recorded_streams_give_only_content_that_arrived(
    share: int, count: Callable[[str, int], None]
) -> None:
    for record in recorded_streams(share):
        codec = record.codec(keep_raw=False)
        request = record.request()
        data = record.body
        whole = decode(codec, request, [data], judged=False)
        offsets = offsets_of(record.wire, data, RECORD_OFFSETS, record.id)
        for offset in offsets:
            heard = decode(codec, request, [data[:offset]], judged=False)
            try:
                check_cut(record.wire, data[:offset], whole, heard, stream=True, reread=False)
            except AssertionError as failure:
                raise AssertionError(
                    f"{record.wire} {record.vendor} {record} cut at {offset}: {failure}"
                ) from failure
        count(f"recorded streams of {record.wire} cut", 1)
        count("offsets that recordings were cut at", len(offsets))


@pytest.mark.recordings
@pytest.mark.parametrize("share", SHARES)
def test_reply_does_not_depend_on_how_the_recorded_bytes_are_split(
    share: int, count: Callable[[str, int], None]
) -> None:
    """Decoding byte by byte, in random pieces, or with CRLF, comments and pings gives the same
    reply.
    """
    for record in recorded_streams(share, 10**9 if EXHAUSTIVE else 20_000):
        codec = record.codec()
        request = record.request()
        data = record.body
        whole = decode(codec, request, [data], judged=False).facts
        ways = {
            "at random": cut_at_random(data, record.id),
            "crlf": cut_at_random(with_crlf(data), record.id, 200),
        }
        if record.wire == "bedrock":  # a binary stream allows no bytes between two events
            del ways["crlf"]
        elif record.is_events:
            ways["comments"] = cut_at_random(with_between(data, COMMENT), record.id, 200)
            ways["pings"] = iter([with_between(data, CODECS[record.wire].keep_alive)])
        elif record.wire == "ollama":
            ways["empty lines"] = cut_at_random(data.replace(b"\n", b"\n\n \n"), record.id, 200)
        if len(data) < 6000 or EXHAUSTIVE:
            ways["bytewise"] = bytewise(data)
        for way, pieces in ways.items():
            assert decode(codec, request, pieces, judged=False).facts == whole, (
                f"{record.wire} {record}: {way}"
            )
        count(f"recorded streams of {record.wire} fed in pieces", 1)
