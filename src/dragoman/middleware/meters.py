"""Meters: token buckets, sliding windows and slots, in memory, in SQL and in Redis.

A ``Bucket`` refills continuously; a ``RateWindow`` counts the last minute. Both answer ``delay``
and change by ``take``. Python computes them for memory and SQL. For Redis, ``RedisMeter`` computes
them in Lua, because only a script reads and changes them atomically there. A slot is a lease that
one running call holds; it expires if its process dies.
"""

# The package limits (5.8) cannot carry this: it has no token buckets, no slots and no SQL, and it
# does not count usage above a limit, which is known only after a call.

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .redis import NOW, RedisServer, decode

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger("dragoman")


class Bucket:
    """A token bucket, which refills over time up to ``capacity``; its level may be negative."""

    __slots__ = ("capacity", "level", "rate", "updated")

    def __init__(self, per_minute: float, capacity: float, now: float) -> None:
        self.rate = per_minute / 60
        self.capacity = self.level = capacity
        self.updated = now

    def delay(self, cost: float, now: float) -> float:
        """Return the seconds until the bucket contains ``cost``.

        A cost that exceeds the capacity needs a full bucket.
        """
        self.level = min(self.capacity, self.level + max(0.0, now - self.updated) * self.rate)
        self.updated = max(self.updated, now)
        lacking = min(cost, self.capacity) - self.level
        # Tolerate rounding errors: with a coarse clock, the wait for the last fraction would never
        # end.
        return lacking / self.rate if lacking > self.capacity * 1e-9 else 0.0

    def take(self, cost: float) -> None:
        """Remove ``cost`` from the bucket; a negative cost is added."""
        self.level -= cost


class RateWindow:
    """A sliding window: the count of this minute and a part of the count of the previous one."""

    __slots__ = ("last", "limit", "this")

    def __init__(self, limit: int, this: int, last: int) -> None:
        self.limit = limit
        self.this = this
        self.last = last

    def delay(self, cost: float, now: float) -> float:
        """Return the seconds until the count is below the limit, whatever the ``cost`` is."""
        seconds = now % 60
        if self._count(now) < self.limit:
            return 0.0
        # If the count of this minute alone exceeds the limit, wait for the next minute. Otherwise
        # wait until enough of the previous minute is outside the window.
        if self.this >= self.limit:
            return 60 - seconds
        return max(0.1, (1 - (self.limit - self.this) / self.last) * 60 - seconds)

    def take(self, cost: int) -> None:
        """Add ``cost`` to the count of this minute."""
        self.this += cost

    def left(self, now: float) -> int:
        """Return how much of the limit is left."""
        return max(0, math.floor(self.limit - self._count(now)))

    def _count(self, now: float) -> float:
        return self.this + self.last * (1 - now % 60 / 60)


# --- meters in Redis ---------------------------------------------------------------------------

# The common beginning of both scripts. KEYS: the amounts, the leases. ARGV: the current time, or
# '' to use the clock of Redis; the lease; then each script's own arguments. The last arguments are
# those of each demand: name, capacity, refill per second (0 for a window), cost.
_PRELUDE = (
    NOW
    + """
now = tonumber(ARGV[1]) or now
local minute = math.floor(now / 60)
local part = 1 - (now - minute * 60) / 60
local function demand(at)
  return ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
end
local function read(name, capacity, rate)
  local kept = redis.call('HMGET', KEYS[1], name, name .. '_at', name .. '_last')
  if not kept[1] then return rate > 0 and capacity or 0, 0 end
  local amount, at = tonumber(kept[1]), tonumber(kept[2])
  if rate > 0 then return math.min(capacity, amount + math.max(0, now - at) * rate), 0 end
  if at == minute then return amount, tonumber(kept[3]) end
  return 0, at == minute - 1 and amount or 0
end
local function take(name, capacity, rate, cost)
  local amount, last = read(name, capacity, rate)
  local at, kept = minute, 180
  if rate > 0 then
    amount = math.min(capacity, amount - cost)
    at, kept = string.format('%.17g', now), math.ceil((capacity - amount) / rate) + 60
  else
    amount = math.max(0, amount + cost)
  end
  redis.call('HSET', KEYS[1], name, string.format('%.17g', amount), name .. '_at', at, name .. '_last', last)
  if redis.call('TTL', KEYS[1]) < kept then redis.call('EXPIRE', KEYS[1], kept) end
  return tostring(math.max(0, math.floor(capacity - amount - last * part)))
end
"""
)

