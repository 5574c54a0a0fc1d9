"""Rate limits: requests per minute and tokens per minute (token buckets), and concurrent calls."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ..errors import ProviderError, StreamInterruptedError, TimedOutError
from ..events import Event, MessageComplete, Usage
from ..messages import Request
from ..provider import LayerCall
from ..provider.model import Kind, OfKind
from ..retrieval import EmbedRequest, RerankRequest
from ..tokens import estimate_text
from .layer import Middleware, Wrapper, check_number
from .meters import Bucket

MOST = 1e12
_numbers = itertools.count()


class Lease:
    """Permission for one call that reserved ``tokens``. Pass it to ``settle`` after the call."""

    __slots__ = ("id", "tokens")

    def __init__(self, tokens: int) -> None:
        self.id = ""
        self.tokens = tokens


class Limiter:
    """Rate limits that several ``RateLimit`` layers share; their calls are counted together.

    Waiting calls are served in order (FIFO). Each token bucket has a capacity for the requests or
    tokens of ``burst_seconds``, by default 60. A call that exceeds the capacity waits until the
    bucket is full, and the level becomes negative; later calls wait until it is refilled. A
    limiter belongs to the event loop that first uses it.
    """

    def __init__(
        self,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        max_concurrency: int | None = None,
        *,
        burst_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.limits = _check_limits(
            requests_per_minute, tokens_per_minute, max_concurrency, burst_seconds
        )
        self.number = next(_numbers)
        self._burst = burst_seconds
        self._clock = clock
        self._sleep = sleep
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: deque[asyncio.Future[None]] = deque()
        self._freed: asyncio.Future[None] | None = None
        self.running = 0  # the number of calls in flight
        now = clock()
        self._requests = self._bucket(requests_per_minute, now)
        self._tokens = self._bucket(tokens_per_minute, now)

    @property
    def counts_tokens(self) -> bool:
        """Whether the limiter counts tokens, so that each call's tokens must be estimated."""
        return "tokens_per_minute" in self.limits

    @property
    def waiting(self) -> int:
        """The number of calls that wait for permission."""
        return len(self._queue)

    async def acquire(self, tokens: int = 0) -> Lease:
        """Wait until a call of about ``tokens`` tokens may be sent; return its lease."""
        self._bind()
        assert self._loop is not None
        lease = Lease(tokens)
        turn: asyncio.Future[None] = self._loop.create_future()
        self._queue.append(turn)
        try:
            if self._queue[0] is not turn:
                await turn
            while (delay := await self._reserve(lease)) > 0:
                await self._pause(delay)
        finally:
            self._leave(turn)
        return lease

    async def settle(self, lease: Lease, spent: int | None) -> None:
        """Report the end of a call that used ``spent`` tokens.

        If ``spent`` is ``None``, the reserved estimate counts as the usage.
        """
        self.running -= 1
        if self._tokens is not None and spent is not None:
            self._tokens.take(spent - lease.tokens)
        self._wake()

    # --- private methods of the rate limiter

    async def _reserve(self, lease: Lease) -> float:
        """Reserve capacity and return 0; if there is too little, return the seconds to wait."""
        limit = self.limits.get("max_concurrency")
        if limit is not None and self.running >= limit:
            return math.inf
        now = self._clock()
        wants = [(self._requests, 1), (self._tokens, lease.tokens)]
        delay = max(
            [bucket.delay(cost, now) for bucket, cost in wants if bucket is not None], default=0.0
        )
        if delay <= 0:
            for bucket, cost in wants:
                if bucket is not None:
                    bucket.take(cost)
            self.running += 1
        return delay

    async def _pause(self, delay: float) -> None:
        """Wait for ``delay`` seconds, or until another call ends and frees capacity."""
        assert self._loop is not None
        freed = self._freed = self._loop.create_future()
        timer = asyncio.ensure_future(_sleep(self._sleep, delay)) if delay < math.inf else None
        try:
            await asyncio.wait(
                [freed] if timer is None else [freed, timer], return_when=asyncio.FIRST_COMPLETED
            )
            if timer is not None and timer.done():
                timer.result()
        finally:
            self._freed = None
            if timer is not None and not timer.done():
                timer.cancel()
                await asyncio.wait([timer])

    def _wake(self) -> None:
        if self._freed is not None and not self._freed.done():
            self._freed.set_result(None)

    def _leave(self, turn: asyncio.Future[None]) -> None:
        """Remove an admitted or cancelled call from the queue; wake the next call."""
        self._queue.remove(turn)
        if self._queue and not self._queue[0].done():
            self._queue[0].set_result(None)

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                f"this {type(self).__name__} belongs to another event loop; make one for each "
                "loop, and RedisLimiters of one key if they should count together"
            )

    def _bucket(self, per_minute: float | None, now: float) -> Bucket | None:
        return (
            None if per_minute is None else Bucket(per_minute, per_minute * self._burst / 60, now)
        )

    def __repr__(self) -> str:
        limits = ", ".join([f"{name}={value:g}" for name, value in self.limits.items()])
        return f"{type(self).__name__}({limits})"


async def _sleep(sleep: Callable[[float], Awaitable[object]], delay: float) -> None:
    await sleep(delay)


