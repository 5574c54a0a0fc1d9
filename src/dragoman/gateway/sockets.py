"""WebSockets: each message of a client is a request, answered like one that is posted.

The messages of a lane are answered one after the other, those of different lanes at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import OverloadedError, ProviderError, RateLimitError
from ..wire import HttpReply, ServerCodec
from ..wire.socket import SocketCodec
from ..wire.sse import SseDecoder
from .access import Scope, Service, read_headers
from .exchange import ChatHandler
from .interruption import DISCONNECT, DRAIN, Receive
from .recent_responses import RecentOfLane
from .request_account import Account
from .writing import Send

_DONE = 1000
_REFUSED = 1008  # the key is not accepted any more
_RESTART = 1012


class SocketHandler:
    """Serve the WebSockets of one wire."""

    def __init__(self, service: Service, front: ServerCodec) -> None:
        assert front.socket is not None
        self._service = service
        self._front = front
        self._socket = front.socket
        self._chat = ChatHandler(service, front)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept a connection if its key is known, and answer its messages until it ends."""
        await receive()
        try:
            if self._service.draining:
                raise OverloadedError("the gateway is shutting down", retry_after=1)
            self._service.identify(scope, read_headers(scope), self._front)
        except ProviderError as error:
            await self._refuse(error, scope, send)
            return
        await send({"type": "websocket.accept"})
        connection = _Connection(
            self._service, self._front, self._socket, self._chat, scope, receive, send
        )
        await connection.serve()

    async def _refuse(self, error: ProviderError, scope: Scope, send: Send) -> None:
        account = Account(self._service, self._front.wire)
        reply = self._front.error(error)
        account.error = error
        account.status = reply.status
        account.length = len(reply.body)
        account.close()
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close"})
            return
        headers = {**reply.headers, "content-length": str(len(reply.body))}
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        start = {"type": "websocket.http.response.start", "status": reply.status}
        await send({**start, "headers": pairs})
        await send({"type": "websocket.http.response.body", "body": reply.body})


class _Waiting(NamedTuple):
    lane: str
    message: bytes


