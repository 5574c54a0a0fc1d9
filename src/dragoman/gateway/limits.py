"""Rate limits of keys in Redis, shared by all hosts: requests, tokens and concurrent calls.

The limits use the same sliding windows as the ledger. Lua scripts update the windows atomically,
by the clock of Redis. While Redis is unavailable, the configured policy decides about calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from ..errors import OverloadedError, RateLimitError
from ..messages import new_ulid
from ..middleware.redis import NOW, RedisServer
from .keys import Key

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger("dragoman")

Policy = Literal["closed", "open", "local"]
"""The policy for rate-limited keys while Redis is unavailable.

``closed`` rejects their calls (status 503), ``open`` admits them, and ``local`` counts them in
each process separately.
"""

POLICIES: tuple[Policy, ...] = get_args(Policy)
_RETRIES = 7  # number of attempts to release a lease; with doubling pauses they take two minutes
_CONNECTIONS = 8  # maximum number of Redis connections of one process
_PAUSE = 1.0  # seconds to wait after a Redis failure before the next command
_LOCAL = "local:"  # prefix of the ids of leases that the local counter granted

# The common beginning of the Lua scripts. KEYS are the Redis keys of an API key's windows and of
# its leases. ARGV[1] is the current time, or '' to use the clock of Redis.
_PRELUDE = (
    NOW
    + """
now = tonumber(ARGV[1]) or now
local minute = math.floor(now / 60)
local kept = redis.call('HMGET', KEYS[1], 'minute', 'requests', 'tokens', 'last_requests', 'last_tokens')
local held = tonumber(kept[1] or '-9')
local this = {requests = tonumber(kept[2] or '0'), tokens = tonumber(kept[3] or '0')}
local last = {requests = tonumber(kept[4] or '0'), tokens = tonumber(kept[5] or '0')}
if held == minute - 1 then last, this = this, {requests = 0, tokens = 0}
elseif held ~= minute then this, last = {requests = 0, tokens = 0}, {requests = 0, tokens = 0} end
local part = 1 - (now - minute * 60) / 60
local function keep()
  redis.call('HSET', KEYS[1], 'minute', minute, 'requests', this.requests, 'tokens', this.tokens,
    'last_requests', last.requests, 'last_tokens', last.tokens)
  redis.call('EXPIRE', KEYS[1], 180)
end
"""
)

# The Lua script that admits a call. ARGV: time, lease id, duration of the lease in seconds, and
# the limits of concurrent calls, requests per minute and tokens per minute (0 means unlimited).
# The script returns the exceeded limit or 'ok', the seconds to wait, and the requests and tokens
# that are left.
_ADMIT = (
    _PRELUDE
    + """
for at, what in ipairs({'requests', 'tokens'}) do
  local limit = tonumber(ARGV[4 + at])
  if limit > 0 and this[what] + last[what] * part >= limit then
    local wait = part * 60
    if this[what] < limit then wait = (1 - (limit - this[what]) / last[what]) * 60 - (now - minute * 60) end
    return {what, string.format('%.3f', wait), '0', '0'}
  end
end
local slots = tonumber(ARGV[4])
if slots > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  if redis.call('ZCARD', KEYS[2]) >= slots then return {'calls', '1', '0', '0'} end
  redis.call('ZADD', KEYS[2], string.format('%.17g', now + tonumber(ARGV[3])), ARGV[2])
  redis.call('EXPIRE', KEYS[2], math.ceil(tonumber(ARGV[3])) + 60)
end
this.requests = this.requests + 1
keep()
local left = {}
for at, what in ipairs({'requests', 'tokens'}) do
  left[at] = tostring(math.max(0, math.floor(tonumber(ARGV[4 + at]) - this[what] - last[what] * part)))
end
return {'ok', '0', left[1], left[2]}
"""
)

# The Lua script that releases a lease. ARGV: time, lease id, tokens to add, requests to subtract.
_SETTLE = (
    _PRELUDE
    + """
redis.call('ZREM', KEYS[2], ARGV[2])
this.tokens = this.tokens + tonumber(ARGV[3])
this.requests = math.max(0, this.requests - tonumber(ARGV[4]))
keep()
return '0'
"""
)


class Counter(Protocol):
    """A counter in this process that replaces Redis while Redis is unavailable."""

    def admit(self, key: Key, seconds: float = 0.0) -> str | None:
        """Count a request of a key; raise an error if one of the key's limits is reached."""
        ...

    def settle(self, lease: str | None, key: Key, tokens: int = 0) -> None:
        """Release a call's lease and count its tokens."""
        ...


