"""A connection of the gateway's HTTP server: notice clients that leave or do not read, and close.

uvicorn's httptools protocol parses the requests and runs the application. It closes a connection
at once, which loses the reply if the client is still sending; it waits forever for a client that
does not read; and it does not report a disconnection while a further request is queued.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ..transport.clock import Alarm
from .access import Bounds
from .interruption import DISCONNECT

# Lingering close: if the client is still sending when the gateway closes the connection, the
# socket stays open for this long. Otherwise the kernel would reset the connection because of
# unread bytes, and the client would lose the reply. The gateway reads a limited number of bytes in
# the meantime, so that well-behaved clients can finish. The delay also slows down a client that
# reconnects at once.
_LINGER_SECONDS = 5.0
_LINGER_BYTES = 4 * 1024 * 1024
_LINGER_STEP = 0.02
_LEAST_TAKEN = 64 * 1024  # number of bytes that a client must read within ``write_seconds``
# Size of the kernel's send buffer. The default buffer accepts megabytes before the gateway notices
# a slow client and stops reading from the provider (backpressure).
_SEND_BUFFER = 64 * 1024
_PROBE_SECONDS = 0.05
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(HttpToolsProtocol):
    """Close a connection after its last reply, or when the client is gone or does not read."""

    bounds: Bounds
    in_head = False  # whether a part of a head has arrived, but not all of it
    is_deaf = False  # whether further data of this connection is ignored
    running: RequestResponseCycle | None = None  # the request that is being answered
    inner: asyncio.Transport
    writer: _ReplyTransport
    _on_disconnect: Callable[[], None] | None = None
    _lingered = 0  # bytes received since the connection began to close
    slow: SlowReader  # closes the connection of a client that does not read
    read_alarm: Alarm  # limits the wait for the client's next bytes
    _probe_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self.inner = transport
        self.writer = _ReplyTransport(transport, self)
        self.read_alarm = Alarm(self.loop)
        self.slow = SlowReader(transport, self.loop, self.bounds.write_seconds)
        super().connection_made(self.writer)  # type: ignore[arg-type]
        link = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the client may have disconnected
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def connection_lost(self, exc: Exception | None) -> None:
        self.writer.detach()
        self.stop_waiting()
        self.read_alarm.cancel()
        self.slow.stop()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        self._unset_keepalive_if_required()
        self.disconnect()
        super().connection_lost(exc)

    # --- clients that disconnect

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        extensions: Any = {DISCONNECT: self.call_on_disconnect}
        cycle.scope["extensions"] = extensions
        self.running = cycle
        self.writer.expects_head = True
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self.running is not None:
            # break a reference cycle: with it, only the garbage collector frees the connection
            self.running.scope["extensions"] = {}
        self.writer.flush()  # a reply to HEAD has no body
        super().on_response_complete()

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closed, or will be after a delay."""
        return self.writer.is_closed

    @property
    def is_replying(self) -> bool:
        """Whether the reply to a request is incomplete."""
        return self.running is not None and not self.running.response_complete

    def call_on_disconnect(self, call: Callable[[], None] | None) -> None:
        """Call a function if the client of the running request disconnects; ``None`` stops this.

        If the client has already disconnected, the function is called in the next iteration of
        the event loop.
        """
        self._on_disconnect = call
        if call is None or self.running is None:
            return
        if self.running.disconnected:
            self.loop.call_soon(call)
        else:
            self.flow.resume_reading()  # a disconnection is noticed only while reading

    def disconnect(self) -> None:
        """Mark the running request as disconnected; uvicorn marks only the newest request."""
        if self.running is None or self.running.response_complete:
            return
        self.running.disconnected = True
        self.running.message_event.set()
        if self._on_disconnect is not None:
            self._on_disconnect()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Continue a reply if the client closed only its sending side (``shutdown(SHUT_WR)``).

        A client that has disconnected looks the same until bytes are sent to it. Therefore the
        gateway sends interim responses, which a closed socket answers with a reset. If the reply
        has begun, the end of input counts as a disconnection.
        """
        cycle = self.running
        is_waiting = cycle is not None and not cycle.more_body and not cycle.response_started
        if self.is_closing or not is_waiting or self.scheme == "https":
            return False  # if this method returns false, asyncio closes the transport
        self.cycle.keep_alive = False
        self._probe(_PROBE_SECONDS)
        return True

    def _probe(self, seconds: float) -> None:
        cycle = self.running
        if cycle is None or cycle.response_started or cycle.scope["http_version"] == "1.0":
            return
        self.writer.write(_INTERIM)
        self._probe_timer = self.loop.call_later(seconds, self._probe, seconds * 4)

    # --- clients that do not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self.slow.watch()

    def resume_writing(self) -> None:
        if not self.is_closing:
            self.slow.stop()
        super().resume_writing()

    # --- closing

    def set_read_timer(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function after some seconds; a later call or ``stop_waiting`` cancels this."""
        self.read_alarm.set(self.loop.time() + seconds, call)

    def stop_waiting(self) -> None:
        """Stop the read timer."""
        self.read_alarm.release()

    def close(self, *, expects_data: bool = False) -> None:
        """Close the connection after the bytes that are written; linger if the client is sending.

        The write timeout applies to the bytes that are not sent yet.
        """
        if self.is_closing:
            return
        self.writer.flush()
        self.writer.is_closed = True
        self.stop_waiting()
        is_body_incomplete = self.cycle is not None and self.cycle.more_body
        is_sending = expects_data or self.in_head or is_body_incomplete or self.is_deaf
        if is_sending and not self.inner.is_closing():
            self._linger()
            return
        self.inner.close()
        if self.inner.get_write_buffer_size():
            self.slow.watch()

    def _linger(self) -> None:
        self.is_deaf = True
        if self.inner.can_write_eof():
            self.inner.write_eof()
        self.set_read_timer(_LINGER_SECONDS, self._stop_lingering)
        self.flow.resume_reading()

    def drop(self, data: bytes) -> None:
        """Ignore bytes after the last request; if the connection is closing, continue slowly."""
        if self.inner.is_closing():
            return
        self.flow.pause_reading()
        self._lingered += len(data)
        if self.is_closing and self._lingered < _LINGER_BYTES:
            self.loop.call_later(_LINGER_STEP, self._resume)

    def _resume(self) -> None:
        if not self.inner.is_closing():
            self.flow.resume_reading()

    def _stop_lingering(self) -> None:
        # if a part of the reply is unsent, close after it is sent; the write timeout still applies
        if self.inner.get_write_buffer_size():
            self.inner.close()
            self.slow.watch()
        else:
            self.inner.abort()


