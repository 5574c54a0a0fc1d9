"""The HTTP/1.1 protocol of the gateway's server: parse requests, limit them, run them in order.

uvicorn runs the server: its sockets, signals and workers. The protocol is not uvicorn's, for two
reasons. uvicorn's protocol lacks most of the limits of ``Bounds``, which restrict what a client
without a key can cost the gateway: the size of the headers and the time to send them, the size of
trailers, the requests queued on one connection, the number of connections, and the time to read
the reply. And it is slow: with these limits in a subclass, a request on a new connection took about
2,800 Python instructions in the protocol, a quarter of all that the gateway executes for it. This
protocol takes about 1,200.

If a client exceeds a limit, the connection is closed, after a reply with status 431, 408 or 503 if
a reply can still be sent.
"""

from __future__ import annotations

import http
import json
import math
from collections import deque
from urllib.parse import unquote

import httptools

from .http_connection import HttpConnection
from .http_cycle import Cycle

_NEVER = math.inf
_HIGH_WATER = 64 * 1024  # how many bytes of a body may wait until the application reads them
# Headers that need further steps: that of interim responses, and those of a proxy.
_SPECIAL = frozenset({b"expect", b"x-forwarded-for", b"x-forwarded-proto"})


class _RefusedError(Exception):
    """Raised in a callback of the httptools parser to stop the parser."""


