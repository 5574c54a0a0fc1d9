"""Server-sent events are parsed by the WHATWG rules, for any split of the bytes."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.wire import sse
from dragoman.wire.sse import Frame, LineDecoder, SseDecoder, SseError
from tests import cpu
from tests.rows import read_table


def decode(chunks: Iterable[bytes], limit: int = sse.MAX_EVENT) -> list[Frame]:
    decoder = SseDecoder(limit)
    return [frame for chunk in chunks for frame in decoder.feed(chunk)] + decoder.end()


def cuts(body: bytes) -> Iterable[list[bytes]]:
    """Yield a body whole, in two parts, byte by byte, and with empty reads between."""
    yield [body]
    yield from ([body[:at], body[at:]] for at in range(1, min(len(body), 200)))
    yield [body[at : at + 1] for at in range(len(body))]
    yield [piece for at in range(len(body)) for piece in (b"", body[at : at + 1], b"")]


BOM = b"\xef\xbb\xbf"


def make_frame(fields: dict[str, Any]) -> Frame:
    texts = {name: each.encode("latin-1") for name, each in fields.items() if type(each) is str}
    return Frame(**{**fields, **texts})


# By name: a body, and its frames. A byte stands for the character of its number.
CASES = {
    name: (body.encode("latin-1"), [make_frame(fields) for fields in frames])
    for name, body, frames in read_table("sse")
}
CASES["retry of absurd length"] = (
    b"retry: " + b"1" * 5000 + b"\ndata: a\n\n",
    [Frame(b"a", offset=5008, retry=111_111_111_111_111_111)],
)


@pytest.mark.parametrize(("body", "frames"), CASES.values(), ids=CASES)
def test_sse_bodies_are_parsed_as_specified(body: bytes, frames: list[Frame]) -> None:
    for chunks in cuts(body):
        assert decode(chunks) == frames, chunks
    for frame in frames:  # the offset of a frame is that of its first data line
        assert body[frame.offset :].startswith(b"data")
        assert frame.offset in (0, 3) or body[frame.offset - 1] in b"\r\n"


def test_frames_are_returned_by_the_read_that_completes_them() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n") == []
    assert decoder.feed(b"\ndata: b\n\ndata: c") == [Frame(b"a"), Frame(b"b", offset=9)]
    assert decoder.feed(b"\r") == []
    assert decoder.feed(b"\r") == [Frame(b"c", offset=18)]
    assert decoder.end() == []


def reference(body: str) -> list[Frame]:
    """Parse a text by the algorithm of the specification, with a blank line at the end."""
    frames: list[Frame] = []
    offset = 0
    if body.startswith("\ufeff"):
        body = body[1:]
        offset = 3
    data = ""
    event = ""
    last_id = ""
    retry = None
    first = 0
    rest = body + "\n\n"
    while rest:
        ends = [at for at in (rest.find("\r"), rest.find("\n")) if at >= 0]
        end = min(ends, default=len(rest))
        line = rest[:end]
        size = end + (2 if rest[end : end + 2] == "\r\n" else 1)
        if line == "":
            if data != "":
                frame = Frame(
                    data[:-1].encode(), event.encode() or b"message", first, last_id.encode(),
                    retry,
                )  # fmt: skip
                frames.append(frame)
            data = ""
            event = ""
        elif line[0] != ":":
            name, _, value = line.partition(":")
            value = value[1:] if value[:1] == " " else value
            if name == "data":
                first = first if data else offset
                data += value + "\n"
            elif name == "event":
                event = value
            elif name == "id" and "\0" not in value:
                last_id = value
            elif name == "retry" and value and all("0" <= digit <= "9" for digit in value):
                retry = int(value)
        offset += len(rest[:size].encode())
        rest = rest[size:]
    return frames


pieces = st.sampled_from(
    [
        "data", "event", "id", "retry", "data: ", "x", "7", ":", " ", "\n", "\n", "\r", "\r\n",
        "\n\n", "\0", "\u2028", "é",
    ]
)  # fmt: skip
bodies = st.builds(
    str.__add__, st.sampled_from(["", "", "\ufeff"]), st.lists(pieces, max_size=25).map("".join)
)


@given(bodies, st.data())
def test_decoder_matches_the_specification(body: str, data: st.DataObject) -> None:
    encoded = body.encode()
    marks = sorted(data.draw(st.sets(st.integers(0, len(encoded)), max_size=6)))
    chunks = [encoded[a:b] for a, b in zip([0, *marks], [*marks, len(encoded)], strict=True)]
    assert decode(chunks) == reference(body)
    assert decode([encoded[at : at + 1] for at in range(len(encoded))]) == reference(body)


BOUNDED = {
    "a data line": (b"data: " + b"x" * 14 + b"\n\n", 20),
    "a comment": (b":" + b"x" * 19 + b"\n\n", 20),
    "an unknown field": (b"x" * 20 + b"\n\n", 20),
    "an event of many lines": (b"data: 1234\n" * 4 + b"\n", 20),
    "an event of empty lines": (b"data\n" * 20 + b"\n", 20),
    "a line that never ends": (b"x" * 20, 20),
    "a line after a byte order mark": (BOM + b"x" * 20 + b"\n", 20),
    "an event that ends with CR": (b"data: 1234\r" * 4 + b"\r", 20),
}


@pytest.mark.parametrize(("body", "limit"), BOUNDED.values(), ids=BOUNDED)
def test_event_size_limit_is_enforced(body: bytes, limit: int) -> None:
    for chunks in cuts(body):
        assert len(decode(chunks, limit)) <= 1
        with pytest.raises(
            SseError, match=f"an event of the stream is longer than {limit - 1} bytes"
        ):
            decode(chunks, limit - 1)


def test_size_limit_applies_to_each_event_separately() -> None:
    for line_end in (b"\n", b"\r", b"\r\n"):
        body = b": ping\ndata: 123456\n\n".replace(b"\n", line_end) * 1000
        assert (
            len(decode([body], 20))
            == len(decode([body[at : at + 7] for at in range(0, len(body), 7)], 20))
            == 1000
        )


def test_frames_are_immutable() -> None:
    with pytest.raises(AttributeError):
        Frame(b"a").data = b"b"  # type: ignore[misc]


def test_long_line_in_small_reads_takes_linear_time() -> None:
    """A megabyte arrives in reads of 64 bytes; joining at each read would copy 8 GB."""
    body = b"data: " + b"x" * 1_000_000 + b"\n\n"
    with cpu.spending() as spent:
        [frame] = decode([body[at : at + 64] for at in range(0, len(body), 64)])
    assert spent.units < 2 * cpu.QUARTER_SECOND
    assert frame == Frame(b"x" * 1_000_000)


def decode_lines(chunks: Iterable[bytes], limit: int = sse.MAX_EVENT) -> list[Frame]:
    decoder = LineDecoder(limit)
    return [frame for chunk in chunks for frame in decoder.feed(chunk)] + decoder.end()


LINES: dict[str, tuple[bytes, list[Frame]]] = {
    "nothing": (b"", []),
    "lines": (b'{"a":1}\n{"b":2}\n', [Frame(b'{"a":1}'), Frame(b'{"b":2}', offset=8)]),
    "no last line end": (b"1\n2", [Frame(b"1"), Frame(b"2", offset=2)]),
    "CRLF": (b"1\r\n2\r\n", [Frame(b"1"), Frame(b"2", offset=3)]),
    "empty lines": (b"\n\r\n \n1\n\n2\n\n", [Frame(b"1", offset=5), Frame(b"2", offset=8)]),
    "white space around": (b" 1 \n\t2", [Frame(b"1"), Frame(b"2", offset=4)]),
    "other line ends are text": (b"a\xe2\x80\xa8b\x85c\rd\n", [Frame(b"a\xe2\x80\xa8b\x85c\rd")]),
}


@pytest.mark.parametrize(("body", "frames"), LINES.values(), ids=LINES)
def test_json_lines_are_split(body: bytes, frames: list[Frame]) -> None:
    for chunks in cuts(body):
        assert decode_lines(chunks) == frames, chunks


def test_lines_are_returned_by_the_read_that_ends_them() -> None:
    decoder = LineDecoder()
    assert decoder.feed(b"1") == []
    assert decoder.feed(b"1\n2\n3") == [Frame(b"11"), Frame(b"2", offset=3)]
    assert decoder.end() == [Frame(b"3", offset=5)]


@pytest.mark.parametrize("body", [b"x" * 20, b"x" * 20 + b"\n", b"1\n" + b"x" * 20 + b"\n2\n"])
def test_length_of_a_line_is_limited(body: bytes) -> None:
    for chunks in cuts(body):
        assert b"x" * 20 in [frame.data for frame in decode_lines(chunks, 20)]
        with pytest.raises(SseError, match="a line of the stream is longer than 19 bytes"):
            decode_lines(chunks, 19)
    assert len(decode_lines([b"x" * 20 + b"\n"] * 1000, 20)) == 1000
