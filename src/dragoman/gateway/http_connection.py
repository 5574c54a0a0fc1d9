"""A connection of the HTTP server: its deadlines, flow control, and how it is closed.

All connections of a server share one timer. Each connection has a time by which it must have read
something, and one by which it must have written something; the timer compares these times with the
clock a few times a second. Setting a time is much cheaper than setting and cancelling a timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import socket
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.server import ServerState

from .access import Bounds
from .http_cycle import App, Cycle

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
_SEND_BUFFER = 64 * 1024  # size of the kernel's buffer of a connection
_PROBE_SECONDS = 0.05
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_SWEEP_SECONDS = 0.5  # longest time by which a deadline may be exceeded
_NEVER = math.inf


class HttpServer:
    """What all connections of one server share: the application, the limits, the counters."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        if not config.loaded:
            config.load()
        self.loop = loop
        self.state = state
        self.connections: set[Any] = state.connections
        self.tasks = state.tasks
        self.app_state = app_state
        self.bounds: Bounds = app_state.get("bounds") or Bounds()
        self.keep_alive_seconds = config.timeout_keep_alive
        self.scheme = "https" if config.is_ssl else "http"
        self.asgi = {"version": config.asgi_version, "spec_version": "2.3"}
        # The middleware changes only requests that have the headers of a proxy.
        app: Any = config.loaded_app
        self.proxied_app: App = app
        self.app = cast("App", app.app) if isinstance(app, ProxyHeadersMiddleware) else app
        self.address: tuple[str, int] | None = None  # where the first connection was accepted
        self.peers: dict[str, int] = {}
        self.lingering = 0
        self.is_sweeping = False
        bounds = self.bounds
        shortest = min(bounds.head_seconds, bounds.write_seconds, self.keep_alive_seconds)
        self._step = max(0.02, min(_SWEEP_SECONDS, shortest / 8))
        self._common: list[tuple[bytes, bytes]] = []
        self._common_lines = b""

    def common_lines(self) -> bytes:
        """Return the headers that all replies have, as lines."""
        headers = self.state.default_headers  # a new list every second, because of the date
        if headers is not self._common:
            self._common = headers
            self._common_lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        return self._common_lines

    def sweep(self) -> None:
        """Enforce the deadlines of the connections, until there are none."""
        self.is_sweeping = bool(self.connections)
        if not self.is_sweeping:
            return
        self.loop.call_later(self._step, self.sweep)
        now = self.loop.time()
        for connection in tuple(self.connections):
            if now >= connection.read_by:
                connection.end_reading()
            if now >= connection.write_by:
                connection.end_writing()


_NO_CYCLE = Cycle.__new__(Cycle)  # in place of the cycle of a connection without requests
_NO_CYCLE.is_complete, _NO_CYCLE.more_body = True, False


