"""The open connections of a transport: idle ones by origin, the youngest first, each for a limited time."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from .connection import Connection

# Shorter than the server's own patience, or a request meets a closing door: uvicorn, node and llama.cpp
# wait 5 s, the load balancers in front of hosted APIs a minute.
PLAIN_SECONDS = 4.0
TLS_SECONDS = 50.0
# How many idle connections to one origin are kept.
MAX_IDLE = 100
# What one connection reads at once, and how much one stream and all of a pool together may run ahead of
# their readers: the more streams there are, the less each.
_READ = 64 * 1024
_AHEAD_EACH = 32 * 1024
_AHEAD_ALL = 256 * 1024
_AHEAD_LEAST = 4 * 1024


def share_ahead(streams: int) -> int:
    """Return how many bytes each of so many streams may run ahead of its reader."""
    return max(_AHEAD_LEAST, min(_AHEAD_EACH, _AHEAD_ALL // max(1, streams)))


Dial = Callable[[Callable[[], Connection]], Awaitable[Connection]]


class Pool:
    """The connections of one transport in one event loop. ``limit`` bounds those to one origin, if it is not None."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int | None = None) -> None:
        self.loop = loop
        self.streams = 0  # now open
        self.is_closed = False
        self._limit = limit
        self._buffer = memoryview(bytearray(_READ))
        self._all: set[Connection] = set()
        self._idle: dict[str, list[Connection]] = {}
        self._open: Counter[str] = Counter()  # with those that are being opened
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """How many connections are open, and how many of them are idle."""
        return len(self._all), sum(map(len, self._idle.values()))

    def share(self) -> int:
        """Return how many bytes one more stream may run ahead of its reader."""
        return share_ahead(self.streams)

    def take(self, key: str) -> Connection | None:
        """Return an idle connection, the one that was used last."""
        idle = self._idle.get(key)
        while idle:
            connection = idle.pop()
            if connection.expires > self.loop.time() and connection.is_healthy():
                return connection
            connection.shut_down()
        return None

    async def open(self, key: str, dial: Dial, buffer: int = _READ) -> Connection:
        """Return a new connection, or one that became idle while this origin had as many as it may have."""
        while self._limit is not None and self._open[key] >= self._limit:
            await self._queue(key)
            if (idle := self.take(key)) is not None:
                return idle
        self._open[key] += 1
        try:
            connection = await dial(lambda: Connection(self.loop, self, key, self._buffer[:buffer]))
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

    def release(self, connection: Connection) -> None:
        """Take back a connection whose reply is complete, or close it."""
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
        """Close all connections at once; those that wait get ``error``."""
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
        """Close all connections from whichever thread, or after the event loop was closed."""
        try:
            is_here = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_here = False
        if is_here or not self.loop.is_running():
            self.close()
        else:
            with suppress(RuntimeError):  # closed meanwhile
                self.loop.call_soon_threadsafe(self.close)

    # for the connections

    def handle_loss(self, connection: Connection) -> None:
        if connection in self._all:
            self._all.discard(connection)
            idle = self._idle.get(connection.key, [])
            if connection in idle:
                idle.remove(connection)
            self._leave(connection.key)

    def handle_drain(self, connection: Connection) -> None:
        self.release(connection)

    # inside

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
                self._call_next(key)  # it was our turn, and we leave
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
