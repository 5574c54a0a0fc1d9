"""A WebSocket connection of the gateway's server: uvicorn's protocol, with limits that it lacks.

uvicorn's protocol waits forever for a client that does not read or that never completes a message,
and ends the calls of its connections at once when the server shuts down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import MAX_LINE_LENGTH
from websockets.server import ServerProtocol

from ..transport.frames import FewFrames
from .access import Bounds
from .http_connection import SlowReader
from .interruption import DRAIN

LONGEST_HEADER = MAX_LINE_LENGTH - 100


class _Framing(FewFrames, ServerProtocol):  # type: ignore[misc]
    """The framing of a connection, with a limit on its frames."""


class SocketProtocol(WebSocketsSansIOProtocol):
    """Limit what a client can cost, and end after the calls in progress at shutdown."""

    def __init__(
        self,
        config: Any,
        server_state: Any,
        app_state: Any,
        bounds: Bounds,
        ended: Callable[[], None],
    ) -> None:
        super().__init__(config, server_state, app_state)
        # Without compression: the events are short, and a compressed message could be a bomb.
        self.conn = _Framing(max_size=bounds.body_bytes, logger=self.logger)
        self._bounds = bounds
        self._ended = ended
        self._on_drain: Callable[[], None] | None = None
        self._message_timer: asyncio.TimerHandle | None = None
        self._slow: SlowReader | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._slow = SlowReader(transport, self.loop, self._bounds.write_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
        self._on_drain = None
        self._stop_waiting()
        if self._slow is not None:
            self._slow.stop()
        super().connection_lost(exc)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            scope: Any = self.scope
            scope["extensions"][DRAIN] = self._call_at_shutdown

    def _call_at_shutdown(self, call: Callable[[], None]) -> None:
        self._on_drain = call

    def shutdown(self) -> None:
        """Let the application end the connection; uvicorn calls this before it ends."""
        if self._on_drain is not None and not self.close_sent:
            self._on_drain()
        else:
            super().shutdown()

    def handle_text(self, event: Any) -> None:
        # uvicorn logs a traceback if a text is not UTF-8; the reader of requests rejects it.
        self.handle_bytes(event)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not (self.conn.reader.buffer or self.frames):
            self._stop_waiting()
        elif self._message_timer is None:
            seconds = self._bounds.body_seconds
            self._message_timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._message_timer is not None:
            self._message_timer.cancel()
            self._message_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()  # each ping of the client would be answered
        if self._slow is not None:
            self._slow.watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._slow is not None:
            self._slow.stop()
        if not self.read_paused:
            self.transport.resume_reading()