class HttpConnection(asyncio.Protocol):
    """Close a connection after its last reply, or when the client is gone or does not read."""

    transport: asyncio.Transport
    parser: httptools.HttpRequestParser
    client: tuple[str, int] | None = None
    cycle = _NO_CYCLE  # the newest request
    read_by = _NEVER
    write_by = _NEVER
    is_reading_paused = False
    is_writing_paused = False
    in_message = False  # whether a part of a request has arrived, but not all of it
    in_head = False  # whether this part is a part of the head
    unread = 0  # bytes received since the last complete header block or the last part of a body
    _running = _NO_CYCLE  # the request that is being answered
    _is_deaf = False  # whether further data of this connection is ignored
    _is_closing = False  # whether the connection is closed, or will be after a delay
    _is_lingering = False
    _unsent = 0
    _peer = ""
    _probe_timer: asyncio.TimerHandle | None = None
    _writers: list[asyncio.Future[None]] | None = None  # of replies that wait for the client

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        # uvicorn's state of a server is the one object that its connections have in common
        server: HttpServer | None = vars(server_state).get("http_server")
        if server is None:
            loop = _loop or asyncio.get_running_loop()
            server = HttpServer(config, server_state, app_state, loop)
            vars(server_state)["http_server"] = server
        self.server = server
        self.loop = server.loop
        self.parser = httptools.HttpRequestParser(self)
        # otherwise data after a request with ``connection: close`` would make it invalid
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        server = self.server
        server.connections.add(self)
        if not server.is_sweeping:
            server.sweep()
        peer = ""
        try:
            if server.address is None:
                server.address = _read_address(transport.get_extra_info("sockname"))
            address = transport.get_extra_info("peername")
        except OSError:  # the client has already disconnected
            address = None
        if isinstance(address, tuple):
            self.client = address[:2]  # addresses of IPv6 have two more elements
            peer = self._peer = _network_of(address[0])
        count = server.peers[peer] = server.peers.get(peer, 0) + 1
        bounds = server.bounds
        if len(server.connections) > bounds.connections or count > bounds.connections_per_peer:
            self._refuse(503, "the gateway has too many connections", expects_data=True)
        else:
            self.read_by = self.loop.time() + bounds.head_seconds

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        server = self.server
        server.connections.discard(self)
        if self._is_lingering:
            server.lingering -= 1
        count = server.peers[self._peer] - 1
        if count:
            server.peers[self._peer] = count
        else:
            del server.peers[self._peer]
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        self._running.disconnect()
        self.cycle = self._running = _NO_CYCLE
        self.parser = None  # type: ignore[assignment] # it refers to this connection
        if self.is_writing_paused:
            self.resume_writing()

    def eof_received(self) -> bool:
        """Continue a reply if the client closed only its sending side (``shutdown(SHUT_WR)``).

        A client that has disconnected looks the same until bytes are sent to it. Therefore the
        gateway sends interim responses, which a closed socket answers with a reset. If the reply
        has begun, the end of input counts as a disconnection.
        """
        cycle = self._running
        is_waiting = not (cycle.more_body or cycle.is_started or cycle.is_complete)
        if self._is_closing or not is_waiting or self.server.scheme == "https":
            return False  # if this method returns false, asyncio closes the transport
        self.cycle.keep_alive = False
        self._probe(_PROBE_SECONDS)
        return True

    def _probe(self, seconds: float) -> None:
        cycle = self._running
        if self._is_closing or cycle.is_started or cycle.scope["http_version"] != "1.1":
            return
        self.transport.write(_INTERIM)
        self._probe_timer = self.loop.call_later(seconds, self._probe, seconds * 4)

    # --- flow control

    def limit_send_buffer(self) -> None:
        """Limit what the kernel buffers of a long reply.

        The default buffer accepts megabytes before the gateway notices a slow client and stops
        reading from the provider (backpressure).
        """
        link = self.transport.get_extra_info("socket")
        if link is not None:
            with contextlib.suppress(OSError):  # the client may have disconnected
                link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def pause_reading(self) -> None:
        if not self.is_reading_paused:
            self.is_reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_reading_paused:
            self.is_reading_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.is_writing_paused = True
        self._watch_writing()

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        if not self._is_closing:
            self.write_by = _NEVER
        for writer in self._writers or ():
            if not writer.done():
                writer.set_result(None)

    async def drain(self) -> None:
        """Wait until the client has read enough of the reply."""
        while self.is_writing_paused:
            writer: asyncio.Future[None] = self.loop.create_future()
            self._writers = [*(self._writers or ()), writer]
            try:
                await writer
            finally:
                self._writers.remove(writer)

    def _watch_writing(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self.write_by = self.loop.time() + self.server.bounds.write_seconds

    def end_writing(self) -> None:
        """Drop the connection if the client has read too little; called at ``write_by``."""
        if self._unsent - self.transport.get_write_buffer_size() < _LEAST_TAKEN:
            self.write_by = _NEVER
            self.transport.abort()
        else:
            self._watch_writing()

    # --- closing the connection

    def close(self, *, expects_data: bool = False) -> None:
        """Close the connection after the bytes that are written; linger if the client is sending.

        The write timeout applies to the bytes that are not sent yet.
        """
        if self._is_closing:
            return
        expects_data = expects_data or self.in_message or self._is_deaf
        self._is_closing = self._is_deaf = True
        self.read_by = _NEVER
        if expects_data and not self.transport.is_closing():
            self._linger()
            return
        self.transport.close()
        self._watch_writing()

    def _linger(self) -> None:
        self.parser = None  # type: ignore[assignment] # free its buffer
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.read_by = self.loop.time() + _LINGER_SECONDS
        self.unread = 0
        self._is_lingering = self.server.lingering < _LINGER_READING
        self.server.lingering += self._is_lingering
        if self._is_lingering:
            self.resume_reading()
        else:
            self.pause_reading()

    def _discard(self) -> None:
        self.pause_reading()
        if self._is_lingering and self.unread < _LINGER_BYTES:
            self.loop.call_later(_LINGER_STEP, self._resume)

    def _resume(self) -> None:
        if not self.transport.is_closing():
            self.resume_reading()

    def _refuse(self, status: int, message: str, *, expects_data: bool = False) -> None:
        raise NotImplementedError

    def _stop_lingering(self) -> None:
        # if a part of the reply is unsent, close after it is sent; the write timeout still applies
        self.read_by = _NEVER
        if self.transport.get_write_buffer_size():
            self.transport.close()
            self._watch_writing()
        else:
            self.transport.abort()


def _read_address(address: Any) -> tuple[str, int] | None:
    return address[:2] if isinstance(address, tuple) else None


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
