"""An HTTP/1.1 server protocol with limits, most of which uvicorn's httptools protocol lacks.

``Bounds`` limits what a client without a key can cost the gateway: the size of the headers and the
time to send them, the size of trailers, the requests queued on one connection, the number of
connections, and the time to read the reply. If a client exceeds a limit, the connection is closed,
after a reply with status 431, 408 or 503 if a reply can still be sent.
"""

from __future__ import annotations

import asyncio
import http
import ipaddress
import json
import socket
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from .access import Bounds

# Lingering close: if the client is still sending when the gateway closes the connection, the
# socket stays open for this long. Otherwise the kernel would reset the connection because of
# unread bytes, and the client would lose the reply. The gateway reads a limited number of bytes in
# the meantime, so that well-behaved clients can finish. The delay also slows down a client that
# reconnects at once.
_LINGER_SECONDS = 5.0
_LINGER_BYTES = 4 * 1024 * 1024
_LINGER_STEP = 0.02
_LINGER_READING = 32
_LEAST_TAKEN = 64 * 1024  # number of bytes that a client must read within ``write_seconds``
# Size of the kernel's send buffer. The default buffer accepts megabytes before the gateway notices
# a slow client and stops reading from the provider (backpressure).
_SEND_BUFFER = 64 * 1024
_PROBE_SECONDS = 0.05
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Server:
    """The counters that all connections of one server share."""

    def __init__(self) -> None:
        self.peers: Counter[str] = Counter()
        self.lingering = 0


_servers: WeakKeyDictionary[ServerState, _Server] = WeakKeyDictionary()


class _RefusedError(Exception):
    """Raised in a callback of the httptools parser to stop the parser."""


