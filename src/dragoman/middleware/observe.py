"""Observability: report the start and the end of every call to subscribers."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar, TypeAlias
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

from ..calls import (
    IS_WORKER,
    STOP_REASONS,
    TURN,
    CallCompleted,
    CallFailed,
    CallStarted,
    find_stop_reason,
    price_usage,
    read_headers,
    redact,
)
from ..errors import ErrorClass, ProviderError
from ..events import Event, MessageComplete, Usage
from ..messages import Request, Thinking, ToolCall
from ..provider import Provider, Served
from ..retrieval import RetrievalModel
from ..retrieval.layer import RetrievalPolicy, put_around
from .answers import describe_request, record_answer, record_failed_request
from .attempts import MAX_MESSAGE, read_attempt
from .layer import RETRY_REASON, Middleware, Wrapper, check_number, find_served

log = logging.getLogger("dragoman")

BATCH = 100
FLUSH_SECONDS = 5.0


# --- events and types of the observer ----------------------------------------------------------


class EventsDropped(Struct, frozen=True, tag="observe.events_dropped"):
    """An event that reports how many events were dropped because the subscribers were too slow."""

    count: int
    type: ClassVar[str] = "observe.events_dropped"


CallEvent: TypeAlias = CallStarted | CallCompleted | CallFailed | EventsDropped
Subscriber: TypeAlias = Callable[[CallEvent], object]
Price: TypeAlias = Callable[[Usage, str], Any]


# --- the middleware that observes calls --------------------------------------------------------


class Observe(Wrapper, Middleware):
    """Report every attempt to subscribers as events.

    Each attempt causes a ``CallStarted``, and at its end a ``CallCompleted`` or a ``CallFailed``.

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
        provider: Provider,
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

    @classmethod
    def around_retrieval(
        cls, model: RetrievalModel[Any, Any], *arguments: Any, **settings: Any
    ) -> Any:
        """Return an embedder or a reranker whose requests are reported to subscribers."""
        return put_around(model, RetrievalObserve(*arguments, **settings))

    async def serve(self, request: Request, served: Served) -> AsyncGenerator[list[Event], None]:
        call = _Call(self, request, served)
        call.began()
        try:
            async with aclosing(self.inner.open(request)) as reply:
                served.reply = reply
                while batch := await reply.next():
                    if call.first is None:
                        call.first = self._clock()
                    if type(batch[-1]) is MessageComplete:
                        call.complete = batch[-1]
                    yield batch
        except BaseException as error:
            call.failed(error)
            raise
        call.ended()

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


class RetrievalObserve(RetrievalPolicy):
    """Report every request of an embedder or a reranker to subscribers; see ``Observe``."""

    title = "Observe"

    def __init__(
        self,
        *subscribers: Subscriber,
        queue_size: int = 1000,
        include_content: bool = False,
        price: Price | None = None,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], float] = time.time,
    ) -> None:
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
        self._feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, Feed] = WeakKeyDictionary()

    def settings(self) -> Mapping[str, Any]:
        return {
            "subscribers": self._subscribers,
            "queue_size": self._queue_size,
            "include_content": self._include_content,
        }

    async def answer(self, inner: RetrievalModel[Any, Any], request: Any) -> Any:
        feed, context, at, began = (
            self._feed(),
            contextvars.copy_context(),
            self._now(),
            self._clock(),
        )
        facts = partial(
            describe_request, inner, request, at, include_content=self._include_content
        )
        feed.put(lambda: CallStarted(**facts()), context)
        try:
            answer = await inner.answer(request)
        except BaseException as raised:
            # Read the usage now: later, the enclosing call adds the usage of its other requests to
            # the error.
            error, partial_answer, seconds = (
                raised,
                getattr(raised, "response", None),
                self._clock() - began,
            )
            feed.put(
                lambda: record_failed_request(
                    inner, facts(), error, partial_answer, seconds, self._price
                ),
                context,
            )
            raise
        seconds = self._clock() - began
        feed.put(lambda: record_answer(inner, facts(), answer, seconds, self._price), context)
        return answer

    async def flush(self) -> None:
        """Wait until all events of calls in this event loop are delivered."""
        feed = self._feeds.get(asyncio.get_running_loop())
        if feed is not None:
            await feed.flush()

    async def close(self, inner: RetrievalModel[Any, Any]) -> None:
        try:
            await inner.close()
        finally:
            feed = self._feeds.pop(asyncio.get_running_loop(), None)
            if feed is not None:
                await feed.close(FLUSH_SECONDS)

    def _feed(self) -> Feed:
        loop = asyncio.get_running_loop()
        feed = self._feeds.get(loop)
        if feed is None:
            feed = self._feeds[loop] = Feed(loop, self._subscribers, self._queue_size)
        return feed


