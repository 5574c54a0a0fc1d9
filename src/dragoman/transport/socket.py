"""WebSockets: requests as messages on a connection that stays open.

The messages of a reply are passed on as server-sent events, so that a wire has one decoder for
both. A connection answers one request at a time; it is closed instead of reused after a request
that failed or was cancelled. A reply that refuses the connection is the reply to the request.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from typing import Any, Protocol

from ..errors import (
    InvalidResponseError,
    NetworkError,
    ProviderError,
    StreamInterruptedError,
    advise_import,
    without_frames,
)
from ..wire.codec import HttpRequest
from ..wire.socket import SocketForm
from ..wire.sse import MAX_EVENT
from .clock import Clock
from .connection import ClientConnection
from .contract import HttpStream, Secret
from .frames import FewFrames
from .pool import MAX_IDLE

# How many seconds an idle connection is kept: a session may run tools for minutes.
_IDLE_SECONDS = 300.0
_MISSING = "quirks.socket needs the extra: pip install 'dragoman[socket]'"
# The headers of a posted body, and those that differ from call to call.
_OF_A_CALL = ("content-type", "accept", "traceparent", "tracestate")
_TOO_BIG = 1009  # the code with which a server refuses a message
_NORMAL = 1000

# The library would log the content of messages.
_silent = logging.Logger("websockets")
_silent.disabled = True


class Handshake(Protocol):
    """The exchange that asks a server for a WebSocket."""

    async def __aenter__(self) -> HttpStream:
        """Send the request and return its reply, whose status is 101 if the server agrees."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Close the connection."""
        ...

    def detach(self) -> ClientConnection:
        """Return the connection, which the exchange does not close any more."""
        ...


def make_handshake(request: HttpRequest, key: str) -> HttpRequest:
    """Return the request that asks for a WebSocket at the address of another request."""
    kept = {name: text for name, text in request.headers.items() if name not in _OF_A_CALL}
    asked = {"upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": key}
    return HttpRequest("GET", request.url, {**kept, **asked})


def make_key() -> str:
    """Return a new key of a handshake."""
    with advise_import(_MISSING):
        from websockets.utils import generate_key

    return str(generate_key())


@cache
def find_framing() -> Any:
    """Return the protocol of ``websockets`` with a limit on the frames that it accepts."""
    from websockets.protocol import Protocol as Framing

    class Limited(FewFrames, Framing):  # type: ignore[misc]
        """The framing of a connection, with a limit on its frames."""

    return Limited


def identify(request: HttpRequest, credentials: Mapping[str, Secret]) -> bytes:
    """Return what is equal for requests that may use the same connection."""
    digest = sha256(request.url.encode())
    fields: list[tuple[str, Secret]] = [
        *[(name, Secret(text)) for name, text in request.headers.items()],
        *credentials.items(),
    ]
    for name, value in fields:
        if name.lower() not in _OF_A_CALL:
            digest.update(repr((name.lower(), value.reveal())).encode())
    return digest.digest()


