"""Watch the reply of an API that is passed on: hide the operator's key, and read the usage."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from ..wire.json import dig
from ..wire.sse import SseDecoder, SseError

_MOST_BODY = 1024 * 1024
"""The most bytes of a reply, or of one of its events, in which the usage is looked for."""
_MOST_UNITS = Decimal(10**12)


class KeyMask:
    """Replace secrets in a stream of bytes by as many asterisks, even if a chunk ends inside one."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = [each.encode() for each in secrets if each]
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the next bytes; hold back what may be the beginning of a secret."""
        data = self._mask(self._held + data)
        kept = max([_count_begun(data, each) for each in self._secrets], default=0)
        self._held = data[len(data) - kept :]
        return data[: len(data) - kept]

    def end(self) -> bytes:
        """Return what was held back, which was not a secret."""
        held, self._held = self._held, b""
        return held

    def hide(self, text: str) -> str:
        """Return a text without the secrets."""
        return self._mask(text.encode()).decode()

    def _mask(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, b"*" * len(secret))
        return data


def _count_begun(data: bytes, secret: bytes) -> int:
    """Return how many of the last bytes are the beginning of a secret."""
    most = min(len(data), len(secret) - 1)
    return next((size for size in range(most, 0, -1) if data.endswith(secret[:size])), 0)


class UnitReader:
    """Read the number at a path in the JSON of a reply: of its body, or of its last event.

    ``units`` is ``None`` if there is no such number, or the reply is larger than a mebibyte.
    """

    def __init__(self, path: str | None, content_type: str) -> None:
        self._names = () if path is None else tuple(path.split("."))
        is_stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self._events = SseDecoder(_MOST_BODY) if is_stream else None
        self._body: bytearray | None = bytearray()
        self.units: Decimal | None = None

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the reply."""
        if not self._names or self._body is None:
            return
        if self._events is None:
            self._body += data
            if len(self._body) > _MOST_BODY:
                self._body = None
            return
        try:
            frames = self._events.feed(data)
        except SseError:
            self._body = None
            return
        for frame in frames:
            self._read(frame.data)

    def end(self) -> None:
        """Read the rest, since the reply is complete."""
        if not self._names or self._body is None:
            return
        if self._events is None:
            self._read(bytes(self._body))
            return
        for frame in self._events.end():
            self._read(frame.data)

    def _read(self, data: bytes) -> None:
        try:
            found: Any = dig(msgspec.json.decode(data), *self._names)
        except (msgspec.DecodeError, RecursionError):
            return
        if isinstance(found, bool) or not isinstance(found, int | float | str):
            return
        try:
            units = Decimal(str(found))
        except InvalidOperation:
            return
        if units.is_finite() and 0 <= units <= _MOST_UNITS:
            self.units = units
