"""The HTTP/1.1 protocol of the gateway's server: uvicorn's, with limits that it lacks.

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
import ssl
from asyncio.sslproto import SSLProtocol
from itertools import chain
from typing import Any

import httptools

from .access import Bounds
from .http_connection import HttpConnection
from .socket_protocol import LONGEST_HEADER, SocketProtocol

Fields = list[tuple[bytes, bytes]]


class _RefusedError(Exception):
    """Raised in a callback of the httptools parser, with the status and message of the reply."""


class BoundedHttpProtocol(HttpConnection):
    """Enforce limits on what a client sends.

    The lifespan state of the application contains the ``Bounds``.
    """

    _peer = ""
    _peers: dict[str, int]  # the number of connections of each peer of this server
    _keep_alive = False  # whether the request being received allows keep-alive
    # bytes received since the last complete header block or the last part of a body
    _unread = 0

    _bare: Any = None  # the connection before its TLS handshake

    def connection_made(self, transport: Any) -> None:
        if self._bare is not None:  # the TLS handshake is done, and the connection counted
            self._bare = None
            self._begin(transport)
            return
        self.connections.add(self)
        address = transport.get_extra_info("peername")  # empty for a Unix socket
        self._peer = _network_of(address[0]) if address else ""
        self._peers = self.app_state.setdefault("peers", {})
        count = self._peers[self._peer] = self._peers.get(self._peer, 0) + 1
        bounds = self.bounds = self.app_state.get("bounds") or Bounds()
        excess = len(self.connections) > bounds.connections or count > bounds.connections_per_peer
        tls = getattr(self.config, "tls", None)
        if tls is None:
            self._begin(transport, excess=excess)
            return
        self._bare = transport
        if excess:
            transport.abort()
        else:
            self._secure(tls, bounds.head_seconds)

    def _begin(self, transport: Any, *, excess: bool = False) -> None:
        super().connection_made(transport)
        if excess:
            self._refuse(503, "the gateway has too many connections", expects_data=True)
        else:
            self._wait_for_head()

    def _secure(self, tls: ssl.SSLContext, seconds: float) -> None:
        """Begin the TLS handshake, which then calls ``connection_made`` again."""
        done = self.loop.create_future()
        done.add_done_callback(self._end_handshake)
        # ``loop.start_tls`` would begin later, and lose what arrives until then.
        inner = SSLProtocol(
            self.loop, self, tls, done, server_side=True, ssl_handshake_timeout=int(seconds)
        )
        self._bare.set_protocol(inner)
        inner.connection_made(self._bare)

    def _end_handshake(self, done: asyncio.Future[None]) -> None:
        if done.exception() is not None or self._bare is not None:
            self._release()

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        if self._bare is None:
            super().connection_lost(exc)

    def _release(self) -> None:
        """Count the connection no longer."""
        if self in self.connections:
            self.connections.discard(self)
            self._forget_peer()

    def _forget_peer(self) -> None:
        self._peers[self._peer] -= 1
        if not self._peers[self._peer]:
            del self._peers[self._peer]

    def shutdown(self) -> None:
        """Close the connection after the last reply; uvicorn calls this before it ends."""
        self._keep_alive = False
        if self._bare is not None:
            self._bare.abort()
        elif self.is_closing:
            self.inner.close()  # close at once, even if the client is still sending
        else:
            super().shutdown()

    # --- parsing requests

    def data_received(self, data: bytes) -> None:
        if self.is_deaf:
            self.drop(data)
            return
        self._unread += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            refused = error.__context__
            if not isinstance(refused, _RefusedError):
                refused = _RefusedError(400, "the request is not valid HTTP")
            self._refuse(*refused.args)
        else:
            self._check_unread()

    def _upgrade(self, rest: bytes) -> None:
        """Open a WebSocket, or parse a request again without its header ``upgrade``.

        A server may ignore this header (RFC 9110, 7.8), but the parser ends such a request after
        the head. The JDK's client offers ``h2c`` in its first request, whose body is not empty. A
        client that asks for a WebSocket takes no other reply. Where none is served it gets status
        426: at this status Codex turns to HTTP at once, and after others it tries five times
        (openai/codex#43353 of 2026-09-07, NVIDIA/NeMo-Relay#994 of 2026-09-04).
        """
        if any(
            name == b"upgrade" and value.lower() == b"websocket" for name, value in self.headers
        ):
            path = self.url.partition(b"?")[0].decode("latin-1")
            is_served = path in self.app_state.get("socket_paths", ())
            if not is_served or self.parser.get_method() != b"GET" or self.is_replying:
                message = "WebSockets are not served here; send the request over HTTP"
                self._refuse(426, message, expects_data=True)
            elif max([len(name) + len(value) for name, value in self.headers]) > LONGEST_HEADER:
                self._refuse(431, f"a header must have at most {LONGEST_HEADER} bytes")
            else:
                self._open_socket(rest)
            return
        head = self._write_head([field for field in self.headers if field[0] != b"upgrade"])
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.data_received(head + rest)

    def _write_head(self, fields: Fields) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        return b"\r\n".join([*lines, *[b"%b: %b" % field for field in fields], b"", b""])

    def _open_socket(self, rest: bytes) -> None:
        """Pass the connection, which still counts as one of its peer, to ``SocketProtocol``."""
        link = SocketProtocol(
            self.config, self.server_state, self.app_state, self.bounds, self._forget_peer
        )
        self.read_alarm.cancel()
        self.writer.detach()
        self.connections.discard(self)
        link.connection_made(self.inner)
        self.inner.set_protocol(link)
        link.data_received(self._write_head(self.headers) + rest)

    def _check_unread(self) -> None:
        """Reject the request if the parser buffers too many bytes of its headers or trailers."""
        if self.in_head:
            part = "head"
            size = self._measure_head()
            limit = self.bounds.head_bytes
        elif self.cycle is not None and self.cycle.more_body:
            part = "trailers"
            size = 0
            limit = self.bounds.trailer_bytes
        else:
            return
        if max(size, self._unread) > limit:
            self._refuse(431, f"the {part} of the request must have at most {limit} bytes")

    def _measure_head(self) -> int:
        return len(self.url) + _measure(self.headers)

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        self.in_head = True
        self._unread = 0
        if not self.read_alarm.is_set:  # the first head must arrive in time after the connection
            self._wait_for_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._check_head()
        self.in_head = False
        self._unread = 0
        self.stop_waiting()
        self._unset_keepalive_if_required()
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self.headers = []  # fields after the body are trailers, which are dropped
        # A reply that is sent before the body has arrived announces ``connection: close``. The
        # client may then send only a part of the body, and the gateway must not parse that part as
        # the next request.
        self._keep_alive = self.cycle.keep_alive
        self.cycle.keep_alive = False
        if self.scope["http_version"] == "1.0":
            self.cycle.waiting_for_100_continue = False
            self.cycle.chunked_encoding = False
            self.cycle.expected_content_length = _UntilClose()

    def _check_head(self) -> None:
        """Reject a head that exceeds a limit or whose meaning is ambiguous (RFC 9112)."""
        bounds = self.bounds
        headers = self.headers
        if len(headers) > bounds.headers:
            raise _RefusedError(431, f"the request has more than {bounds.headers} headers")
        if self._measure_head() > bounds.head_bytes:
            raise _RefusedError(
                431, f"the head of the request must have at most {bounds.head_bytes} bytes"
            )
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1") or self.parser.get_method() == b"CONNECT":
            raise _RefusedError(400, "the gateway serves HTTP/1.1, and is not a proxy")
        fields = dict(headers)
        is_repeated = len(fields) < len(headers)
        hosts = [name for name, _ in headers].count(b"host") if is_repeated else 1
        if (b"host" not in fields and version == "1.1") or hosts > 1:
            raise _RefusedError(400, "the request must have one header host")
        if b"transfer-encoding" in fields:
            codings = [value for name, value in headers if name == b"transfer-encoding"]
            if [coding.lower() for coding in codings] != [b"chunked"]:
                raise _RefusedError(501, "the only transfer-encoding supported is chunked")
        if len(self.pipeline) >= bounds.pipelined:
            raise _RefusedError(503, "too many requests are queued on this connection")

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        limit = self.bounds.trailer_bytes
        if self.headers and _measure(self.headers) > limit:
            raise _RefusedError(
                431, f"the trailers of the request must have at most {limit} bytes"
            )
        super().on_message_complete()
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keep_alive

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.in_head and not self.is_closing:
            # a part of the next head arrived before the reply; it is not an idle connection
            self._unset_keepalive_if_required()
            self._wait_for_head()

    # --- rejecting requests

    def _refuse(self, status: int, message: str, *, expects_data: bool = False) -> None:
        """Reply to input that exceeds a limit or is not HTTP, and close the connection.

        If the reply to an earlier request is being sent on the connection, finish that reply and
        send no error.
        """
        running = self.running
        if running is not None and self.is_replying:
            if not running.more_body:
                self.is_deaf = True
                self._keep_alive = False
                self.cycle.keep_alive = False
                self.flow.pause_reading()
                return
            self.disconnect()
        if running is None or running.response_complete or not running.response_started:
            self.writer.write(_refusal(status, message))
        self.close(expects_data=expects_data)

    def _wait_for_head(self) -> None:
        self.set_read_timer(self.bounds.head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        seconds = self.bounds.head_seconds
        if self.is_replying:
            # backpressure may pause reading, so the client may not be at fault
            self._wait_for_head()
        elif self.in_head:
            self._refuse(408, f"the head of the request did not arrive within {seconds:g} seconds")
        else:
            self.close()


class _UntilClose(int):
    """An expected reply length that is never reached, for replies to HTTP/1.0 clients.

    HTTP/1.0 has no chunked encoding, so only the end of the connection marks the end of the reply.
    """

    def __lt__(self, other: object) -> bool:
        return False

    def __sub__(self, other: object) -> _UntilClose:
        return self


def _measure(fields: Fields) -> int:
    return sum(map(len, chain.from_iterable(fields))) + 4 * len(fields)


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
    error = {"message": message, "type": "invalid_request_error", "code": status}
    body = json.dumps({"error": error})
    lines = [
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    if status == 426:
        lines[3] = "connection: upgrade, close"
        lines.append("upgrade: HTTP/1.1")  # RFC 9110, 15.5.22: the reply names what is served
    if status == 503:
        lines.append("retry-after: 1")
    return "\r\n".join([*lines, "", body]).encode()
