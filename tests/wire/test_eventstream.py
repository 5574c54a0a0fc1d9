"""Binary event streams: decoding in any pieces, checksums, and limits."""

import json
from binascii import crc32
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import InvalidResponseError, Request, StreamInterruptedError, User, fold
from dragoman.events import Assembler
from dragoman.wire.bedrock import BedrockCodec
from dragoman.wire.eventstream import EventStreamDecoder, EventStreamError, encode_message
from dragoman.wire.sse import Frame

botocore = pytest.importorskip("botocore.eventstream")


def event(name: str, payload: Any) -> bytes:
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return encode_message(headers, json.dumps(payload).encode())


STREAM = b"".join([
    event("messageStart", {"role": "assistant"}),
    event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "ü"}}),
    event("contentBlockStop", {"contentBlockIndex": 0}),
    event("messageStop", {"stopReason": "end_turn"}),
    event("metadata", {"usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}}),
])  # fmt: skip


def frames_of(*chunks: bytes) -> list[Frame]:
    decoder = EventStreamDecoder()
    found = [frame for chunk in chunks for frame in decoder.feed(chunk)]
    assert decoder.lines == len(found)
    return [*found, *decoder.end()]


def theirs(data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """Return the messages of a stream as the vendor's library decodes them."""
    buffer = botocore.EventStreamBuffer()
    buffer.add_data(data)
    return [(message.headers, message.payload) for message in buffer]


def test_our_decoder_and_botocore_read_the_same_frames() -> None:
    read = theirs(STREAM)
    assert [headers[":event-type"] for headers, _ in read] == [
        "messageStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata",
    ]  # fmt: skip
    ours = frames_of(STREAM)
    assert [json.loads(frame.data) for frame in ours] == [
        {headers[":event-type"]: json.loads(payload)} for headers, payload in read
    ]
    assert [frame.offset for frame in ours][:2] == [
        0,
        len(event("messageStart", {"role": "assistant"})),
    ]
    assert {frame.event for frame in ours} == {b"event"}


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_frames_do_not_depend_on_how_the_bytes_are_split(cuts: list[int]) -> None:
    edges = sorted({0, *cuts, len(STREAM)})
    pieces = [STREAM[begin:end] for begin, end in pairwise(edges)]
    assert frames_of(*pieces) == frames_of(STREAM)


def test_message_with_two_headers_of_one_name_is_refused_as_by_botocore() -> None:
    once = encode_message({":event-type": "a", ":event-typo": "b"}, b"{}")
    assert json.loads(frames_of(once)[0].data) == {"a": {}}
    twice = repair(once.replace(b":event-typo", b":event-type"))
    with pytest.raises(EventStreamError, match="two headers of one name"):
        frames_of(twice)
    with pytest.raises(botocore.DuplicateHeader):
        theirs(twice)


def repair(message: bytes) -> bytes:
    """Return a message with the checksum that belongs to its bytes."""
    return message[:-4] + crc32(message[:-4]).to_bytes(4)


@pytest.mark.parametrize("first", range(7))
def test_a_changed_byte_is_always_detected(first: int) -> None:
    for at in range(first, len(STREAM), 49):
        check_change(at)


def check_change(at: int) -> None:
    changed = STREAM[:at] + bytes([STREAM[at] ^ 0x41]) + STREAM[at + 1 :]
    decoder = BedrockCodec("m", "https://a.test").decoder(
        Request([User("x")], stream=True), Assembler()
    )
    events = [*decoder.feed(changed), *decoder.end()]
    assert isinstance(decoder.error, InvalidResponseError | StreamInterruptedError)
    assert not events or events[-1].type == "message.complete"
    if events:
        assert isinstance(fold(events).raw["chunks"], list)


def test_truncated_stream_is_reported_as_interrupted() -> None:
    for at in range(0, len(STREAM), 5):
        check_cut(at)


def check_cut(at: int) -> None:
    decoder = BedrockCodec("m", "https://a.test").decoder(
        Request([User("x")], stream=True), Assembler()
    )
    decoder.feed(STREAM[:at])
    decoder.end()
    # The stop reason has arrived and only the token counts are missing.
    if len(frames_of(STREAM[:at])) >= 4:
        assert decoder.error is None
    else:
        assert isinstance(decoder.error, StreamInterruptedError)


def with_headers(headers: bytes, payload: bytes = b"{}") -> bytes:
    """Return a message with the given headers and correct checksums."""
    prelude = (len(headers) + len(payload) + 16).to_bytes(4) + len(headers).to_bytes(4)
    message = prelude + crc32(prelude).to_bytes(4) + headers + payload
    return message + crc32(message).to_bytes(4)


def test_headers_of_every_value_type_are_skipped() -> None:
    values = {
        0: b"",
        1: b"",
        2: b"1",
        3: b"12",
        4: b"1234",
        5: b"12345678",
        6: b"\0\x02ab",
        8: b"\0" * 8,
        9: b"1" * 16,
    }
    headers = b"".join(
        [b"\x01" + bytes([65 + kind, kind]) + value for kind, value in values.items()]
    )
    named = headers + b"\x0b:event-type\x07\0\x01a"
    (frame,) = frames_of(with_headers(named, b""))
    assert frame.data == b'{"a":{}}'
    assert frame.event == b"event"
    assert theirs(with_headers(named, b""))[0][0][":event-type"] == "a"


@pytest.mark.parametrize(
    "headers", [b"\x01x\x63", b"\x05x", b"\x01x\x07\0\x09ab", b"\x01x\x05123", b"\x01x"]
)
def test_unreadable_headers_are_rejected(headers: bytes) -> None:
    with pytest.raises(EventStreamError, match="header"):
        frames_of(with_headers(headers))


def test_impossible_frame_lengths_are_rejected() -> None:
    for prelude in ((5).to_bytes(4) + (0).to_bytes(4), (2**31).to_bytes(4) + (0).to_bytes(4)):
        with pytest.raises(EventStreamError, match="bytes"):
            frames_of(prelude + crc32(prelude).to_bytes(4))
    prelude = (16).to_bytes(4) + (9).to_bytes(4)
    message = prelude + crc32(prelude).to_bytes(4)
    with pytest.raises(EventStreamError, match="longer than the message"):
        frames_of(message + crc32(message).to_bytes(4))


def test_error_frame_without_a_payload_is_read() -> None:
    headers = {
        ":message-type": "error",
        ":error-code": "InternalError",
        ":error-message": "it broke",
    }
    (frame,) = frames_of(encode_message(headers, b""))
    assert frame.data == b'{"InternalError":{"message":"it broke"}}'
    assert frame.event == b"error"
    (bare,) = frames_of(encode_message({":message-type": "error"}, b""))
    assert bare.data == b'{"error":{"message":""}}'