def _check_limits(
    requests: float | None, tokens: float | None, concurrency: int | None, burst_seconds: float
) -> dict[str, float]:
    limits = {
        "requests_per_minute": requests,
        "tokens_per_minute": tokens,
        "max_concurrency": concurrency,
    }
    given = {name: value for name, value in limits.items() if value is not None}
    if not given:
        raise ValueError(f"Limiter: give one of {', '.join(limits)}")
    for name, value in given.items():
        whole = name == "max_concurrency"
        check_number("Limiter", name, value, least=1 if whole else 0.001, most=MOST, whole=whole)
    check_number("Limiter", "burst_seconds", burst_seconds, least=0.001, most=3600)
    return given


class RateLimit(Wrapper[Kind], Middleware[Kind]):
    """Delay each call until the rate limits allow it.

    ``requests_per_minute``, ``tokens_per_minute`` and ``max_concurrency`` apply to this layer
    only. ``limiter`` is a ``Limiter`` or a ``RedisLimiter`` that several layers share, or a list
    of them, such as one per provider and one per model. A call acquires all of them, starting with
    the limiter that was created last, so create limiters with a broader scope first.

    Before the call, the estimated input tokens plus ``max_tokens`` are reserved. After the call,
    the actual usage replaces the estimate. A stream counts as running until it ends or is closed.
    If a call of an embedder or a reranker is split into several requests, each request counts.
    """

    def __init__(
        self,
        provider: OfKind[Kind],
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        max_concurrency: int | None = None,
        limiter: Limiter | Sequence[Limiter] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(provider)
        own = (requests_per_minute, tokens_per_minute, max_concurrency)
        self.limiters = _order_limiters(limiter, own, clock, sleep)
        self._counts_tokens = any(each.counts_tokens for each in self.limiters)

    def settings(self) -> Mapping[str, Any]:
        if len(self.limiters) == 1:
            return self.limiters[0].limits
        numbered = enumerate(self.limiters, 1)
        return {
            f"limiter{number}.{name}": value
            for number, each in numbered
            for name, value in each.limits.items()
        }

    async def serve(self, request: Any, served: LayerCall) -> AsyncGenerator[list[Event], None]:
        estimate = self._estimate(request)
        leases: list[tuple[Limiter, Lease]] = []
        spent: int | None = 0
        visible = False
        try:
            for limiter in self.limiters:
                leases.append((limiter, await limiter.acquire(sum(estimate))))
            spent = None
            async with aclosing(self.inner.open(request)) as reply:
                served.reply = reply
                while batch := await reply.next():
                    visible = True
                    last: Any = batch[-1]
                    if type(last) is MessageComplete or self.operation != "chat":
                        spent = _count(last.usage, estimate)
                    yield batch
        except ProviderError as error:
            if not visible and not isinstance(error, TimedOutError | StreamInterruptedError):
                # A call that was rejected used no tokens. After a timeout the server may have
                # processed it.
                spent = 0
            raise
        finally:
            await _settle(leases, spent)

    def _estimate(self, request: Any) -> tuple[int, int]:
        """Return the estimated input and output tokens of a call; 0 if tokens are not counted."""
        if not self._counts_tokens:
            return 0, 0
        if not isinstance(request, Request):
            return estimate_texts(request), 0
        return (
            self.inner.estimate_input_tokens(request.messages, request.tools),
            request.config.max_tokens or 0,
        )


def _order_limiters(
    limiter: Any,
    own: tuple[float | None, float | None, int | None],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[object]],
) -> tuple[Limiter, ...]:
    """Return the shared limiters and the layer's own, in the order in which they are acquired."""
    shared = _read_limiters(limiter)
    if not shared or own != (None, None, None):
        shared = (*shared, Limiter(*own, clock=clock, sleep=sleep))
    # Acquire limiters in one global order, to prevent deadlocks. The limiter that was created last
    # has the narrowest scope and comes first, so that a waiting call does not occupy a slot of a
    # broader limiter.
    return tuple(sorted(shared, key=lambda each: each.number, reverse=True))


def estimate_texts(request: EmbedRequest | RerankRequest) -> int:
    """Return the estimated input tokens of a request to an embedder or a reranker."""
    if isinstance(request, EmbedRequest):
        return estimate_text("\n".join(request.texts)).tokens
    # A reranker reads the query once for each document.
    return estimate_text(
        "\n".join([f"{request.query}\n{document}" for document in request.documents])
    ).tokens


def _read_limiters(limiter: Any) -> tuple[Limiter, ...]:
    if limiter is None:
        return ()
    given = (limiter,) if isinstance(limiter, Limiter) else tuple(limiter)
    for each in given:
        if not isinstance(each, Limiter):
            raise ValueError(
                "RateLimit: limiter must be a Limiter or a list of them, not "
                f"{type(each).__name__}"
            )
    if len({each.number for each in given}) != len(given):
        raise ValueError("RateLimit: limiter names the same Limiter twice")
    return given


def _count(usage: Usage, estimate: tuple[int, int]) -> int | None:
    """Return the tokens that the call used; counts that were not reported are estimated."""
    if usage.input_tokens is None and usage.output_tokens is None:
        return usage.total_tokens
    return (estimate[0] if usage.input_tokens is None else usage.input_tokens) + (
        estimate[1] if usage.output_tokens is None else usage.output_tokens
    )


async def _settle(leases: list[tuple[Limiter, Lease]], spent: int | None) -> None:
    """Call ``settle`` for every lease, even if one of these calls raises an exception."""
    while leases:
        limiter, lease = leases.pop()
        try:
            await limiter.settle(lease, spent)
        except BaseException:
            await _settle(leases, spent)
            raise
