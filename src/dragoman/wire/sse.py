"""Decode server-sent events (WHATWG) and JSON lines, incrementally and with bounded memory.

Lines end with LF, CR or CRLF and nothing else (never U+2028 or 0x85), even when CR and LF arrive
in different reads. A byte order mark is skipped once. Comments are dropped; ``data`` lines are
joined with LF; an event is dispatched by a blank line.

Two deliberate differences from WHATWG:

- ``end()`` dispatches a pending event when the body ends without its last blank line, because many
  servers omit that line. The wire decides whether such a reply is complete.
- Consecutive lines without a field name that form a JSON object become a frame named ``BARE``.
  Google's API ends a failed stream with such an object.
"""

from __future__ import annotations

from msgspec import Struct, json

__all__ = ["BARE", "Frame", "LineDecoder", "SseDecoder", "SseError"]

# Upper bound for one event, in bytes. Inline images and reasoning signatures make long lines, but
# no recorded reply comes near this size.
MAX_EVENT = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
# known fields other than data; the empty name marks a comment
_FIELDS = frozenset({b"event", b"id", b"retry", b""})
# The name of a frame that is not an event: a JSON object on lines of its own, without a field
# name.
BARE = b"{}"


class Frame(Struct, frozen=True, gc=False):
    """One event: its ``data``, its name (by default ``message``) and its offset in the body."""

    data: bytes
    event: bytes = b"message"
    offset: int = 0
    id: bytes = b""
    retry: int | None = None


JSON_LINES = "application/x-ndjson"  # the media type that ``LineDecoder`` reads


class SseError(ValueError):
    """A line or an event is longer than allowed."""


