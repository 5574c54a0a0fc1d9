"""Observability: report the start and the end of every call to subscribers."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias
from weakref import WeakKeyDictionary

from msgspec import Struct

from ..calls import CallCompleted, CallFailed, CallStarted, GuardJudged
from ..events import Event
from ..messages import Request
from ..provider import LayerCall, Provider
from ..provider.model import Kind, OfKind
from .attempts import Attempt, Price
from .layer import Middleware, Wrapper, check_number, is_async

log = logging.getLogger("dragoman")

BATCH = 100
FLUSH_SECONDS = 5.0


# --- events and types of the observer ----------------------------------------------------------


class EventsDropped(Struct, frozen=True, tag="observe.events_dropped"):
    """An event that reports how many events were dropped because the subscribers were too slow."""

    count: int
    type: ClassVar[str] = "observe.events_dropped"


CallEvent: TypeAlias = CallStarted | CallCompleted | CallFailed | GuardJudged | EventsDropped
Subscriber: TypeAlias = Callable[[CallEvent], object]


# --- the middleware that observes calls --------------------------------------------------------


class Observe(Wrapper[Kind], Middleware[Kind]):
    """Report every attempt to subscribers as events.

    Each attempt causes a ``CallStarted``, and at its end a ``CallCompleted`` or a ``CallFailed``.
    A ``Guard`` inside causes a ``GuardJudged`` for each verdict.

    A subscriber is a function or a coroutine function that receives one event. Events are put into
    a queue of ``queue_size`` and delivered in the background. Plain functions run in a thread, and
    coroutine functions in the event loop, in the context of the call. A slow or failing subscriber
    never blocks or breaks a call. If the queue is full, events are dropped, counted in ``dropped``
    and reported as ``EventsDropped``. ``close()`` and ``flush()`` deliver the events in the queue.

    The cost of a call is computed with ``priced_as`` of the provider that served it, or with the
    function ``price(usage, "provider:model")``. Events contain messages and replies only with
    ``include_content``.
    """

    def __init__(
        self,
        provider: OfKind[Kind],
        *subscribers: Subscriber,
        queue_size: int = 1000,
        include_content: bool = False,
        price: Price | None = None,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(provider)
        check_number("Observe", "queue_size", queue_size, least=1, most=10_000_000, whole=True)
        for at, subscriber in enumerate(subscribers):
            if not callable(subscriber):
                raise ValueError(
                    f"Observe: subscribers[{at}] must be a function, not {subscriber!r}"
                )
        self._subscribers = subscribers
        self._queue_size = queue_size
        self._include_content = include_content
        self._price = price
        self._clock = clock
        self._now = now
        # The subscribers that measure the time between chunks, which is not in any record.
        self._timers = [each for each in subscribers if hasattr(each, "time_chunks")]
        self._feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, Feed] = WeakKeyDictionary()
        self._gone = 0

    @property
    def dropped(self) -> int:
        """The number of events that were not delivered because the queue was full or closed."""
        return self._gone + sum([feed.dropped for feed in self._feeds.values()])

    def settings(self) -> Mapping[str, Any]:
        return {
            "subscribers": self._subscribers,
            "queue_size": self._queue_size,
            "include_content": self._include_content,
        }

    async def serve(self, request: Any, served: LayerCall) -> AsyncGenerator[list[Event], None]:
        feed = self._feed()
        context = contextvars.copy_context()
        attempt = Attempt(
            self.inner, request, price=self._price, include_content=self._include_content,
            clock=self._clock, at=self._now(),
        )  # fmt: skip
        is_chat = self.operation == "chat"
        feed.put(
            partial(_start, attempt, self.inner, request) if is_chat else attempt.start, context
        )
        is_timed = is_chat and request.stream and self._timers
        arrivals: list[float] | None = [] if is_timed else None
        failure: BaseException | None = None
        try:
            async with aclosing(self.inner.open(request)) as reply:
                served.reply = attempt.reply = reply
                while batch := await reply.next():
                    attempt.hear(batch)
                    if arrivals is not None:
                        arrivals.append(self._clock())
                    yield batch
        except BaseException as error:
            failure = error
            raise
        finally:
            is_left = isinstance(failure, asyncio.CancelledError | GeneratorExit)
            # the reply was complete, although the reader did not read to the end
            is_whole = is_left and attempt.answer is not None and not served.cancelled
            attempt.stop(None if is_whole else failure)
            # the attempts of a ``Retry`` or a ``Fallback`` inside are attempts of this call
            for record in attempt.reply.history if attempt.reply is not None else ():
                if isinstance(record, CallStarted | CallFailed | GuardJudged):
                    feed.put(partial(_return, record), context)
            if not attempt.is_ended:
                # This call has no local name, since a frame that refers to the attempt keeps the
                # reply and the error in memory.
                feed.put(partial(_end, attempt, arrivals or (), self._timers), context)
            del attempt, failure  # the error refers to this frame

    async def flush(self) -> None:
        """Wait until all events of calls in this event loop are delivered."""
        feed = self._feeds.get(asyncio.get_running_loop())
        if feed is not None:
            await feed.flush()

    async def close(self) -> None:
        """Close the inner provider, and deliver the queued events within at most five seconds."""
        try:
            await self.inner.close()
        finally:
            feed = self._feeds.pop(asyncio.get_running_loop(), None)
            if feed is not None:
                await feed.close(FLUSH_SECONDS)
                self._gone += feed.dropped

    def _feed(self) -> Feed:
        loop = asyncio.get_running_loop()
        feed = self._feeds.get(loop)
        if feed is None:
            feed = self._feeds[loop] = Feed(loop, self._subscribers, self._queue_size)
        return feed


def _return(record: CallEvent) -> CallEvent:
    return record


def _end(attempt: Attempt, arrivals: Sequence[float], timers: Sequence[Any]) -> CallEvent:
    """Return the record of the end; report the times between chunks to those who measure them."""
    record = attempt.end()
    if not arrivals:
        return record
    pauses = [later - earlier for earlier, later in pairwise(arrivals)]
    for timer in timers:
        try:
            timer.time_chunks(record, pauses)
        except Exception:
            log.warning("the times between chunks cannot be recorded", exc_info=True)
    return record


def _start(attempt: Attempt, provider: Provider, request: Request) -> CallStarted:
    try:
        estimate = provider.estimate_input_tokens(request.messages, request.tools)
    except Exception:
        # an event must not be lost because the estimate fails
        log.warning("the tokens of an observed call cannot be estimated", exc_info=True)
        estimate = None
    return attempt.start(estimate)


# --- delivering events to listeners ------------------------------------------------------------


_Item: TypeAlias = tuple[Callable[[], CallEvent], contextvars.Context]


class Feed:
    """A bounded queue of events for the subscribers in one event loop.

    The task that delivers the events runs only while the queue is not empty.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, subscribers: tuple[Subscriber, ...], size: int
    ) -> None:
        self.dropped = 0
        self._loop = loop
        self._plain = [each for each in subscribers if not is_async(each)]
        self._coroutines = [each for each in subscribers if is_async(each)]
        self._size = size
        self._queue: deque[_Item] = deque()
        self._in_hand = 0
        self._untold = 0
        self._overflowing = False
        self._failed: set[int] = set()
        self._task: asyncio.Task[None] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def put(self, build: Callable[[], CallEvent], context: contextvars.Context) -> None:
        if not self._plain and not self._coroutines:
            return
        if len(self._queue) >= self._size:
            self.dropped += 1
            self._untold += 1
            if not self._overflowing:
                self._overflowing = True
                log.warning("observers do not keep up: events are dropped (see Observe.dropped)")
            return
        self._queue.append((build, context))
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._drain(), context=contextvars.Context())

    async def flush(self, seconds: float | None = None) -> bool:
        """Wait until the queue is empty; return false if that takes longer than ``seconds``."""
        task = self._task
        if task is None or task.done():
            return True
        done, _ = await asyncio.wait([task], timeout=seconds)
        return bool(done)

    async def close(self, seconds: float) -> None:
        if not await self.flush(seconds) and self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            left = self._in_hand + len(self._queue)
            self.dropped += left
            log.warning("observers did not finish in time: %d events were not delivered", left)
            self._queue.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    async def _drain(self) -> None:
        while self._queue or self._untold:
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            if self._untold:
                batch.append((partial(EventsDropped, self._untold), contextvars.Context()))
                self._untold = 0
            if len(self._queue) < self._size // 2:
                self._overflowing = False
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "dragoman-observe")
            # Use a thread, because token estimates and plain subscribers may be slow.
            self._in_hand = len(batch)
            built = await self._loop.run_in_executor(self._pool, self._hand_over, batch)
            for event, context, waiting in built:
                self._in_hand -= 1
                for subscriber, awaitable in waiting:
                    await self._finish(subscriber, awaitable, context)
                for subscriber in self._coroutines:
                    await self._finish(
                        subscriber, context.run(self._call, subscriber, event), context
                    )

    def _hand_over(
        self, batch: list[_Item]
    ) -> list[tuple[CallEvent, contextvars.Context, list[tuple[Subscriber, Any]]]]:
        """Build events and call the plain subscribers.

        Return each event together with the awaitables that subscribers returned.
        """
        built = []
        for build, context in batch:
            try:
                event = build()
            except Exception:
                log.warning("an event could not be put together", exc_info=True)
                continue
            waiting: list[tuple[Subscriber, Any]] = []
            for subscriber in self._plain:
                result = context.run(self._call, subscriber, event)
                if inspect.isawaitable(result):
                    waiting.append((subscriber, result))
            built.append((event, context, waiting))
        return built

    def _call(self, subscriber: Subscriber, event: CallEvent) -> Any:
        try:
            return subscriber(event)
        except Exception:
            self._report(subscriber)
            return None

    async def _finish(
        self, subscriber: Subscriber, awaitable: Any, context: contextvars.Context
    ) -> None:
        if awaitable is None:
            return
        try:
            if inspect.iscoroutine(awaitable):
                await self._loop.create_task(awaitable, context=context)
            else:
                await awaitable
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The subscriber itself has raised the cancellation; this task is not cancelled.
            self._report(subscriber)
        except Exception:
            self._report(subscriber)

    def _report(self, subscriber: Subscriber) -> None:
        """Log only the first failure of each subscriber, so that the log is not flooded."""
        if id(subscriber) not in self._failed:
            self._failed.add(id(subscriber))
            log.warning(
                "an observer failed; it is told of further events, its failures are not",
                exc_info=True,
            )