class _Connection:
    """A connection: the messages that are answered, and those that wait for their lane."""

    def __init__(
        self,
        service: Service,
        front: ServerCodec,
        socket: SocketCodec,
        chat: ChatHandler,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._service = service
        self._front = front
        self._socket = socket
        self._chat = chat
        self._scope = scope
        self._receive = receive
        self._send = send
        self._lanes: set[str] = set()
        self._waiting: deque[_Waiting] = deque()
        self._calls: dict[str, _Call] = {}  # what is being answered, by lane
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: ProviderError | None = None  # why the connection ends soon
        self._is_closed = False

    async def serve(self) -> None:
        """Answer messages until the client disconnects or the connection is closed."""
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(self._socket.max_age, self._expire)
        register = self._scope.get("extensions", {}).get(DRAIN)
        if register is not None:
            register(self._drain)
        try:
            while (message := await self._receive())["type"] != "websocket.disconnect":
                text = message.get("text")
                data = message["bytes"] if text is None else text.encode()
                await self._take(data)
        except asyncio.CancelledError:
            for task in self._tasks:
                task.cancel()
            raise
        finally:
            self._is_closed = True
            alarm.cancel()
            while self._waiting:
                self._service.release(len(self._waiting.popleft().message))
            for call in self._calls.values():
                call.disconnect()
            if self._tasks:
                await asyncio.wait(self._tasks)
            for lane in self._lanes:
                self._service.recent.drop(self, lane)

    async def say(self, message: bytes) -> None:
        """Send a message; do nothing if the client has disconnected."""
        if self._is_closed:
            return
        with contextlib.suppress(OSError):  # ASGI's error for a client that has disconnected
            await self._send({"type": "websocket.send", "text": message.decode()})

    async def close(self, code: int) -> None:
        """Close the connection."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(OSError):
            await self._send({"type": "websocket.close", "code": code})

    # --- private methods

    async def _take(self, message: bytes) -> None:
        """Answer a message, at once or after the earlier ones of its lane."""
        lane = ""
        try:
            lane = self._socket.read_lane(message)
            self._check(lane)
            self._service.hold(len(message))
        except ProviderError as error:
            await self._refuse(error, lane)
            await asyncio.sleep(0)  # other clients are served while one sends what is refused
            return
        self._lanes.add(lane)
        self._waiting.append(_Waiting(lane, message))
        self._start()

    def _check(self, lane: str) -> None:
        if self._end is not None:
            raise self._end
        if lane not in self._lanes and len(self._lanes) >= self._socket.max_lanes:
            raise self._socket.too_many_lanes()
        if len(self._waiting) >= self._service.bounds.pipelined:
            raise RateLimitError("too many requests wait on this connection", retry_after=1)

    def _start(self) -> None:
        """Start to answer the waiting messages whose lanes are free."""
        for each in list(self._waiting):
            is_free = each.lane not in self._calls
            if is_free and len(self._calls) < self._socket.max_running:
                self._waiting.remove(each)
                self._service.release(len(each.message))
                call = _Call(self, self._socket, each)
                self._calls[each.lane] = call
                self._run(self._answer(call))

    def _run(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: _Call) -> None:
        recent = RecentOfLane(self._service.recent, self, call.lane, self._lanes)
        try:
            await self._chat.answer_message(
                call.make_scope(self._scope), call.receive, call.send, recent
            )
        finally:
            del self._calls[call.lane]
        if call.status == 401:
            await self.close(_REFUSED)
        self._start()
        await self._close_if_idle()

    async def _refuse(self, error: ProviderError, lane: str) -> None:
        await self.say(write_reply(self._socket, self._front.error(error), lane))

    def _expire(self) -> None:
        self._end_soon(self._socket.too_old())

    def _drain(self) -> None:
        self._end_soon(OverloadedError("the gateway is shutting down", retry_after=1))

    def _end_soon(self, reason: ProviderError) -> None:
        """Close the connection after the requests that are being answered."""
        self._end = reason
        self._run(self._close_if_idle())

    async def _close_if_idle(self) -> None:
        if self._end is None:
            return
        while self._waiting:
            each = self._waiting.popleft()
            self._service.release(len(each.message))
            await self._refuse(self._end, each.lane)
        if self._calls:
            return
        is_drained = isinstance(self._end, OverloadedError)
        if not is_drained:
            await self._refuse(self._end, "")
        await self.close(_RESTART if is_drained else _DONE)


class _Call:
    """Act as the HTTP client of a message: provide the body, and pass the reply on in messages."""

    def __init__(self, connection: _Connection, socket: SocketCodec, asked: _Waiting) -> None:
        self.lane = asked.lane
        self.status = 0
        self._connection = connection
        self._socket = socket
        self._message: bytes | None = asked.message
        self._decoder = SseDecoder()
        self._headers: Mapping[str, str] = {}
        self._error = b""
        self._has_begun = False
        self._is_ended = False
        self._gone = asyncio.Event()
        self._on_disconnect: Callable[[], None] | None = None

    def make_scope(self, scope: Scope) -> Scope:
        """Return the scope of the request, given that of the connection."""
        kept = [
            (name, value)
            for name, value in scope["headers"]
            if name not in (b"content-type", b"content-length", b"content-encoding")
        ]
        return {
            **scope,
            "type": "http",
            "method": "POST",
            "headers": [*kept, (b"content-type", b"application/json")],
            "extensions": {DISCONNECT: self._notify},
        }

    def _notify(self, call: Callable[[], None] | None) -> None:
        self._on_disconnect = call
        if call is not None and self._gone.is_set():
            asyncio.get_running_loop().call_soon(call)

    def disconnect(self) -> None:
        """End the call because its client has disconnected."""
        self._gone.set()
        if self._on_disconnect is not None:
            self._on_disconnect()

    async def receive(self) -> dict[str, Any]:
        """Return the request body on the first call; then wait until the client disconnects."""
        message = self._message
        self._message = None
        if message is not None:
            return {"type": "http.request", "body": message, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Mapping[str, Any]) -> None:
        """Pass a part of the reply on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._headers = {
                name.decode("latin-1"): value.decode("latin-1")
                for name, value in message["headers"]
            }
            return
        body = message.get("body", b"")
        if self.status != 200:
            self._error += body
            if not message.get("more_body", False):
                reply = HttpReply(self.status, self._headers, self._error)
                await self._connection.say(write_reply(self._socket, reply, self.lane))
            return
        for frame in self._decoder.feed(body):
            # A failed stream ends with two events, of which clients expect only the first here.
            if self._is_ended:
                continue
            self._is_ended = frame.event in self._socket.last_events
            headers = None if self._has_begun else self._headers
            self._has_begun = True
            await self._connection.say(self._socket.write_event(frame.data, self.lane, headers))


def write_reply(socket: SocketCodec, reply: HttpReply, lane: str) -> bytes:
    """Return the message for an error reply."""
    return socket.write_error(reply.status, reply.headers, reply.body, lane)