class _Call:
    """One observed attempt of a call. Its events are built later, when they are delivered."""

    def __init__(self, owner: Observe, request: Request, served: Served) -> None:
        self.owner = owner
        self.request = request
        self.served = served
        self.first: float | None = None
        self.complete: MessageComplete | None = None
        self._feed = owner._feed()
        self._context = contextvars.copy_context()
        self._at = owner._now()
        self._began = owner._clock()

    def began(self) -> None:
        self._put(self._started_event)

    def ended(self) -> None:
        latency = self._since_start(self.owner._clock())
        complete = self.complete
        if complete is not None and complete.finish_reason in STOP_REASONS:
            self._put(partial(self._completed_event, complete, latency))
            return
        reason = complete.finish_reason if complete is not None else "error"
        word: ErrorClass = "cancelled" if reason == "cancelled" else "other"
        problem = f"the reply ended with finish_reason {reason!r}"
        self._put(partial(self._failed_event, word, None, problem, None, {}, latency))

    def failed(self, error: BaseException) -> None:
        latency = self._since_start(self.owner._clock())
        left = isinstance(error, asyncio.CancelledError | GeneratorExit)
        if left and self.complete is not None and not self.served.cancelled:
            self.ended()  # the reply was complete, although the reader did not read to the end
            return
        word: ErrorClass = "other"
        message, status = f"{type(error).__name__}: {error}", None
        category = error.category if isinstance(error, ProviderError) else None
        headers = error.headers if isinstance(error, ProviderError) else {}
        if left:
            word, message = "cancelled", "the call was cancelled"
        elif isinstance(error, ProviderError):
            word, message, status = error.error_class, str(error), error.status
        self._put(partial(self._failed_event, word, category, message, status, headers, latency))

    def _put(self, build: Callable[[], CallEvent]) -> None:
        self._feed.put(build, self._context)

    def _since_start(self, moment: float) -> float:
        return round((moment - self._began) * 1000, 3)

    # --- building events when they are delivered

    def _facts(self) -> dict[str, Any]:
        request, provider, reply = self.request, self.owner.inner, self.served.reply
        name = (reply.provider if reply is not None else "") or provider.name
        model = (reply.model if reply is not None else request.model) or provider.model
        return {
            "provider": name,
            "model": model,
            "server": find_served(provider, name, model).server,
            "request_id": request.request_id,
            "at": self._at,
            "attempt": read_attempt(request),
            "retry_reason": request.metadata.get(RETRY_REASON),
            "session_id": request.session_id,
            "turn_id": request.metadata.get(TURN),
            "stream": request.stream,
            "config": replace(request.config, extras={}),
            "request": request if self.owner._include_content else None,
        }

    def _started_event(self) -> CallStarted:
        request = self.request
        estimate = _try(self.owner.inner.estimate_input_tokens, request.messages, request.tools)
        facts = {**self._facts(), "provider": self.owner.inner.name}
        is_worker = request.metadata.get(IS_WORKER) == "true"
        return CallStarted(estimated_input_tokens=estimate, is_worker=is_worker, **facts)

    def _completed_event(self, complete: MessageComplete, latency: float) -> CallCompleted:
        facts = self._facts()
        kinds = [type(block) for block in complete.final_content]
        return CallCompleted(
            stop_reason=find_stop_reason(complete.finish_reason, complete.stop_sequence),
            latency_ms=latency,
            finish_reason=complete.finish_reason,
            first_event_ms=self._first_event_ms(),
            produced_tool_calls=kinds.count(ToolCall),
            produced_thinking_blocks=kinds.count(Thinking),
            response_model=complete.model,
            content=complete.final_content if self.owner._include_content else None,
            **facts,
            **self._use(complete.usage, facts),
            **(read_headers(self.served.reply.headers) if self.served.reply is not None else {}),
        )

    def _failed_event(
        self,
        word: ErrorClass,
        category: str | None,
        message: str,
        status: int | None,
        headers: Mapping[str, str],
        latency: float,
    ) -> CallFailed:
        facts, complete, reply = self._facts(), self.complete, self.served.reply
        return CallFailed(
            error_class=word,
            error_message_redacted=redact(message[:MAX_MESSAGE]),
            category=category,
            status=status,
            retry_count=facts["attempt"],
            latency_ms=latency,
            first_event_ms=self._first_event_ms(),
            finish_reason=complete.finish_reason if complete is not None else None,
            response_model=complete.model if complete is not None else None,
            **facts,
            **(self._use(reply.usage, facts) if reply is not None else {}),
            **read_headers(headers),
        )

    def _first_event_ms(self) -> float | None:
        return None if self.first is None else self._since_start(self.first)

    def _use(self, usage: Usage, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of an event that report the call's usage and cost."""
        sold_as = find_served(self.owner.inner, facts["provider"], facts["model"]).priced_as
        if self.owner._price is not None:
            bill = _try(self.owner._price, usage, f"{facts['provider']}:{facts['model']}")
        else:
            bill = _try(sold_as.cost, usage)
        return price_usage(usage, bill, sold_as.model)


def _try(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, or ``None`` if it raises.

    An event must not be lost because computing a price or an estimate fails.
    """
    try:
        return function(*arguments)
    except Exception:
        log.warning(
            "%s failed while a call was observed",
            getattr(function, "__name__", "it"),
            exc_info=True,
        )
        return None


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
        self._plain = [each for each in subscribers if not _is_async(each)]
        self._coroutines = [each for each in subscribers if _is_async(each)]
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


def _is_async(subscriber: Subscriber) -> bool:
    return inspect.iscoroutinefunction(subscriber) or inspect.iscoroutinefunction(
        getattr(type(subscriber), "__call__", None)  # noqa: B004 - an object with an async __call__
    )