class SlowReader:
    """Abort a connection whose client does not read what is written."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, seconds: float
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._seconds = seconds
        self._unsent = 0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begin to watch how much the client reads."""
        self.stop()
        self._unsent = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._seconds, self._check)

    def stop(self) -> None:
        """Stop watching the client."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        if self._unsent - self._transport.get_write_buffer_size() < _LEAST_TAKEN:
            self._transport.abort()
        else:
            self.watch()


class _ReplyTransport:
    """The transport that uvicorn writes a reply to.

    The head of a reply waits for the first part of the body, as ASGI requires, so that one system
    call sends both. An interim response is sent at once, since the client waits for it. ``close``
    calls the connection, which may delay closing: uvicorn calls it when some bytes may still be
    unread or unsent.
    """

    def __init__(self, inner: asyncio.Transport, connection: HttpConnection) -> None:
        self.close = connection.close
        self.get_extra_info = inner.get_extra_info
        self.pause_reading = inner.pause_reading
        self.resume_reading = inner.resume_reading
        self.is_closed = False  # whether the connection is closed, or will be after a delay
        self.expects_head = False  # whether the next bytes are the head of a reply
        self._head = b""
        self._inner = inner

    def write(self, data: bytes) -> None:
        if self.expects_head and data != _INTERIM:
            self.expects_head = False
            self._head = data
        elif self._head:
            self._head += data
            self.flush()
        else:
            self._inner.write(data)

    def flush(self) -> None:
        """Send a head that still waits for its body."""
        if self._head:
            head, self._head = self._head, b""
            self._inner.write(head)

    def is_closing(self) -> bool:
        return self.is_closed or self._inner.is_closing()

    def detach(self) -> None:
        """Drop the reference to a connection that is lost."""
        self.is_closed = True
        self.close = self._inner.close  # type: ignore[assignment]
