"""Write a Gemini stream as one JSON array, for clients that do not request server-sent events."""

from __future__ import annotations

from ...errors import ProviderError
from ...events import Event, MessageComplete
from ..server import ReplyEncoder


class ArrayEncoder(ReplyEncoder):
    """Write the events that another encoder produces as the elements of a JSON array."""

    content_type = "application/json; charset=UTF-8"

    def __init__(self, inner: ReplyEncoder) -> None:
        super().__init__(inner.asked, inner.created)
        self._inner = inner
        self._is_open = False

    def feed(self, event: Event) -> bytes:
        return self._write(self._inner.feed(event))

    def end(self) -> bytes:
        return self._close(self._inner.end())

    def fail(self, error: ProviderError) -> bytes:
        last = self._close(self._inner.fail(error))
        self.unsound = self._inner.unsound
        return last

    def write_end(self, complete: MessageComplete) -> bytes:
        return self._close(self._inner.write_end(complete))

    def write_error(self, error: ProviderError) -> bytes:
        return self._close(self._inner.write_error(error))

    def _write(self, frames: bytes) -> bytes:
        written = b""
        for frame in frames.split(b"\n\n"):
            if frame:
                written += (b",\r\n" if self._is_open else b"[") + frame.removeprefix(b"data: ")
                self._is_open = True
        return written

    def _close(self, frames: bytes) -> bytes:
        written = self._write(frames)
        return written + (b"]" if self._is_open else b"[]")
