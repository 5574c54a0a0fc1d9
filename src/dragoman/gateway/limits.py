"""Rate limits of keys in Redis, shared by all hosts: requests, tokens and concurrent calls.

The limits use the same sliding windows as the ledger, by the clock of Redis. While Redis is
unavailable, the configured policy decides about calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from ..errors import OverloadedError, RateLimitError
from ..messages import new_ulid
from ..middleware.meters import Demand, RedisMeter
from .keys import Key

if TYPE_CHECKING:
    from redis.asyncio import Redis

Policy = Literal["closed", "open", "local"]
"""The policy for rate-limited keys while Redis is unavailable.

``closed`` rejects their calls (status 503), ``open`` admits them, and ``local`` counts them in
each process separately.
"""

POLICIES: tuple[Policy, ...] = get_args(Policy)
_ATTEMPTS = 7  # attempts to release a lease; the pauses double, about two minutes in total
_CONNECTIONS = 8  # maximum number of Redis connections of one process
_PAUSE = 1.0  # seconds to wait after a Redis failure before the next command
_LOCAL = "local:"  # prefix of the ids of leases that the local counter granted


class Counter(Protocol):
    """A counter in this process that replaces Redis while Redis is unavailable."""

    def admit(self, key: Key, seconds: float = 0.0) -> str | None:
        """Count a request of a key; raise an error if one of the key's limits is reached."""
        ...

    def settle(self, lease: str | None, key: Key, tokens: int = 0) -> None:
        """Release a call's lease and count its tokens."""
        ...


def check_delays(key: Key, delays: Iterable[float]) -> None:
    """Raise ``RateLimitError`` if a key must wait for one of its ``rates``."""
    for name, delay in zip(key.rates, delays, strict=True):
        if delay > 0:
            raise RateLimitError(
                f"this key's limit of {name} a minute is reached",
                retry_after=max(0.1, round(delay, 1)),
            )


def reject_concurrent(limit: int | None) -> RateLimitError:
    """Return the error for a call of a key that has ``limit`` running calls already."""
    return RateLimitError(f"this key's limit of {limit} calls at a time is reached", retry_after=1)


class RedisLimits:
    """Count the requests, tokens and concurrent calls of keys in Redis.

    ``on_failure`` is the policy while Redis is unavailable. The policy ``local`` counts with
    ``spare``, a counter in memory. If a process dies, its leases expire.
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
        self._meter = RedisMeter(
            client, "RedisLimits", pause=_PAUSE, attempts=_ATTEMPTS,
            max_connections=_CONNECTIONS, clock=clock,
        )  # fmt: skip
        self._on_failure = on_failure
        self._spare = spare
        self._standing: dict[str, dict[str, int]] = {}

    async def admit(self, key: Key, seconds: float) -> str | None:
        """Count a request and return the id of its lease; raise an error if a limit is reached."""
        lease = new_ulid()
        slots = key.max_concurrency or 0
        try:
            state, numbers = await self._meter.reserve(
                _name(key), lease, seconds, slots, _demand(key, requests=1)
            )
        except self._meter.errors as error:
            return self._admit_without(key, seconds, error)
        if state == "slots":
            raise reject_concurrent(slots)
        if state == "wait":
            check_delays(key, numbers)
        self._standing[key.id] = dict(zip(key.rates, map(int, numbers), strict=True))
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
            self._meter.settle(_name(key), lease, _demand(key, -requests, tokens))

    def describe(self, key: Key) -> dict[str, int]:
        """Return how many requests and tokens per minute a key had left at its last request."""
        return self._standing.get(key.id, {})

    async def close(self) -> None:
        """Finish the pending tasks; close the connection if this object opened it."""
        await self._meter.close()

    # --- private methods

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


def _name(key: Key) -> str:
    return f"gateway:{key.id}"


def _demand(key: Key, requests: int = 0, tokens: int = 0) -> list[Demand]:
    costs = {"requests": requests, "tokens": tokens}
    return [Demand(name, limit, 0, costs[name]) for name, limit in key.rates.items()]
