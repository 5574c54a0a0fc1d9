"""Rate limits in Redis that many processes share.

Lua scripts change the token buckets and slots atomically.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self

from ..messages import new_ulid
from .layer import check_number
from .ratelimit import Lease, Limiter
from .redis import NOW, RedisServer

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger("dragoman")

# the common beginning of both scripts
_PRELUDE = (
    NOW
    + """
local function level(name, rate, capacity)
  local kept = redis.call('HMGET', KEYS[1], name, name .. '_at')
  if not kept[1] then return capacity end
  return math.min(capacity, tonumber(kept[1]) + math.max(0, now - tonumber(kept[2])) * rate)
end
local function keep(name, value, rate, capacity)
  redis.call('HSET', KEYS[1], name, string.format('%.17g', value), name .. '_at', string.format('%.17g', now))
  local full = math.ceil((capacity - value) / rate) + 60
  if redis.call('TTL', KEYS[1]) < full then redis.call('EXPIRE', KEYS[1], full) end
end
"""
)

# Lua script that reserves capacity. ARGV: lease id, duration of the lease in seconds, number of
# slots or 0; then for each bucket: name, rate, capacity, cost.
_RESERVE = (
    _PRELUDE
    + """
local slots = tonumber(ARGV[3])
if slots > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  if redis.call('ZCARD', KEYS[2]) >= slots then return '-1' end
end
local wait = 0
for at = 4, #ARGV, 4 do
  local rate, capacity, cost = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local lacking = math.min(cost, capacity) - level(ARGV[at], rate, capacity)
  if lacking > capacity * 1e-9 then wait = math.max(wait, lacking / rate) end
end
if wait > 0 then return string.format('%.17g', wait) end
for at = 4, #ARGV, 4 do
  local rate, capacity, cost = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  keep(ARGV[at], level(ARGV[at], rate, capacity) - cost, rate, capacity)
end
if slots > 0 then
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), ARGV[1])
  redis.call('EXPIRE', KEYS[2], math.ceil(tonumber(ARGV[2])) + 60)
end
return '0'
"""
)

# Lua script that releases a lease. ARGV: lease id; then for each bucket: name, rate, capacity,
# amount to add to the bucket (a negative amount is subtracted).
_SETTLE = (
    _PRELUDE
    + """
redis.call('ZREM', KEYS[2], ARGV[1])
for at = 2, #ARGV, 4 do
  local rate, capacity, given = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  keep(ARGV[at], math.min(capacity, level(ARGV[at], rate, capacity) + given), rate, capacity)
end
return '0'
"""
)


class LimiterUnavailableError(RuntimeError):
    """Raised when Redis is unavailable, so that the rate limit cannot be checked.

    The provider has not failed.
    """


class RedisLimiter(Limiter):
    """A ``Limiter`` that many processes share; limiters with the same ``key`` count together.

    ``client`` is a URL or a ``redis.asyncio.Redis``; ``close()`` closes only a client that was
    created from a URL. Within a process, calls are served in order (FIFO). Between processes the
    order is undefined, since each process polls every ``poll_seconds``. If a process dies, its
    slots are freed after ``lease_seconds``, which must be longer than any call. If Redis fails,
    calls fail with ``LimiterUnavailableError`` instead of running without a limit.
    """

    def __init__(
        self,
        client: str | Redis,
        key: str,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        max_concurrency: int | None = None,
        *,
        burst_seconds: float = 60.0,
        lease_seconds: float = 900.0,
        poll_seconds: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(
            requests_per_minute, tokens_per_minute, max_concurrency,
            burst_seconds=burst_seconds, clock=clock, sleep=sleep,
        )  # fmt: skip
        if not isinstance(key, str) or not key:
            raise ValueError(f"RedisLimiter: key must be a name, not {key!r}")
        check_number("RedisLimiter", "lease_seconds", lease_seconds, least=0.001, most=1e6)
        check_number("RedisLimiter", "poll_seconds", poll_seconds, least=0.001, most=60)
        self._server = RedisServer(client, "RedisLimiter")
        # The braces are a hash tag: both Redis keys are on the same node of a Redis cluster.
        self._keys = [f"dragoman:{{{key}}}:levels", f"dragoman:{{{key}}}:leases"]
        self._reserving = self._server.script(_RESERVE)
        self._settling = self._server.script(_SETTLE)
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds

    async def settle(self, lease: Lease, spent: int | None) -> None:
        self._running -= 1
        self._wake()
        # Release the lease in a separate task, so that its slot is freed even if the caller is
        # cancelled.
        await asyncio.shield(self._server.start(self._give_back(lease, spent)))

    async def close(self) -> None:
        """Wait until pending leases are settled; close the connection if this object opened it."""
        await self._server.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- private methods of the limiter in Redis

    async def _reserve(self, lease: Lease) -> float:
        asking = self._server.start(self._ask(lease))
        try:
            wait: float = await asyncio.shield(asking)
        except asyncio.CancelledError:
            # Redis may still grant the lease after the caller was cancelled; if it does, release
            # it.
            asking.add_done_callback(lambda asked: self._undo(asked, lease))
            raise
        except LimiterUnavailableError as error:
            # Fail the other waiting calls too; otherwise each of them would wait for its own
            # timeout.
            for turn in self._queue:
                if not turn.done():
                    turn.set_exception(LimiterUnavailableError(str(error)))
            raise
        if wait < 0:
            return self._poll_seconds
        if wait == 0:
            self._running += 1
            return 0.0
        return min(wait, self._poll_seconds)

    def _undo(self, asked: asyncio.Task[float], lease: Lease) -> None:
        if not asked.cancelled() and asked.exception() is None and asked.result() == 0:
            self._server.start(self._give_back(lease, 0, requests=1))

    async def _ask(self, lease: Lease) -> float:
        lease.id = lease.id or new_ulid()
        slots = self.limits.get("max_concurrency", 0)
        costs = self._arguments(1, lease.tokens)
        try:
            answer = await self._reserving(
                self._keys, lease.id, self._lease_seconds, slots, *costs
            )
        except self._server.errors as error:
            # Redis may run the script after the timeout and grant a lease that no call uses, so
            # release it.
            self._server.start(self._give_back(lease, None))
            message = (
                "Redis is unavailable, so the rate limit cannot be checked: "
                f"{type(error).__name__}"
            )
            raise LimiterUnavailableError(message) from error
        return float(answer)

    async def _give_back(self, lease: Lease, spent: int | None, requests: int = 0) -> None:
        given = 0 if spent is None else lease.tokens - spent
        try:
            await self._settling(self._keys, lease.id, *self._arguments(requests, given))
        except self._server.errors as error:
            log.warning(
                "a limiter's lease could not be settled in Redis (%s)", type(error).__name__
            )

    def _arguments(self, requests: float, tokens: float) -> list[Any]:
        """Return arguments for the Lua scripts: name, rate, capacity and amount of each bucket."""
        wants = (("requests", self._requests, requests), ("tokens", self._tokens, tokens))
        return [
            part
            for name, bucket, amount in wants
            if bucket is not None
            for part in (name, bucket.rate, bucket.capacity, amount)
        ]
