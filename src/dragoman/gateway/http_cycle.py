"""One HTTP request and its reply: the messages of the application, and the bytes of the reply."""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
App = Callable[
    [Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]
Headers = Iterable[tuple[bytes, bytes]]

# The logger of uvicorn, so that its configuration applies to these messages too.
_log = logging.getLogger("uvicorn.error")


def _write_status(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


_STATUS_LINES = {status: _write_status(status) for status in range(200, 600)}
# characters of a header name (RFC 9110, 5.6.2)
_NAME = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_VALUE = bytes([9, *range(32, 127), *range(128, 256)])  # bytes that a header value may contain
_LENGTH, _ENCODING, _CONNECTION = b"content-length: ", b"transfer-encoding: ", b"connection: "
_FRAMING = frozenset({_LENGTH, _ENCODING, _CONNECTION})
# The first part of a header line by the name that an application uses. Nearly all replies have
# the same few names, so the names are checked once.
_line_starts: dict[bytes, bytes] = {}
_MOST_NAMES = 256
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = b"connection: close\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
_FAILED = b"Internal Server Error"
_FAILURE = b"content-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\n" + _CLOSE + b"\r\n"
_COPIED = 64 * 1024  # the largest part of a body that is copied, to be sent with the head


class Server(Protocol):
    """What a cycle uses of its server."""

    def common_lines(self) -> bytes: ...


class Connection(Protocol):
    """What a cycle uses of its connection."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    is_reading_paused: bool
    is_writing_paused: bool

    @property
    def server(self) -> Server: ...
    def resume_reading(self) -> None: ...
    def limit_send_buffer(self) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...
    def finish(self, cycle: Cycle) -> None: ...


class Cycle:
    """One request and its reply.

    ``receive`` and ``send`` are the callables that ASGI defines. The head of the reply is sent
    with the first part of the body: this saves a write, and if the application fails before, the
    client receives status 500.
    """

    more_body = True  # whether the body of the request is incomplete
    buffered = 0  # number of bytes of the body that the application has not read
    is_started = False  # whether the application has begun the reply
    is_complete = False  # whether the complete reply is written
    is_disconnected = False
    keep_alive = False
    expects_continue = False
    _is_read = False  # whether the application has received the end of the body
    _is_written = False  # whether a part of the reply is written
    _is_chunked = False
    _head = b""  # the head of the reply, until it is written
    _has_body = True  # false for the reply to a HEAD request
    _is_closing = False  # whether the application sends the header ``connection: close``
    _on_disconnect: Callable[[], None] | None = None
    _left: int | None = None  # number of bytes that the body of the reply still needs

    def __init__(self, connection: Connection, app: App, scope: dict[str, Any]) -> None:
        self.connection = connection
        self.app = app
        self.scope = scope
        self.pieces: list[bytes] = []
        self.waiters: list[asyncio.Future[None]] = []

    async def run(self) -> None:
        """Run the application; if it fails before it replies, reply with status 500."""
        try:
            await self.app(self.scope, self.receive, self.send)
        except BaseException as error:
            _log.error("Exception in ASGI application\n", exc_info=error)
            self._fail()
        else:
            if not self.is_complete and not self.is_disconnected:
                _log.error("ASGI callable returned without completing the reply.")
                self._fail()

    # --- the request

    async def receive(self) -> Message:
        """Return the next part of the body; after the last part, wait for the disconnection."""
        if self.expects_continue:
            self._continue()
        if self.connection.is_reading_paused and not self.is_complete:
            self.connection.resume_reading()
        while not (self.is_complete or self.is_disconnected):
            if self.pieces or not (self.more_body or self._is_read):
                body = b"".join(self.pieces)
                self.pieces = []
                self.buffered = 0
                self._is_read = not self.more_body
                return {"type": "http.request", "body": body, "more_body": self.more_body}
            waiter: asyncio.Future[None] = self.connection.loop.create_future()
            self.waiters.append(waiter)
            try:
                await waiter
            finally:
                self.waiters.remove(waiter)
        return {"type": "http.disconnect"}

    def _continue(self) -> None:
        """Send the interim response for which the client waits before it sends the body."""
        self.expects_continue = False
        if not self.connection.transport.is_closing():
            self.connection.transport.write(_CONTINUE)

    def wake(self) -> None:
        """Resume the calls of ``receive`` that wait."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def disconnect(self) -> None:
        """Mark the client as disconnected, unless the reply is complete."""
        if self.is_complete:
            return
        self.is_disconnected = True
        self.wake()
        if self._on_disconnect is not None:
            self._on_disconnect()

    def call_on_disconnect(self, call: Callable[[], None] | None) -> None:
        """Call a function when the client disconnects; with ``None``, call none.

        If the client has already disconnected, the function is called in the next iteration of
        the event loop.
        """
        self._on_disconnect = call
        if call is None:
            return
        if self.is_disconnected:
            self.connection.loop.call_soon(call)
        elif self.connection.is_reading_paused:
            self.connection.resume_reading()  # a disconnection is noticed only while reading

    # --- the reply

    async def send(self, message: Message) -> None:
        """Write a part of the reply; wait first while the client is slow to read."""
        if self.connection.is_writing_paused:
            await self.connection.drain()
        if self.is_disconnected:
            return
        kind = message["type"]
        if not self.is_started:
            if kind != "http.response.start":
                raise RuntimeError(f"a reply begins with http.response.start, not {kind}")
            self._begin(message["status"], message.get("headers", ()))
        elif kind != "http.response.body" or self.is_complete:
            raise RuntimeError(f"the message {kind} is not valid at this point of a reply")
        else:
            self._write(message.get("body", b""), message.get("more_body", False))

    def _begin(self, status: int, headers: Headers) -> None:
        """Build the head of the reply."""
        self._left, self._is_chunked = None, False
        fields: list[bytes] = []
        for name, value in headers:
            start = _line_starts.get(name) or _start_line(name)
            if start in _FRAMING:
                self._read_framing(start, value)
            fields += (start, value, b"\r\n")
        block = b"".join(fields)
        # Each of the three parts of a header adds two control characters, those of its line end.
        # A value with a line end would add a header, or end the head (response splitting).
        if len(block.translate(None, _VALUE)) * 3 != len(fields) * 2:
            raise RuntimeError("a header value of the reply contains control characters")
        ends = b"\r\n"
        if self.scope["method"] == "HEAD":
            self._has_body = self._is_chunked = False
        elif self._left is None and not self._is_chunked:
            if status in (204, 304):
                self._left = 0
            elif self.scope["http_version"] == "1.1":
                self._is_chunked = True
                ends = _CHUNKED + ends
        if not self.keep_alive and not self._is_closing:
            ends = _CLOSE + ends
        common = self.connection.server.common_lines()
        self._head = b"".join([_STATUS_LINES[status], common, block, ends])
        self.is_started = True
        self.expects_continue = False

    def _read_framing(self, start: bytes, value: bytes) -> None:
        if start == _LENGTH:
            if not self._is_chunked:
                self._left = int(value)
        elif start == _ENCODING:
            if value.lower() == b"chunked":
                self._left, self._is_chunked = None, True
        elif b"close" in [token.strip() for token in value.lower().split(b",")]:
            self.keep_alive, self._is_closing = False, True

    def _write(self, body: bytes, more_body: bool) -> None:
        """Write a part of the body, after the head if it is still pending."""
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more_body:
                data += b"0\r\n\r\n"
        elif self._has_body:
            if self._left is not None:
                self._left -= len(body)
                if self._left < 0 or (self._left and not more_body):
                    raise RuntimeError("the body of the reply differs from its content-length")
            data = body
        else:
            data = b""
        if not self._is_written:
            data = self._add_head(data, more_body)
        self.connection.transport.write(data)
        if not more_body:
            self._complete()

    def _add_head(self, data: bytes, more_body: bool) -> bytes:
        """Return the head with the first data; write the head first if the data is long."""
        self._is_written = True
        head, self._head = self._head, b""
        is_long = len(data) > _COPIED
        if is_long or more_body:
            self.connection.limit_send_buffer()
        if is_long:
            self.connection.transport.write(head)
            return data
        return head + data

    def _complete(self) -> None:
        self.is_complete = True
        self.wake()
        self.connection.finish(self)

    def _fail(self) -> None:
        """Reply with status 500; if a part of the reply is written, close the connection."""
        if self.is_complete or self.is_disconnected:
            return
        self.keep_alive = False
        if self._is_written:
            self.is_disconnected = True
            self.connection.close()
            return
        self.is_started = True
        body = b"" if self.scope["method"] == "HEAD" else _FAILED
        self.connection.transport.write(
            b"".join([_STATUS_LINES[500], self.connection.server.common_lines(), _FAILURE, body])
        )
        self._complete()


def _start_line(name: bytes) -> bytes:
    """Return the first part of a header line; raise an exception if the name is invalid."""
    if not name or not _NAME.issuperset(name):
        raise RuntimeError(f"the reply has a header whose name is invalid: {name!r}")
    start = name.lower() + b": "
    if len(_line_starts) < _MOST_NAMES:
        _line_starts[name] = start
    return start
