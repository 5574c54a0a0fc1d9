"""A connection to Redis, for the limiters, circuit breakers and caches that processes share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import advise_import

if TYPE_CHECKING:
    from redis.asyncio import Redis

SECONDS = 5.0  # the default timeout of one command
# Lua code that sets ``now`` by the clock of Redis, so that the clocks of the machines need not
# agree. Numbers are to be written with 17 digits: Lua writes 14 by default, which truncates a
# timestamp to a tenth of a millisecond.
NOW = """
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
"""


class RedisServer:
    """A client of Redis, with a timeout for each script, and scripts that run in the background.

    ``client`` is a URL or a ``redis.asyncio.Redis``; ``close()`` closes only a client that was
    created from a URL. ``user`` is the name of the class that needs Redis, for error messages.
    """

    def __init__(
        self,
        client: str | Redis,
        user: str,
        *,
        seconds: float | None = None,
        max_connections: int | None = None,
    ) -> None:
        with advise_import(f"{user} needs the redis package: pip install 'dragoman[redis]'"):
            import redis.asyncio  # lazy import: an optional dependency
        self.errors = (redis.RedisError, OSError)  # asyncio's TimeoutError is an OSError
        self.seconds = seconds or SECONDS  # the timeout of one command
        self._owned = isinstance(client, str)
        self.client: Redis
        if isinstance(client, str):
            self.client = _open_client(client, self.seconds, max_connections)
        else:
            self.client = client
        self._tasks: set[asyncio.Task[Any]] = set()

    def script(self, code: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Return a function that runs a Lua script atomically with Redis keys and arguments."""
        registered = self.client.register_script(code)

        async def run(keys: Sequence[str], *arguments: Any) -> Any:
            async with asyncio.timeout(self.seconds):
                return await registered(keys=list(keys), args=list(arguments))

        return run

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` in a task that ``close`` waits for."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Wait for the tasks; close the connection if this object opened it."""
        while self._tasks:  # the callback of a finished task may start another task
            await asyncio.wait(self._tasks)
        if self._owned:
            await self.client.aclose()


def decode(found: Sequence[Any]) -> list[str]:
    """Return the strings of a script's result; they are bytes unless the client decodes them."""
    return [each.decode() if isinstance(each, bytes) else each for each in found]


def _open_client(url: str, seconds: float, max_connections: int | None) -> Redis:
    """Return a Redis client.

    Raise ``ValueError`` for an invalid URL. The message does not contain the URL, since it may
    include a password.
    """
    import redis.asyncio

    timeouts: Any = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
    # Do not keep the library's error as the context of this error: it quotes the part of the URL
    # that it takes for the port, which may be a part of the password ("a" in "redis://:a/b@host").
    with suppress(ValueError):
        if max_connections is None:
            return redis.asyncio.Redis.from_url(url, **timeouts)
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url, max_connections=max_connections, timeout=seconds, **timeouts
        )
        return redis.asyncio.Redis.from_pool(pool)
    raise ValueError(
        "the Redis URL cannot be read; characters of a password such as % @ / : # must be "
        "percent-encoded"
    )
