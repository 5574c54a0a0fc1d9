"""Rate limits in Redis that many processes share."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Self

from ..messages import new_ulid
from .layer import check_number
from .meters import Demand, RedisMeter
from .ratelimit import Lease, Limiter

if TYPE_CHECKING:
    from redis.asyncio import Redis


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
        self._meter = RedisMeter(client, "RedisLimiter")
        self._key = key
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds

    async def settle(self, lease: Lease, spent: int | None) -> None:
        self.running -= 1
        self._wake()
        # The lease is released in a separate task, so that its slot is freed even if the caller is
        # cancelled.
        used = 0 if spent is None else spent - lease.tokens
        await asyncio.shield(self._meter.settle(self._key, lease.id, self._demand(0, used)))

    async def close(self) -> None:
        """Wait until pending leases are settled; close the connection if this object opened it."""
        await self._meter.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- private methods of the limiter in Redis

    async def _reserve(self, lease: Lease) -> float:
        lease.id = lease.id or new_ulid()
        slots = int(self.limits.get("max_concurrency", 0))
        demands = self._demand(1, lease.tokens)
        try:
            state, waits = await self._meter.reserve(
                self._key, lease.id, self._lease_seconds, slots, demands
            )
        except self._meter.errors as error:
            message = (
                "Redis is unavailable, so the rate limit cannot be checked: "
                f"{type(error).__name__}"
            )
            # Fail the other waiting calls too; otherwise each of them would wait for its own
            # timeout.
            for turn in self._queue:
                if not turn.done():
                    turn.set_exception(LimiterUnavailableError(message))
            raise LimiterUnavailableError(message) from error
        if state != "ok":
            return min(self._poll_seconds, max(waits, default=math.inf))
        self.running += 1
        return 0.0

    def _demand(self, requests: float, tokens: float) -> list[Demand]:
        wants = (("requests", self._requests, requests), ("tokens", self._tokens, tokens))
        return [
            Demand(name, bucket.capacity, bucket.rate, amount)
            for name, bucket, amount in wants
            if bucket is not None
        ]