class Socket:
    """A WebSocket on a connection, and the messages that have arrived."""

    def __init__(self, connection: ClientConnection) -> None:
        with advise_import(_MISSING):
            from websockets.protocol import Side, State

        self.connection = connection
        self.messages: deque[bytes] = deque()
        self.opened = connection.now()
        self._held = 0
        self._parts: list[bytes] = []
        self._is_paused = False
        self._open = State.OPEN
        self._framing = find_framing()(
            Side.CLIENT, state=State.OPEN, max_size=MAX_EVENT, logger=_silent
        )
        connection.on_upgraded = self._receive
        for piece in connection.pieces:  # what arrived together with the head
            self._receive(piece)
        connection.pieces.clear()

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent and received."""
        return self.connection.state == "upgraded" and self._framing.state is self._open

    @property
    def code(self) -> int | None:
        """The code with which the server has closed the WebSocket."""
        closed = self._framing.close_rcvd
        return None if closed is None else closed.code

    @property
    def fault(self) -> Exception | None:
        """What was wrong with the bytes that the server sent."""
        fault: Exception | None = self._framing.parser_exc
        return fault

    def send(self, message: bytes) -> None:
        """Send a message; do nothing if the WebSocket is closed, which the caller notices."""
        if self.is_open:
            self._framing.send_text(message)
            self._flush()

    def take(self) -> bytes:
        """Remove and return the first message; resume reading if it was paused."""
        message = self.messages.popleft()
        self._held -= len(message)
        transport = self.connection.transport
        if self._is_paused and self._held < self.connection.limit and transport is not None:
            self._is_paused = False
            transport.resume_reading()
        return message

    def end(self) -> None:
        """Announce the end of the WebSocket, and close the connection."""
        if self.is_open:
            self._framing.send_close(_NORMAL)
            self._flush()
        self.connection.close()

    def _receive(self, data: bytes) -> None:
        self._framing.receive_data(data)
        for frame in self._framing.events_received():
            self._take_frame(frame)
        self._flush()
        if self._framing.state is not self._open:
            self.connection.shut_down()
        transport = self.connection.transport
        if self._held >= self.connection.limit and not self._is_paused and transport is not None:
            self._is_paused = True
            transport.pause_reading()
        if self.messages or not self.is_open:
            self.connection.wake()

    def _take_frame(self, frame: Any) -> None:
        if frame.opcode > 2:  # a ping, which is answered, or the end of the WebSocket
            return
        self._parts.append(bytes(frame.data))
        if frame.fin:
            message = b"".join(self._parts)
            self._parts.clear()
            self._held += len(message)
            self.messages.append(message)

    def _flush(self) -> None:
        transport = self.connection.transport
        for data in self._framing.data_to_send():
            if data and transport is not None:
                transport.write(data)


class IdleSockets:
    """The WebSockets of one transport that wait for a request, newest last."""

    def __init__(self) -> None:
        self._idle: dict[bytes, list[Socket]] = {}

    def take(self, key: bytes, max_age: float) -> Socket | None:
        """Remove and return the newest one that can be used; ``None`` if there is none."""
        idle = self._idle.get(key, [])
        while idle:
            socket = idle.pop()
            connection = socket.connection
            connection.alarm.release()
            # A message without a request would be taken for the reply to the next one.
            is_young = connection.now() - socket.opened < max_age
            if is_young and socket.is_open and not socket.messages:
                return socket
            socket.end()
        self._idle.pop(key, None)
        return None

    def keep(self, key: bytes, socket: Socket) -> None:
        """Keep a WebSocket for the next request, for some minutes."""
        idle = self._idle.setdefault(key, [])
        idle[:] = [each for each in idle if each.is_open]
        if len(idle) >= MAX_IDLE or not socket.is_open:
            socket.end()
            return
        idle.append(socket)
        connection = socket.connection
        connection.alarm.set(connection.now() + _IDLE_SECONDS, socket.end)

    def close(self) -> None:
        """Close all."""
        for idle in self._idle.values():
            for socket in idle:
                socket.connection.alarm.release()
                socket.end()
        self._idle.clear()


class SocketExchange(HttpStream):
    """One request over a WebSocket and its reply, as an asynchronous context manager."""

    def __init__(
        self,
        request: HttpRequest,
        form: SocketForm,
        handshake: Handshake,
        key: str,
        idle: IdleSockets,
        group: bytes,
        clock: Clock,
    ) -> None:
        self.status = 200
        self.headers = {}
        self._request = request
        self._form = form
        self._handshake = handshake
        self._key = key
        self._idle = idle
        self._group = group
        self._clock = clock
        self._is_refused = False
        self._socket: Socket | None = None
        self._error: bytes | None = None  # the body of an error reply
        self._may_stay = False  # whether the connection can be reused

    async def __aenter__(self) -> HttpStream:
        message = self._form.write_request(self._request.body)
        socket = self._idle.take(self._group, self._form.max_age)
        if socket is None:
            reply = await self._handshake.__aenter__()
            if reply.status != 101:
                self._is_refused = True
                if reply.status < 300:
                    await self._handshake.__aexit__(None, None, None)
                    raise InvalidResponseError(
                        f"the server answered with status {reply.status} where a WebSocket was "
                        "asked for; without the quirk socket, requests are posted"
                    )
                return reply
            accepted = reply.headers.get("sec-websocket-accept")
            connection = self._handshake.detach()
            socket = self._socket = Socket(connection)
            self._check_key(accepted)
        else:
            connection = socket.connection
            self._socket = socket
            self._clock.start(connection.close, connection.alarm)
        try:
            socket.send(message)
            await self._read_head(socket)
        except BaseException:
            self._close()
            raise
        return self

    def _check_key(self, accepted: str | None) -> None:
        from websockets.utils import accept_key

        if accepted != accept_key(self._key):
            self._close()
            raise InvalidResponseError("the server's handshake of the WebSocket is not valid")

    async def _read_head(self, socket: Socket) -> None:
        """Wait for the first message, which may be an error reply."""
        await self._wait(socket)
        if not socket.messages:
            if socket.code == _TOO_BIG:
                self.status = 413
                self._error = b""
                return
            raise self._explain(socket, "before the reply")
        event = self._form.read_event(socket.messages[0])
        self.headers = event.headers
        if event.error is not None:
            self.status = event.error.status
            self._error = event.error.body

    async def _wait(self, socket: Socket) -> None:
        """Wait until a message has arrived or the WebSocket is closed."""
        self._clock.reading = True
        try:
            while not socket.messages and socket.is_open:
                await socket.connection.wait()
        finally:
            self._clock.reading = False
        if self._clock.expired is not None:
            raise self._clock.expiry()

    def _explain(self, socket: Socket, when: str) -> ProviderError:
        """Return the error for a missing message."""
        if socket.fault is not None:
            invalid = InvalidResponseError("what the server sent is not a valid WebSocket")
            invalid.__cause__ = without_frames(socket.fault)
            return invalid
        kind = NetworkError if when == "before the reply" else StreamInterruptedError
        code = "" if socket.code is None else f", with code {socket.code}"
        lost = kind(f"the connection was lost {when}{code}")
        failure = socket.connection.failure
        lost.__cause__ = failure and without_frames(failure)
        return lost

    async def receive(self) -> bytes:
        if self._error is not None:
            body, self._error = self._error, b""
            self.over = True
            return body
        socket = self._socket
        if socket is None or self.over:
            return b""
        await self._wait(socket)
        if not socket.messages:
            raise self._explain(socket, "in the middle of the reply")
        events = []
        while socket.messages and not self.over:
            message = socket.take()
            event = self._form.read_event(message)
            self._may_stay = event.is_last and not event.is_failure
            self.over = event.is_last
            events.append(b"data: " + b" ".join(message.splitlines()) + b"\n\n")
        return b"".join(events)

    def touch(self) -> None:
        self._clock.touch()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if self._is_refused:
            await self._handshake.__aexit__(kind, error, trace)
            return
        socket = self._socket
        if kind is None and self._may_stay and socket is not None:
            self._socket = None
            self._clock.stop()
            self._idle.keep(self._group, socket)
        self._close()

    def _close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            self._clock.stop()
            socket.end()

    def __del__(self) -> None:
        # The caller has dropped the reply without closing it.
        if self._socket is None:
            return
        clock = self._clock
        if clock.loop.is_closed() or clock.is_in_loop():
            self._close()
        else:
            with suppress(RuntimeError):  # another thread may have just closed the event loop
                clock.loop.call_soon_threadsafe(self._close)
