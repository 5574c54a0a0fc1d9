"""Decode AWS's binary event streams (``application/vnd.amazon.eventstream``), with size limits.

A message consists of its total length, the length of its headers, a CRC of these two numbers, the
headers, a JSON payload, and a CRC of all preceding bytes. Both checksums are verified, so a lost
or changed byte ends the stream with an error. A decoded frame is an object whose only key is the
name of the event and whose value is the payload: ``{"messageStop": {...}}``. The vendor's own
library returns the same form.
"""

from __future__ import annotations

from binascii import crc32

from msgspec import json

from .sse import Frame

__all__ = ["EventStreamDecoder", "EventStreamError", "encode_message"]

# The protocol allows 16 MiB of payload and 128 KiB of headers in a message.
MAX_MESSAGE = 16 * 1024 * 1024 + 128 * 1024 + 16
_PRELUDE = 12
_LEAST = 16
# Sizes in bytes of header values by type number. Types 6 and 7 have a length field instead.
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_TEXT = 7
_LENGTHS = (6, _TEXT)


MEDIA_TYPE = "application/vnd.amazon.eventstream"


class EventStreamError(ValueError):
    """A message is too long, or has a wrong checksum or unreadable headers."""


class EventStreamDecoder:
    """Decode chunks as they arrive; ``feed`` returns the messages that a chunk completes."""

    def __init__(self, max_message: int = MAX_MESSAGE) -> None:
        self.lines = 0  # number of messages decoded so far
        self._max = max_message
        self._held = bytearray()
        self._position = 0  # offset in the stream of the first buffered byte
        self._wanted = _PRELUDE  # number of bytes to buffer before decoding continues

    def feed(self, chunk: bytes) -> list[Frame]:
        """Decode the next bytes of the body; return the messages that they complete."""
        self._held += chunk
        frames: list[Frame] = []
        while len(self._held) >= self._wanted:
            if self._wanted == _PRELUDE:
                self._wanted = self._read_length()
                continue
            message = bytes(self._held[: self._wanted])
            frames.append(_read_message(message, self._position))
            del self._held[: self._wanted]
            self._position += self._wanted
            self._wanted = _PRELUDE
            self.lines += 1
        return frames

    def end(self) -> list[Frame]:
        """End the stream; drop a last message that is incomplete."""
        return []

    def _read_length(self) -> int:
        prelude = bytes(self._held[:_PRELUDE])
        length = int.from_bytes(prelude[:4])
        if crc32(prelude[:8]) != int.from_bytes(prelude[8:]):
            raise EventStreamError(
                "a message of the stream has a wrong checksum, or it is not an event stream"
            )
        if not _LEAST <= length <= self._max:
            raise EventStreamError(
                f"a message of the stream has {length} bytes; {self._max} are allowed"
            )
        return length


def _read_message(message: bytes, offset: int) -> Frame:
    if crc32(message[:-4]) != int.from_bytes(message[-4:]):
        raise EventStreamError("a message of the stream has a wrong checksum")
    end = _PRELUDE + int.from_bytes(message[4:8])
    if end > len(message) - 4:
        raise EventStreamError("the headers of a message are longer than the message")
    headers = _read_headers(message[_PRELUDE:end])
    payload = message[end:-4] or b"{}"
    kind = headers.get(":message-type", "event")
    name = headers.get(":exception-type") or headers.get(":event-type") or ""
    # A message of the type "error" has no payload: the code and the text are in its headers.
    if kind == "error":
        name = headers.get(":error-code", "error")
        payload = json.encode({"message": headers.get(":error-message", "")})
    return Frame(b"{" + json.encode(name) + b":" + payload + b"}", kind.encode(), offset)


def _read_headers(data: bytes) -> dict[str, str]:
    """Return the headers whose values are strings; skip all others."""
    found: dict[str, str] = {}
    names: set[bytes] = set()
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        kind = data[name_end] if name_end < len(data) else -1
        begin = name_end + 1
        if kind in _LENGTHS:
            size = int.from_bytes(data[begin : begin + 2])
            begin += 2
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise EventStreamError("a header of a message cannot be read")
        if begin + size > len(data):
            raise EventStreamError("a header of a message is cut off")
        name = data[at + 1 : name_end]
        if name in names:
            # botocore refuses it too: two readers could take different values
            raise EventStreamError("a message has two headers of one name")
        names.add(name)
        if kind == _TEXT:
            value = data[begin : begin + size].decode("utf-8", "replace")
            found[name.decode("utf-8", "replace")] = value
        at = begin + size
    return found


def encode_message(headers: dict[str, str], payload: bytes) -> bytes:
    """Return an encoded message with these string headers and this payload."""
    written = b"".join(
        [_write_header(name.encode(), value.encode()) for name, value in headers.items()]
    )
    prelude = (len(written) + len(payload) + _LEAST).to_bytes(4) + len(written).to_bytes(4)
    message = prelude + crc32(prelude).to_bytes(4) + written + payload
    return message + crc32(message).to_bytes(4)


def _write_header(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + bytes([_TEXT]) + len(value).to_bytes(2) + value
