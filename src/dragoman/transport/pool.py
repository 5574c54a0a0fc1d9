"""The connection pool: idle connections by origin, newest first, with a keep-alive limit."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from .connection import ClientConnection

# How many seconds an idle connection is kept. The limit must be shorter than the server's, or the
# server may close the connection while a request is being sent. uvicorn, node and llama.cpp close
# idle connections after 5 s, the load balancers of hosted APIs after a minute.
PLAIN_SECONDS = 4.0
TLS_SECONDS = 50.0
# The maximum number of idle connections to one origin.
MAX_IDLE = 100
# Sizes in bytes: the size of one read, and how much one stream and all streams together may
# buffer. With more streams, each stream may buffer less.
_READ = 64 * 1024
_AHEAD_EACH = 32 * 1024
_AHEAD_ALL = 256 * 1024
_AHEAD_LEAST = 4 * 1024


def share_ahead(streams: int) -> int:
    """Return how many bytes each stream may buffer if this number of streams is open."""
    return max(_AHEAD_LEAST, min(_AHEAD_EACH, _AHEAD_ALL // max(1, streams)))


Dial = Callable[[Callable[[], ClientConnection]], Awaitable[ClientConnection]]


class Pool:
    """The connections of one transport in one event loop.

    ``limit`` is the maximum number of connections to one origin; ``None`` means unlimited.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int | None = None) -> None:
        self.loop = loop
        self.streams = 0  # number of open streams
        self.is_closed = False
        self._limit = limit
        self._buffer = memoryview(bytearray(_READ))
        self._all: set[ClientConnection] = set()
        self._idle: dict[str, list[ClientConnection]] = {}
        # for each origin, the number of connections that are open or being opened
        self._open: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of open connections, and how many of them are idle."""
        return len(self._all), sum(map(len, self._idle.values()))

    def share(self) -> int:
        """Return how many bytes each of the open streams may buffer."""
        return share_ahead(self.streams)

    def take(self, key: str) -> ClientConnection | None:
        """Remove and return the newest idle connection to an origin; ``None`` if none is idle."""
        idle = self._idle.get(key)
        while idle:
            connection = idle.pop()
            if connection.expires > self.loop.time() and connection.is_healthy():
                return connection
            connection.shut_down()
        return None

    async def open(self, key: str, dial: Dial, buffer: int = _READ) -> ClientConnection:
        """Open a connection; if the origin's limit is reached, wait until another is released."""
        while self._limit is not None and self._open[key] >= self._limit:
            await self._queue(key)
            if (idle := self.take(key)) is not None:
                return idle
        self._open[key] += 1
        try:
            connection = await dial(
                lambda: ClientConnection(self.loop, self, key, self._buffer[:buffer])
            )
        except BaseException:
            self._leave(key)
            raise
        if connection.transport is None:
            self._leave(key)
        else:
            self._all.add(connection)
            if self.is_closed:
                connection.close()
        return connection

    def release(self, connection: ClientConnection) -> None:
        """Return a connection to the pool after its reply; close it if it cannot be reused."""
        key = connection.key
        idle = self._idle.get(key)
        if idle is None:
            idle = self._idle[key] = []
        if self.is_closed or len(idle) >= MAX_IDLE or not connection.rest():
            connection.close()
            return
        seconds = TLS_SECONDS if key.startswith("https:") else PLAIN_SECONDS
        connection.expires = self.loop.time() + seconds
        idle.append(connection)
        if self._timer is None:
            self._timer = self.loop.call_at(connection.expires, self._expire)
        if self._waiting:
            self._call_next(key)

    def close(self, error: Exception | None = None) -> None:
        """Close all connections at once; tasks that wait for a reply receive ``error``."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._all):
            if error is not None and connection.state == "idle":
                connection.shut_down()
            else:
                connection.fail(error or ConnectionAbortedError("the connection was closed"))
        self._idle.clear()

    def drop(self) -> None:
        """Close all connections, from any thread, and even after the event loop was closed."""
        try:
            is_here = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_here = False
        if is_here or not self.loop.is_running():
            self.close()
        else:
            with suppress(RuntimeError):  # the event loop may be closed in the meantime
                self.loop.call_soon_threadsafe(self.close)

    # --- methods that connections call

    def handle_loss(self, connection: ClientConnection) -> None:
        if connection in self._all:
            self._all.discard(connection)
            idle = self._idle.get(connection.key, [])
            if connection in idle:
                idle.remove(connection)
            self._leave(connection.key)

    def handle_drain(self, connection: ClientConnection) -> None:
        self.release(connection)

    # --- private methods of the connection pool

    def _expire(self) -> None:
        """Close the connections that have been idle for too long."""
        self._timer = None
        now = self.loop.time()
        soonest: float | None = None
        for key, idle in list(self._idle.items()):
            for connection in [each for each in idle if each.expires <= now]:
                idle.remove(connection)
                connection.shut_down()
            if idle:
                soonest = min(idle[0].expires, soonest or idle[0].expires)
            else:
                del self._idle[key]
        if soonest is not None:
            self._timer = self.loop.call_at(soonest, self._expire)

    async def _queue(self, key: str) -> None:
        turn = self.loop.create_future()
        queue = self._waiting.setdefault(key, deque())
        queue.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._call_next(key)  # this task was woken but is cancelled, so wake the next one
            raise
        finally:
            if turn in queue:
                queue.remove(turn)
            if not queue:
                self._waiting.pop(key, None)

    def _call_next(self, key: str) -> None:
        queue = self._waiting.get(key)
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _leave(self, key: str) -> None:
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]
        if self._waiting:
            self._call_next(key)
