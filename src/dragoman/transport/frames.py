"""A limit on the frames of a WebSocket, for both of its ends.

The library ``websockets`` limits the bytes of a message, but not its frames. Frames can be empty,
so that a peer could keep the event loop busy, or make this end queue replies to pings, without an
end.
"""

from __future__ import annotations

from typing import Any

MAX_FRAMES = 10_000
"""The maximum number of frames, pings among them, before a message that is not empty is complete."""

_LAST_DATA = 2  # the opcodes of data are 0 to 2; those of pings and of the end are larger


class FewFrames:
    """Fail the connection of a peer whose frames lead to no message.

    A class derives from this one and from a protocol of ``websockets``.
    """

    current_size: int | None
    _frames = 0

    def recv_frame(self, frame: Any) -> None:
        """Process a frame, or raise ``ProtocolError`` if it is one too many."""
        self._frames += 1
        if self._frames > MAX_FRAMES:
            from websockets.exceptions import ProtocolError

            raise ProtocolError(f"more than {MAX_FRAMES} frames without a message")
        begun = self.current_size or 0
        framing: Any = super()
        framing.recv_frame(frame)
        if frame.opcode <= _LAST_DATA and frame.fin and begun + len(frame.data) > 0:
            self._frames = 0