class RedisLimits:
    """Count the requests, tokens and concurrent calls of keys in Redis.

    ``on_failure`` is the policy while Redis is unavailable. The policy ``local`` counts with
    ``spare``, a counter in memory. After a failure no command is sent to Redis for a second, so
    that calls do not all wait for timeouts. If a process dies, its leases expire.
    """

    def __init__(
        self,
        client: str | Redis,
        *,
        on_failure: Policy = "closed",
        spare: Counter | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if on_failure not in POLICIES or (on_failure == "local" and spare is None):
            raise ValueError(
                f"on_failure must be one of {', '.join(POLICIES)}, and local needs spare="
            )
        self.failures = 0  # number of admissions that Redis could not decide
        # The pool is bounded, since otherwise many concurrent calls would each open a connection.
        self._server = RedisServer(client, "RedisLimits", max_connections=_CONNECTIONS)
        self._admitting = self._server.script(_ADMIT)
        self._settling = self._server.script(_SETTLE)
        self._on_failure = on_failure
        self._spare = spare
        self._clock = clock
        self._paused_until = 0.0
        self._standing: dict[str, dict[str, int]] = {}
        self._closing = asyncio.Event()

    async def admit(self, key: Key, seconds: float) -> str | None:
        """Count a request and return the id of its lease; raise an error if a limit is reached."""
        lease = new_ulid()
        limits = (
            key.max_concurrency or 0,
            key.requests_per_minute or 0,
            key.tokens_per_minute or 0,
        )
        asking = self._server.start(self._run(self._admitting, key, lease, seconds, *limits))
        try:
            found = await asyncio.shield(asking)
        except asyncio.CancelledError:
            # Redis may still admit the cancelled call; if it does, release the lease.
            asking.add_done_callback(lambda done: self._undo(done, lease, key))
            raise
        except self._server.errors as error:
            # Redis may run the script after the timeout and grant a lease that no call uses, so
            # release the lease.
            self.settle(lease, key)
            return self._admit_without(key, seconds, error)
        what, wait, *left = [
            each.decode() if isinstance(each, bytes) else str(each) for each in found
        ]
        if what == "calls":
            raise RateLimitError(
                f"this key's limit of {limits[0]} calls at a time is reached", retry_after=1
            )
        if what != "ok":
            seconds = max(0.1, round(float(wait), 1))
            raise RateLimitError(
                f"this key's limit of {what} a minute is reached", retry_after=seconds
            )
        self._standing[key.id] = dict(zip(("requests", "tokens"), map(int, left), strict=True))
        return lease

    def settle(self, lease: str, key: Key, tokens: int = 0, *, requests: int = 0) -> None:
        """Release a call's lease and count its tokens, in a background task.

        If a counted call was not sent after all, ``requests=1`` subtracts its request from the
        count.
        """
        if lease.startswith(_LOCAL):
            assert self._spare is not None
            self._spare.settle(lease.removeprefix(_LOCAL) or None, key, tokens)
        elif tokens or requests or key.max_concurrency is not None:
            self._server.start(self._settle(lease, key, tokens, requests))

    def describe(self, key: Key) -> dict[str, int]:
        """Return how many requests and tokens per minute a key had left at its last request."""
        return self._standing.get(key.id, {})

    async def close(self) -> None:
        """Finish the pending tasks; close the connection if this object opened it."""
        self._closing.set()
        await self._server.close()

    # --- private methods

    async def _run(self, script: Any, key: Key, *arguments: Any) -> Any:
        if time.monotonic() < self._paused_until:
            raise TimeoutError("Redis failed a moment ago")
        now = "" if self._clock is None else repr(self._clock())
        # The braces are a hash tag: both Redis keys are on the same node of a Redis cluster.
        names = [f"dragoman:{{gateway:{key.id}}}:{part}" for part in ("used", "leases")]
        try:
            return await script(names, now, *arguments)
        except self._server.errors as error:
            self._paused_until = time.monotonic() + _PAUSE
            log.warning(
                "Redis is unavailable for rate limits, policy %s: %s",
                self._on_failure,
                type(error).__name__,
            )
            raise

    def _admit_without(self, key: Key, seconds: float, error: Exception) -> str | None:
        self.failures += 1
        self._standing.pop(key.id, None)
        if self._on_failure == "closed":
            raise OverloadedError(
                "the gateway cannot check its rate limit at the moment", retry_after=2
            ) from error
        if self._on_failure == "open" or self._spare is None:
            return None
        return _LOCAL + (self._spare.admit(key, seconds) or "")

    async def _settle(self, lease: str, key: Key, tokens: int, requests: int) -> None:
        """Release a lease, with retries: a lease that is not released counts as a running call."""
        for attempt in range(_RETRIES):
            try:
                await self._run(self._settling, key, lease, tokens, requests)
            except self._server.errors:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), _PAUSE * 2**attempt)
                    return
            else:
                return

    def _undo(self, done: asyncio.Task[Any], lease: str, key: Key) -> None:
        if not done.cancelled() and done.exception() is None and done.result()[0] in (b"ok", "ok"):
            self.settle(lease, key, requests=1)