class SseDecoder:
    """Decode server-sent events; each call of ``feed`` returns the events that it completed."""

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self.lines = 0  # number of lines so far, including comments and empty lines
        self._max = max_event
        self._pending: list[bytes] = []  # pieces of the line whose end has not arrived yet
        self._pending_size = 0
        # the last chunk ended with CR, so an LF that follows belongs to it
        self._after_cr = False
        self._at_start = True
        self._position = 0  # body offset of the next unread line
        self._data: list[bytes] = []
        self._data_size = 0
        self._event = b""
        self._id = b""
        self._retry: int | None = None
        self._offset = 0  # body offset of the first line of the current event
        self._bare: list[bytes] = []  # lines of a JSON object that was sent without a field name
        self._bare_size = self._bare_offset = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """Decode the next bytes of the body; return the frames that they complete."""
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == 10:
                chunk = chunk[1:]
                self._position += 1
        if self._at_start:
            chunk = self._skip_mark(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:
            self._hold(chunk)
            return []
        if self._pending:
            chunk = b"".join([*self._pending, chunk])
            self._pending.clear()
            self._pending_size = 0
        frames: list[Frame] = []
        if b"\r" not in chunk:
            self._feed_plain(chunk, frames)
            return frames
        for line in chunk.splitlines(keepends=True):
            if line[-1] == 10:
                self._line(line[:-2] if line[-2:-1] == b"\r" else line[:-1], frames)
            elif line[-1] == 13:
                self._line(line[:-1], frames)
            else:
                self._hold(line)
                return frames
            self._position += len(line)
            self.lines += 1
        self._after_cr = chunk[-1] == 13
        return frames

    def _feed_plain(self, chunk: bytes, frames: list[Frame]) -> None:
        """Decode lines that end with LF, as nearly all do.

        Nearly every event is complete in its chunk, and is one ``data`` line after at most one
        ``event`` line. Such an event is decoded at once, any other event line by line.
        """
        *events, rest = chunk.split(b"\n\n")
        self.lines += 2 * len(events)  # faster than counting the line ends of the chunk
        if events and (self._data or self._event):  # the first event began in another chunk
            self._feed_event(events.pop(0), frames)
        position = self._position
        is_long = len(chunk) > self._max
        for event in events:
            head, line_end, line = event.rpartition(b"\n")
            if (
                is_long
                or not line.startswith(b"data: ")
                or (head and (not head.startswith(b"event: ") or b"\n" in head))
            ):
                self._position = position
                self._feed_event(event, frames)
                position = self._position
            else:
                self.lines += len(line_end)
                position += len(event) + 2
                name = head[7:] or b"message"
                frames.append(
                    Frame(line[6:], name, position - len(line) - 2, self._id, self._retry)
                )
        self._position = position
        if rest:
            *lines, rest = rest.split(b"\n")
            self.lines += len(lines)
            self._feed_lines(lines, frames)
            self._hold(rest)

    def _feed_event(self, event: bytes, frames: list[Frame]) -> None:
        lines = event.split(b"\n")
        self.lines += len(lines) - 1
        self._feed_lines([*lines, b""], frames)

    def _feed_lines(self, lines: list[bytes], frames: list[Frame]) -> None:
        for line in lines:
            self._line(line, frames)
            self._position += len(line) + 1

    def end(self) -> list[Frame]:
        """End the body; return the event that is still pending, if any."""
        frames: list[Frame] = []
        if self._pending:
            line = b"".join(self._pending)
            self._pending.clear()
            self._line(line, frames)
        self._dispatch(frames)
        return frames

    def _skip_mark(self, chunk: bytes) -> bytes:
        head = b"".join([*self._pending, chunk])
        if len(head) < len(_BOM) and _BOM.startswith(head):
            # These bytes may become a byte order mark with the next chunk, so they are kept.
            return chunk
        self._at_start = False
        if head.startswith(_BOM):
            self._pending.clear()
            self._pending_size = 0
            self._position = len(_BOM)
            return head[len(_BOM) :]
        return chunk

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._pending.append(piece)
            self._pending_size += len(piece)
            self._bound(self._pending_size)

    def _bound(self, size: int) -> None:
        if size > self._max:
            raise SseError(f"an event of the stream is longer than {self._max} bytes")

    def _line(self, line: bytes, frames: list[Frame]) -> None:
        if not line:
            self._dispatch(frames)
            return
        self._bound(len(line))
        if line.startswith(b"data: "):  # fast path for nearly all lines
            value = line[6:]
        else:
            name, colon, value = line.partition(b":")
            if colon and value.startswith(b" "):
                value = value[1:]
            if name != b"data":
                if name in _FIELDS:
                    self._field(name, value)
                elif name == b"error" and value.startswith(b"{"):
                    # llama.cpp sends an error as "error: {...}": the name of the event in place of
                    # the field name "data". It becomes an event named "error".
                    frames.append(Frame(value, b"error", self._position))
                else:
                    self._collect_bare(line, frames)
                return
        if not self._data:
            self._offset = self._position
        self._data.append(value)
        self._data_size += len(value) + 1
        self._bound(self._data_size)

    def _field(self, name: bytes, value: bytes) -> None:
        if name == b"event":
            self._event = value
        elif name == b"id":
            if b"\0" not in value:
                self._id = value
        elif name == b"retry" and value.isdigit():
            self._retry = int(value[:18])

    def _collect_bare(self, line: bytes, frames: list[Frame]) -> None:
        """Collect the lines without a field name that together form a JSON object."""
        if not self._bare:
            if not line.lstrip().startswith(b"{"):
                return
            self._bare_offset = self._position
        self._bare.append(line)
        self._bare_size += len(line) + 1
        self._bound(self._bare_size)
        if line.rstrip().endswith(b"}") and _is_json(body := b"\n".join(self._bare)):
            frames.append(Frame(body, BARE, self._bare_offset))
            self._bare = []
            self._bare_size = 0

    def _dispatch(self, frames: list[Frame]) -> None:
        data = self._data
        if data:
            body = data[0] if len(data) == 1 else b"\n".join(data)
            frames.append(
                Frame(body, self._event or b"message", self._offset, self._id, self._retry)
            )
            self._data = []
            self._data_size = 0
        self._event = b""


def _is_json(data: bytes) -> bool:
    try:
        json.decode(data)
    except (ValueError, RecursionError):
        return False
    return True


class LineDecoder:
    """Decode JSON lines, one frame per line; empty lines are keep-alives and yield nothing."""

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self.lines = 0  # number of lines so far, including empty ones
        self._max = max_event
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._position = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """Decode the next bytes of the body; return the frames that they complete."""
        first, *lines = chunk.split(b"\n")
        self.lines += len(lines)
        self._pending.append(first)
        self._pending_size += len(first)
        frames: list[Frame] = []
        for line in lines:
            self._dispatch(frames)
            self._pending.append(line)
            self._pending_size = len(line)
        self._bound(self._pending_size)
        return frames

    def end(self) -> list[Frame]:
        """End the body; return the last line, which may lack its LF."""
        frames: list[Frame] = []
        self._dispatch(frames)
        return frames

    def _dispatch(self, frames: list[Frame]) -> None:
        line = b"".join(self._pending)
        self._pending.clear()
        self._bound(len(line))
        if data := line.strip():
            frames.append(Frame(data, offset=self._position))
        self._position += len(line) + 1

    def _bound(self, size: int) -> None:
        if size > self._max:
            raise SseError(f"a line of the stream is longer than {self._max} bytes")