class _EndingProtocol(HttpToolsProtocol):
    """Close a connection after its last reply, or when the client is gone or does not read."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.bounds: Bounds = app_state.get("bounds") or Bounds()
        self._server = _servers.setdefault(server_state, _Server())
        self._inner: asyncio.Transport
        self._running: RequestResponseCycle | None = None
        self._in_head = False
        # bytes received since the last complete header block or the last part of a body
        self._unread = 0
        self._is_deaf = False  # whether further requests on this connection are ignored
        self._is_closing = False
        self._is_lingering = False
        self._unsent = 0
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self._inner = transport
        super().connection_made(_ClosingTransport(transport, self))  # type: ignore[arg-type]
        link = transport.get_extra_info("socket")
        if link is not None:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._server.lingering -= self._is_lingering
        for timer in (self._read_timer, self._write_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()
        self._disconnect()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Continue a reply if the client closed only its sending side (``shutdown(SHUT_WR)``).

        A client that has disconnected looks the same until bytes are sent to it. Therefore the
        gateway sends interim responses, which a closed socket answers with a reset. If the reply
        has begun, the end of input counts as a disconnection.
        """
        cycle = self._running
        is_request_whole = cycle is not None and not cycle.more_body and not cycle.response_started
        if self._is_closing or not is_request_whole or self.scheme == "https":
            return False  # if this method returns false, asyncio closes the transport
        self.cycle.keep_alive = False
        self._probe(_PROBE_SECONDS)
        return True

    def _probe(self, seconds: float) -> None:
        cycle = self._running
        if (
            self._is_closing
            or cycle is None
            or cycle.response_started
            or self.scope["http_version"] == "1.0"
        ):
            return
        self.transport.write(_INTERIM)
        self._probe_timer = self.loop.call_later(seconds, self._probe, seconds * 4)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _is_replying(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _disconnect(self) -> None:
        """Mark the request that is being answered as disconnected.

        If several requests are queued on the connection, uvicorn marks only the newest.
        """
        cycle = self._running
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    # --- closing the connection

    def _close(self, *, expects_data: bool = False) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._stop_waiting()
        is_sending = (
            self._in_head or self._is_deaf or (self.cycle is not None and self.cycle.more_body)
        )
        if (expects_data or is_sending) and not self._inner.is_closing():
            self._linger()
            return
        self._inner.close()
        if self._inner.get_write_buffer_size():
            self._watch_writing()

    def _linger(self) -> None:
        self.parser = None  # type: ignore[assignment] # free its buffer
        if self._inner.can_write_eof():
            self._inner.write_eof()
        self._read_timer = self.loop.call_later(_LINGER_SECONDS, self._stop_lingering)
        self._unread = 0
        self._is_lingering = self._server.lingering < _LINGER_READING
        self._server.lingering += self._is_lingering
        if self._is_lingering:
            self.flow.resume_reading()
        else:
            self.flow.pause_reading()

    def _discard(self) -> None:
        self.flow.pause_reading()
        if self._is_lingering and self._unread < _LINGER_BYTES:
            self.loop.call_later(_LINGER_STEP, self._resume)

    def _resume(self) -> None:
        if not self._inner.is_closing():
            self.flow.resume_reading()

    def _stop_lingering(self) -> None:
        # if a part of the reply is unsent, close after it is sent; the write timeout still applies
        if self._inner.get_write_buffer_size():
            self._inner.close()
            self._watch_writing()
        else:
            self._inner.abort()

    def _stop_waiting(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        if self._write_timer is not None and not self._is_closing:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def _watch_writing(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = self.loop.call_later(self.bounds.write_seconds, self._check_writing)

    def _check_writing(self) -> None:
        if self._unsent - self.transport.get_write_buffer_size() < _LEAST_TAKEN:
            self.transport.abort()
        else:
            self._watch_writing()


class BoundedHttpProtocol(_EndingProtocol):
    """Enforce limits on what a client sends.

    The lifespan state of the application contains the ``Bounds``.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._peer = ""
        self._keep_alive = False  # whether the request being received allows keep-alive
        self._field_bytes = 0
        self._refusal = (400, "the request is not valid HTTP")

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._peer = _network_of(self.client[0]) if self.client else ""
        peers, bounds = self._server.peers, self.bounds
        peers[self._peer] += 1
        if (
            len(self.connections) > bounds.connections
            or peers[self._peer] > bounds.connections_per_peer
        ):
            self._refuse(503, "the gateway has too many connections", expects_data=True)
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.peers[self._peer] -= 1
        if self._server.peers[self._peer] <= 0:
            del self._server.peers[self._peer]
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self._keep_alive = False
        if self._is_closing:
            self._inner.close()  # close at once, even if the client is still sending
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        if self._inner.is_closing():
            return
        if self._is_closing:
            self._discard()
            return
        if self._is_deaf:
            self.flow.pause_reading()
            return
        try:
            self.parser.feed_data(data)  # pyright: ignore[reportAttributeAccessIssue]
        # Upgrades are not supported: answer as if the client had not asked for one, then close the
        # connection.
        except httptools.HttpParserUpgrade:
            self._stop_parsing()
        except httptools.HttpParserError:
            self._refuse(*self._refusal)
        else:
            self._check_unread()

    def _check_unread(self) -> None:
        """Reject the request if the parser buffers too many bytes of its headers or trailers."""
        if self._in_head and self._unread > self.bounds.head_bytes:
            self._refuse(431, "the head of the request is too large")
        elif (
            self.cycle is not None
            and self.cycle.more_body
            and self._unread > self.bounds.trailer_bytes
        ):
            self._refuse(431, "the trailers of the request are too large")

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        self._in_head = True
        self._unread = self._field_bytes = 0
        self._wait_for_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_field(len(url), self.bounds.head_bytes)

    def on_header(self, name: bytes, value: bytes) -> None:
        size = len(name) + len(value) + 4
        # A field after the body is a trailer. It is dropped, since trailers are not checked as
        # headers are.
        if not self._in_head:
            self._count_field(size, self.bounds.trailer_bytes)
            return
        self._count_field(size, self.bounds.head_bytes)
        if len(self.headers) >= self.bounds.headers:
            raise self._refused(431, f"the request has more than {self.bounds.headers} headers")
        super().on_header(name, value)

    def _count_field(self, size: int, limit: int) -> None:
        self._field_bytes += size
        if self._field_bytes > limit:
            where = "head" if self._in_head else "trailers"
            raise self._refused(431, f"the {where} of the request must have at most {limit} bytes")

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self.bounds.pipelined:
            raise self._refused(503, "too many requests are queued on this connection")
        self._in_head = False
        self._unread = self._field_bytes = 0
        self._stop_waiting()
        self._unset_keepalive_if_required()
        super().on_headers_complete()
        # A reply that is sent before the body has arrived announces ``connection: close``. The
        # client may then send only a part of the body, and the gateway must not parse that part as
        # the next request.
        self._keep_alive = self.cycle.keep_alive
        self.cycle.keep_alive = False
        if self.scope["http_version"] == "1.0":
            self.cycle.chunked_encoding = False
            self.cycle.expected_content_length = _UntilClose()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keep_alive

    def _refused(self, status: int, message: str) -> _RefusedError:
        self._refusal = (status, message)
        return _RefusedError(message)

    def _refuse(self, status: int, message: str, *, expects_data: bool = False) -> None:
        """Reply to input that exceeds a limit or is not HTTP, and close the connection.

        If the reply to an earlier request is being sent on the connection, finish that reply and
        send no error.
        """
        if self._is_replying() and self._running is not None and not self._running.more_body:
            self._stop_parsing()
            return
        is_untouched = not self._is_replying() or (
            self._running is not None and not self._running.response_started
        )
        self._disconnect()
        if is_untouched:
            self.transport.write(_refusal(status, message))
        self._close(expects_data=expects_data)

    def _stop_parsing(self) -> None:
        self._is_deaf = True
        self._keep_alive = False
        self.cycle.keep_alive = False
        self.flow.pause_reading()

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._read_timer = self.loop.call_later(self.bounds.head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        # while a reply is sent, backpressure may pause reading, so the client may not be at fault
        if self._is_replying():
            self._wait_for_head()
        elif self._in_head:
            self._refuse(
                408,
                f"the head of the request did not arrive within {self.bounds.head_seconds:g} "
                "seconds",
            )
        else:
            self._close()


class _ClosingTransport:
    """A transport whose ``close`` calls the protocol instead, which may delay closing the socket.

    uvicorn calls ``close`` when some bytes may still be unread or unsent.
    """

    def __init__(self, inner: asyncio.Transport, protocol: _EndingProtocol) -> None:
        self.write = inner.write
        self.close = protocol._close
        self._inner = inner
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._protocol._is_closing or self._inner.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _UntilClose(int):
    """An expected reply length that is never reached, for replies to HTTP/1.0 clients.

    HTTP/1.0 has no chunked encoding, so only the end of the connection marks the end of the reply.
    """

    def __lt__(self, other: object) -> bool:
        return False

    def __sub__(self, other: object) -> _UntilClose:
        return self


def _network_of(host: str) -> str:
    """Return the network that counts as one peer: an IPv4 address, or the /64 of an IPv6 one."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def _refusal(status: int, message: str) -> bytes:
    body = json.dumps(
        {"error": {"message": message, "type": "invalid_request_error", "code": status}}
    ).encode()
    lines = [
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
        "content-type: application/json",
    ]
    lines += [f"content-length: {len(body)}", "connection: close"]
    if status == 503:
        lines.append("retry-after: 1")
    return "\r\n".join([*lines, "", ""]).encode() + body