class BoundedHttpProtocol(HttpConnection):
    """Parse requests and enforce limits on what a client sends.

    The lifespan state of the application contains the ``Bounds``. Settings of uvicorn that
    ``dragoman serve`` does not use have no effect: its access log, its limit of concurrent
    requests, websockets, and a root path.
    """

    _url = b""
    _fields: list[tuple[bytes, bytes]]  # the headers of the newest request, then its trailers
    _is_special = False  # whether one of these fields is in ``_SPECIAL``
    _may_be_large = False  # whether a head may have more than ``head_bytes``
    _keep_alive = False  # whether the request being received allows keep-alive
    _queue: deque[Cycle] | None = None  # pipelined requests that wait for earlier replies
    _refusal = (400, "the request is not valid HTTP")

    def shutdown(self) -> None:
        """Close the connection after the last reply; uvicorn calls this before it ends."""
        self._keep_alive = False
        if self._is_closing:
            self.transport.close()  # close at once, even if the client is still sending
        elif self.cycle.is_complete:
            self.close()
        else:
            self.cycle.keep_alive = False

    # --- parsing requests

    def data_received(self, data: bytes) -> None:
        size = len(data)
        self.unread += size
        if self._is_deaf:
            self._drop_data()
            return
        self._may_be_large = self.in_message or size > self.server.bounds.head_bytes
        try:
            self.parser.feed_data(data)
        # Upgrades are not supported: answer as if the client had not asked for one, then close the
        # connection.
        except httptools.HttpParserUpgrade:
            self._stop_parsing()
        except httptools.HttpParserError:
            self._refuse(*self._refusal)
        else:
            if self.in_message:
                self._check_unread()

    def _drop_data(self) -> None:
        if self.transport.is_closing():
            return
        if self._is_closing:
            self._discard()
        else:
            self.pause_reading()

    def _check_unread(self) -> None:
        """Reject the request if the parser buffers too many bytes of its headers or trailers."""
        bounds = self.server.bounds
        if not self.in_head:
            if self.unread > bounds.trailer_bytes:
                self._refuse(431, "the trailers of the request are too large")
            return
        if not self.unread:  # the head began with the data that has just arrived
            self.read_by = self.loop.time() + bounds.head_seconds
        if self.unread > bounds.head_bytes:
            self._refuse(431, "the head of the request is too large")
            return
        try:
            self._check_head()
        except _RefusedError:
            self._refuse(*self._refusal)

    def on_message_begin(self) -> None:
        self.in_message = self.in_head = True
        self.unread = 0
        self._url = b""
        self._fields = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in _SPECIAL:
            self._is_special = True
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        server = self.server
        parser = self.parser
        headers = self._fields
        if self._may_be_large or len(headers) > server.bounds.headers:
            self._check_head()
        version = parser.get_http_version()
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        cycle = Cycle(
            self,
            server.app,
            {
                "type": "http",
                "asgi": server.asgi,
                "http_version": version,
                "server": server.address,
                "client": self.client,
                "scheme": server.scheme,
                "method": parser.get_method().decode("ascii"),
                "root_path": "",
                "path": unquote(path) if "%" in path else path,
                "raw_path": url.path,
                "query_string": url.query or b"",
                "headers": headers,
                "state": server.app_state.copy(),
            },
        )
        if self._is_special:
            self._read_special(cycle, headers)
        # A reply that is sent before the body has arrived announces ``connection: close``. The
        # client may then send only a part of the body, and the gateway must not parse that part as
        # the next request. ``on_message_complete`` therefore sets ``keep_alive`` of the cycle.
        self._keep_alive = version == "1.1" and parser.should_keep_alive()
        self._fields = []  # fields after the body are trailers, which are dropped
        if self._running.is_complete:
            self._start(cycle)
        else:
            self._enqueue(cycle)
        self.cycle = cycle
        self.in_head = False
        self.unread = 0
        self.read_by = _NEVER

    def _check_head(self) -> None:
        limit = self.server.bounds.headers
        if len(self._fields) > limit:
            raise self._refused(431, f"the request has more than {limit} headers")
        limit = self.server.bounds.head_bytes
        if len(self._url) + _measure(self._fields) > limit:
            raise self._refused(431, f"the head of the request must have at most {limit} bytes")

    def _read_special(self, cycle: Cycle, headers: list[tuple[bytes, bytes]]) -> None:
        self._is_special = False
        for name, value in headers:
            if name.startswith(b"x-forwarded-"):
                cycle.app = self.server.proxied_app
            elif name == b"expect" and value.lower() == b"100-continue":
                cycle.expects_continue = cycle.scope["http_version"] == "1.1"

    def on_body(self, body: bytes) -> None:
        self.unread = 0
        cycle = self.cycle
        if cycle.is_complete:
            return
        cycle.pieces.append(body)
        cycle.buffered += len(body)
        if cycle.buffered > _HIGH_WATER:
            self.pause_reading()
        if cycle.waiters:
            cycle.wake()

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if self._fields:
            self._check_trailers()
        self.in_message = cycle.more_body = False
        if not cycle.is_started:
            cycle.keep_alive = self._keep_alive
        if cycle.waiters:
            cycle.wake()

    def _check_trailers(self) -> None:
        limit = self.server.bounds.trailer_bytes
        if _measure(self._fields) > limit:
            raise self._refused(
                431, f"the trailers of the request must have at most {limit} bytes"
            )

    # --- running requests one after the other

    def _start(self, cycle: Cycle) -> None:
        self._running = cycle
        task = self.loop.create_task(cycle.run())
        tasks = self.server.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _enqueue(self, cycle: Cycle) -> None:
        """Keep a pipelined request until the earlier ones are answered."""
        if self._queue is None:
            self._queue = deque()
        if len(self._queue) >= self.server.bounds.pipelined:
            raise self._refused(503, "too many requests are queued on this connection")
        self._queue.append(cycle)
        self.pause_reading()

    def finish(self, cycle: Cycle) -> None:
        """Close the connection after a reply, or begin the next request of the connection."""
        self.server.state.total_requests += 1
        if not cycle.keep_alive:
            self.close()
        if self._is_closing or self.transport.is_closing():
            return
        self.resume_reading()
        if self._queue:
            self._start(self._queue.popleft())
        elif self.in_head:
            self.read_by = self.loop.time() + self.server.bounds.head_seconds
        else:
            self.read_by = self.loop.time() + self.server.keep_alive_seconds

    def end_reading(self) -> None:
        """Close a connection on which no request arrives; called at ``read_by``."""
        seconds = self.server.bounds.head_seconds
        if self._is_closing:
            self._stop_lingering()
        elif not self._running.is_complete:
            # backpressure may pause reading, so the client may not be at fault
            self.read_by = self.loop.time() + seconds
        elif self.in_head:
            self._refuse(408, f"the head of the request did not arrive within {seconds:g} seconds")
        else:
            self.close()

    # --- rejecting requests

    def _refused(self, status: int, message: str) -> _RefusedError:
        self._refusal = (status, message)
        return _RefusedError(message)

    def _refuse(self, status: int, message: str, *, expects_data: bool = False) -> None:
        """Reply to input that exceeds a limit or is not HTTP, and close the connection.

        If the reply to an earlier request is being sent on the connection, finish that reply and
        send no error.
        """
        running = self._running
        if not running.is_complete and not running.more_body:
            self._stop_parsing()
            return
        running.disconnect()
        if running.is_complete or not running.is_started:
            self.transport.write(_write_refusal(status, message))
        self.close(expects_data=expects_data)

    def _stop_parsing(self) -> None:
        self._is_deaf = True
        self._keep_alive = False
        self.cycle.keep_alive = False
        self.pause_reading()


def _measure(fields: list[tuple[bytes, bytes]]) -> int:
    return sum([len(name) + len(value) + 4 for name, value in fields])


def _write_refusal(status: int, message: str) -> bytes:
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