# ARGV: time, lease, duration of the lease in seconds, number of slots or 0, demands. The script
# returns 'wait' and the delay of each demand, or 'slots', or 'ok' and what is left of each window.
_RESERVE = (
    _PRELUDE
    + """
local waits, longest = {'wait'}, 0
for at = 5, #ARGV, 4 do
  local name, capacity, rate, cost = demand(at)
  local amount, last = read(name, capacity, rate)
  local wait = 0
  if rate > 0 then
    local lacking = math.min(cost, capacity) - amount
    if lacking > capacity * 1e-9 then wait = lacking / rate end
  elseif amount >= capacity then
    wait = part * 60
  elseif amount + last * part >= capacity then
    wait = math.max(0.1, (1 - (capacity - amount) / last) * 60 - (now - minute * 60))
  end
  table.insert(waits, string.format('%.17g', wait))
  longest = math.max(longest, wait)
end
if longest > 0 then return waits end
local slots = tonumber(ARGV[4])
if slots > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  if redis.call('ZCARD', KEYS[2]) >= slots then return {'slots'} end
  redis.call('ZADD', KEYS[2], string.format('%.17g', now + tonumber(ARGV[3])), ARGV[2])
  redis.call('EXPIRE', KEYS[2], math.ceil(tonumber(ARGV[3])) + 60)
end
local left = {'ok'}
for at = 5, #ARGV, 4 do table.insert(left, take(demand(at))) end
return left
"""
)

# ARGV: time, lease, demands. A negative cost gives an amount back.
_SETTLE = (
    _PRELUDE
    + """
redis.call('ZREM', KEYS[2], ARGV[2])
for at = 3, #ARGV, 4 do take(demand(at)) end
return '0'
"""
)


class Demand(NamedTuple):
    """What a call takes from a bucket, or from a window if ``rate``, the refill, is 0."""

    name: str
    capacity: float
    rate: float
    cost: float


class RedisMeter:
    """Count the demands and slots of calls in Redis, for all processes that use the same keys.

    After a failure no command is sent for ``pause`` seconds, so that calls do not all wait for
    timeouts, and the release of a lease is attempted ``attempts`` times with doubling pauses.
    """

    def __init__(
        self,
        client: str | Redis,
        user: str,
        *,
        pause: float = 0.0,
        attempts: int = 1,
        max_connections: int | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.server = RedisServer(client, user, max_connections=max_connections)
        self.errors = self.server.errors
        self._reserving = self.server.script(_RESERVE)
        self._settling = self.server.script(_SETTLE)
        self._user = user
        self._pause = pause
        self._attempts = attempts
        self._clock = clock
        self._paused_until = 0.0
        self._closing = asyncio.Event()

    async def reserve(
        self, key: str, lease: str, seconds: float, slots: int, demands: Sequence[Demand]
    ) -> tuple[str, list[float]]:
        """Take all demands and a slot, or nothing; raise one of ``errors`` if Redis fails.

        Return ``ok`` and what is left of each window, or what is exhausted: ``slots``, or ``wait``
        and the seconds to wait for each demand.
        """
        arguments = (seconds, slots, *_flatten(demands))
        asking = self.server.start(self._run(self._reserving, key, lease, *arguments))
        try:
            state, *numbers = decode(await asyncio.shield(asking))
        except asyncio.CancelledError:
            # Redis may still grant the lease of the cancelled call; if it does, release the lease.
            undone = [Demand(*each[:-1], -each.cost) for each in demands]
            asking.add_done_callback(lambda asked: self._undo(asked, key, lease, undone))
            raise
        except self.errors:
            # Redis may run the script after the timeout and grant a lease that no call uses, so
            # release the lease.
            if slots:
                self.settle(key, lease)
            raise
        return state, [float(each) for each in numbers]

    def settle(self, key: str, lease: str, demands: Sequence[Demand] = ()) -> asyncio.Task[None]:
        """Release a lease and take the demands, in a task that ``close`` waits for."""
        return self.server.start(self._settle(key, lease, demands))

    async def close(self) -> None:
        """Finish the pending tasks; close the connection if this object opened it."""
        self._closing.set()
        await self.server.close()

    # --- private methods

    async def _run(self, script: Any, key: str, *arguments: Any) -> Any:
        if time.monotonic() < self._paused_until:
            raise TimeoutError("Redis failed a moment ago")
        now = "" if self._clock is None else repr(self._clock())
        try:
            return await script(name_keys(key), now, *arguments)
        except self.errors as error:
            self._paused_until = time.monotonic() + self._pause
            log.warning("Redis is unavailable for %s: %s", self._user, type(error).__name__)
            raise

    async def _settle(self, key: str, lease: str, demands: Sequence[Demand]) -> None:
        """Release a lease, with retries: a lease that is not released counts as a running call."""
        for attempt in range(self._attempts):
            try:
                await self._run(self._settling, key, lease, *_flatten(demands))
            except self.errors:
                if attempt + 1 < self._attempts:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._closing.wait(), self._pause * 2**attempt)
                        return
            else:
                return

    def _undo(
        self, asked: asyncio.Task[Any], key: str, lease: str, demands: Sequence[Demand]
    ) -> None:
        if not asked.cancelled() and not asked.exception() and decode(asked.result())[0] == "ok":
            self.settle(key, lease, demands)


def name_keys(key: str) -> list[str]:
    """Return the Redis keys of the amounts and the leases that are counted under ``key``."""
    # The braces are a hash tag: both Redis keys are on the same node of a Redis cluster.
    return [f"dragoman:{{{key}}}:levels", f"dragoman:{{{key}}}:leases"]


def _flatten(demands: Sequence[Demand]) -> list[Any]:
    return [part for each in demands for part in each]
