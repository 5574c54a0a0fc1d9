"""A circuit breaker whose state many processes share through Redis."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ..calls import ProviderRecovered, ProviderUnavailable, Trigger
from .availability import Admission, Availability, Thresholds
from .redis import NOW, RedisServer, decode

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger("dragoman")

_SECONDS = 2.0  # timeout of one Redis command in seconds; short, so that calls are not delayed
_PAUSE = 10.0  # after a failure, no Redis command is sent for this many seconds

# Lua script that returns three values for each unavailable target: the target, the seconds since
# its last failure by the clock of Redis, and the cause.
_READ = (
    NOW
    + """
local all, found = redis.call('HGETALL', KEYS[1]), {}
for at = 1, #all, 2 do
  local split = string.find(all[at + 1], ' ', 1, true)
  local failed = tonumber(string.sub(all[at + 1], 1, split - 1))
  table.insert(found, all[at])
  table.insert(found, string.format('%.3f', now - failed))
  table.insert(found, string.sub(all[at + 1], split + 1))
end
return found
"""
)
_SHUT = (
    NOW
    + """
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.6f', now) .. ' ' .. ARGV[2])
redis.call('EXPIRE', KEYS[1], math.ceil(tonumber(ARGV[3])))
return '0'
"""
)


class RedisAvailability(Availability):
    """An ``Availability`` that all processes with the same ``key`` share.

    Each process counts failures separately. When a target becomes unavailable or recovers, the
    process writes that to Redis. Other processes read it before a call, at most every
    ``poll_seconds``. If Redis fails, every process uses its own state; a failure of Redis never
    fails a call.
    """

    def __init__(
        self,
        client: str | Redis,
        key: str = "availability",
        on_event: Callable[[ProviderUnavailable | ProviderRecovered], object] | None = None,
        thresholds: Thresholds | None = None,
        *,
        poll_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(on_event, thresholds, clock=clock)
        self._server = RedisServer(client, "RedisAvailability", seconds=_SECONDS)
        self._key = f"dragoman:{{{key}}}:unavailable"
        self._reading = self._server.script(_READ)
        self._shutting = self._server.script(_SHUT)
        self._poll_seconds = poll_seconds
        self._next = 0.0
        self._asked: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        if self._clock() < self._next:
            return
        if self._asked is None or self._asked.done():
            self._asked = self._server.start(self._read())
        await asyncio.wait([self._asked])

    async def close(self) -> None:
        await self._server.close()

    # --- private methods of the circuit breaker in Redis

    async def _read(self) -> None:
        try:
            found = await self._reading([self._key])
        except self._server.errors as error:
            self._next = self._clock() + _PAUSE
            log.warning(
                "Redis is unavailable, so availability is not shared (%s)", type(error).__name__
            )
            return
        self._next = self._clock() + self._poll_seconds
        self._apply(
            {
                msgspec.json.decode(name, type=tuple[str, str]): (float(ago), why)
                for name, ago, why in zip(*[iter(decode(found))] * 3, strict=True)
            }
        )

    def _apply(self, shared: dict[tuple[str, str], tuple[float, str]]) -> None:
        """Apply the changes of availability that other processes reported."""
        now = self._clock()
        for (provider, model), (ago, trigger) in shared.items():
            whole, state = self._states(provider, model)
            taken = state if model else whole
            taken.since = taken.since or now - ago
            taken.trigger = cast("Trigger", trigger)
            taken.failed = max(taken.failed, now - ago)
        known = {(provider, ""): whole for provider, whole in self._providers.items()}
        for target, state in {**known, **self._models}.items():
            if state.since is not None and target not in shared and state.probe is None:
                state.since = state.trigger = None

    def _failed(self, admission: Admission, error: Any) -> None:
        super()._failed(admission, error)
        whole, state = self._states(admission.provider, admission.model)
        for model, each in (("", whole), (admission.model, state)):
            if each.since is not None:
                target = _write_target(admission.provider, model)
                seconds = self.thresholds.quiet_seconds * 12
                self._write(self._shutting([self._key], target, each.trigger or "", seconds))

    def _succeeded(self, admission: Admission) -> None:
        super()._succeeded(admission)
        if admission.changes:
            targets = [_write_target(admission.provider, each) for each in ("", admission.model)]
            self._write(cast("Any", self._server.client.hdel(self._key, *targets)))

    def _write(self, command: Awaitable[Any]) -> None:
        # Delay the next read of the state, so that this write is complete before it.
        self._next = max(self._next, self._clock() + self._poll_seconds)
        self._server.start(self._send(command))

    async def _send(self, command: Awaitable[Any]) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                await command
        except self._server.errors as error:
            log.warning("availability could not be written to Redis (%s)", type(error).__name__)


def _write_target(provider: str, model: str) -> str:
    return msgspec.json.encode([provider, model]).decode()
