"""Blocking calls of models: one portal thread runs the asynchronous code in an event loop.

``dragoman.sync`` has these names, and those of blocking sessions.
"""

from __future__ import annotations

import asyncio
import builtins
import contextvars
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from .errors import explain_attribute
from .events import Event, Parsed, Response, TextDelta
from .messages import RuntimeConfig
from .provider import EventStream, Gathered, Model, Provider
from .provider import connect as connect_async
from .provider import gather as gather_async
from .provider.model import METHODS
from .retrieval import Embedder, Reranker
from .retrieval import connect_embedder as connect_embedder_async
from .retrieval import connect_reranker as connect_reranker_async
from .validate import PartialValue
from .validate.arguments import (
    ConfigRecord,
    Messages,
    ResponseSchema,
    Settings,
    ToolChoices,
    Tools,
    Wanted,
)
from .wire import SwapPlan

__all__ = [
    "SyncEmbedder", "SyncEventStream", "SyncProvider", "SyncReranker", "close_soon", "connect",
    "connect_embedder", "connect_reranker", "gather", "run", "run_in_thread",
]  # fmt: skip

# Seconds after which the main thread runs the handlers of signals that did not wake it.
_TURN = 0.1

T = TypeVar("T")
M = TypeVar("M", bound=Model)
S = TypeVar("S")
P = ParamSpec("P")


async def run_in_thread(call: Callable[[], T], name: str) -> T:
    """Call a function in a daemon thread, which does not keep the program from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: T | None, error: Exception | None) -> None:
        if done.done():
            return  # the caller was cancelled, so the result is dropped
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value: T | None = None
        error: Exception | None = None
        try:
            value = context.run(call)
        except BaseException as raised:
            # sys.exit() in a tool ends the tool, not the program. A future rejects StopIteration.
            error = RuntimeError(f"it raised {type(raised).__name__}")
            if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
                error = raised
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            pass  # the event loop is closed, so the result cannot be delivered

    threading.Thread(target=work, name=name, daemon=True).start()
    return await done


class _PortalCall(Generic[T]):
    """A coroutine that runs in the portal while a thread waits for its result.

    An interrupt may raise in the waiting thread between any two instructions. So this thread
    holds no lock that the portal needs, and ``cancel`` also works if ``start`` was interrupted:
    both are callbacks of the loop, which alone starts and cancels the task.
    """

    def __init__(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._work: Coroutine[Any, Any, T] | None = work  # ``None`` once it is started or closed
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        self._result: T
        self._error: BaseException | None = None
        self._running = threading.Lock()
        self._running.acquire()

    def start(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._stop)

    def wait(self) -> T:
        # A signal that arrives just before the main thread begins to wait does not wake it. Its
        # handler runs when the wait ends, so the main thread never waits for long.
        is_main = threading.current_thread() is threading.main_thread()
        while not self._running.acquire(timeout=_TURN if is_main else -1):
            pass
        # an error must not refer to itself through the frames of its traceback
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error

    def _begin(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            self._task = self._loop.create_task(work)
            self._task.add_done_callback(self._end)

    def _stop(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.close()
        elif self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        # The task is dropped here and not in the waiting thread, because an interrupt that raises
        # in a finalizer is lost.
        self._task = None
        self._error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._error is None:
            self._result = task.result()
        self._running.release()


def _warn_in_loop() -> None:
    """Warn a coroutine that waits here: no other task of its event loop can run."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if not hasattr(builtins, "__IPYTHON__"):  # a notebook has a loop, and waits for each cell
        warnings.warn(
            "a synchronous call blocks the running event loop; await dragoman.connect(...) instead",
            RuntimeWarning,
            stacklevel=3,
        )


class _Portal:
    """One daemon thread with one event loop, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the portal thread and wait; an interrupt of the caller cancels it."""
        call = _PortalCall(work, self._open())
        try:
            call.start()
            return call.wait()
        except BaseException:
            call.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine in the portal without waiting for it."""
        asyncio.run_coroutine_threadsafe(work, self._open())

    def _open(self) -> asyncio.AbstractEventLoop:
        # A signal handler may use the portal while the main thread holds the lock; the loop is
        # then returned without it.
        if self._loop is None:
            with self._lock:
                if self._loop is None:
                    loop = asyncio.new_event_loop()
                    threading.Thread(
                        target=loop.run_forever, name="dragoman-portal", daemon=True
                    ).start()
                    self._loop = loop
        return self._loop


_portal = _Portal()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the thread of the blocking calls, and return its result.

    A provider that it opens there can be used by later calls of this function.
    """
    _warn_in_loop()
    return _portal.run(work)


class SyncEventStream(Generic[Parsed]):
    """A reply as a stream of events, to iterate with ``for``."""

    def __init__(self, stream: EventStream[Parsed]) -> None:
        self._stream = stream
        self.request_id = stream.request_id

    @property
    def ended(self) -> bool:
        """Whether the message is complete; see ``EventStream.ended``."""
        return self._stream.ended

    @property
    def response(self) -> Response[Parsed]:
        """The complete reply, once the stream has ended; see ``EventStream.response``."""
        return self._stream.response

    def text(self) -> Iterator[str]:
        """Iterate over the text of the reply as it arrives."""
        for event in self:
            if type(event) is TextDelta:
                yield event.text

    def partial(self) -> Iterator[Parsed | dict[str, Any] | list[Any] | str]:
        """Iterate over the structured value as it grows; see ``EventStream.partial``."""
        value = PartialValue(self._stream.request)
        for event in self:
            if type(event) is TextDelta:
                yield from value.feed(event)
        if self.response.parsed is not None:
            yield self.response.parsed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            return _portal.run(self._stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def cancel(self) -> bool:
        """End the stream as cancelled; may be called from any thread."""
        return _portal.run(self._stream.cancel())

    def close(self) -> None:
        """Stop reading and close the connection."""
        _portal.run(self._stream.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def close_soon(model: Model) -> None:
    """Close the model of a ``SyncProvider`` or ``SyncEmbedder`` without waiting.

    This is safe in a finalizer.
    """
    _portal.start(model.close())


class _Blocking(Generic[M]):
    """A model whose calls block. May be shared between threads."""

    def __init__(self, model: M) -> None:
        self._model = model
        self.name = model.name
        self.model = model.model

    def ready(self) -> None:
        """Check that the next call is expected to succeed; see ``Provider.ready``."""
        _portal.run(self._model.ready())

    def cancel(self, request_id: str) -> bool:
        """Cancel a call that another thread is waiting for; see ``Provider.cancel``."""
        return _portal.run(self._model.cancel(request_id))

    def close(self) -> None:
        """Release the connections; see ``Provider.close``."""
        _portal.run(self._model.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sync {self._model!r}>"

    if not TYPE_CHECKING:  # type checkers report these mistakes themselves

        async def __aenter__(self):
            raise TypeError("use 'with', or dragoman.connect for code that is async")

        async def __aexit__(self, *_):
            """Exist, so that Python calls ``__aenter__``, which explains the mistake."""

        def __getattr__(self, name):
            return explain_attribute(self, name, METHODS)


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the model's method of the same name and waits for its result."""

    @wraps(method)
    def call(self: _Blocking[Any], /, *arguments: P.args, **settings: P.kwargs) -> T:
        _warn_in_loop()
        work: Coroutine[Any, Any, T] = getattr(self._model, method.__name__)(
            *arguments, **settings
        )
        return _portal.run(work)

    return call


def _streaming(
    method: Callable[Concatenate[Any, P], EventStream[Parsed]],
) -> Callable[Concatenate[Any, P], SyncEventStream[Parsed]]:
    """Return a method that opens a stream in the portal, for blocking iteration."""

    @wraps(method)
    def call(
        self: _Blocking[Any], /, *arguments: P.args, **settings: P.kwargs
    ) -> SyncEventStream[Parsed]:
        _warn_in_loop()

        async def open_stream() -> Any:
            return getattr(self._model, method.__name__)(*arguments, **settings)

        return SyncEventStream(_portal.run(open_stream()))

    return call


class SyncProvider(_Blocking[Provider]):
    """A provider whose calls block. May be shared between threads."""

    @property
    def provider(self) -> Provider:
        """The asynchronous provider; its methods must run in the portal's event loop."""
        return self._model

    complete = _blocking(Provider.complete)
    """Call the model once and return its complete reply; see ``Provider.complete``."""

    stream = _streaming(Provider.stream)
    """Call the model and return its reply as a stream of events; see ``Provider.stream``."""

    def estimate_input_tokens(
        self, messages: Messages, tools: Tools | None = None, system_prompt: str | None = None
    ) -> int:
        """Estimate the input tokens of a request; see ``Provider.estimate_input_tokens``."""
        return self._model.estimate_input_tokens(messages, tools, system_prompt)

    def plan(self, messages: Messages) -> SwapPlan:
        """Return which parts of messages the wire keeps, rewrites or drops.

        See ``Provider.plan``.
        """
        return self._model.plan(messages)


class SyncEmbedder(_Blocking[Embedder]):
    """An embedder whose calls block. May be shared between threads."""

    @property
    def embedder(self) -> Embedder:
        """The asynchronous embedder; its methods must run in the portal's event loop."""
        return self._model

    embed = _blocking(Embedder.embed)
    """Return the embeddings of texts; see ``Embedder.embed``."""


class SyncReranker(_Blocking[Reranker]):
    """A reranker whose calls block. May be shared between threads."""

    @property
    def reranker(self) -> Reranker:
        """The asynchronous reranker; its methods must run in the portal's event loop."""
        return self._model

    rerank = _blocking(Reranker.rerank)
    """Rank documents by relevance to a query; see ``Reranker.rerank``."""


def _block(function: Callable[P, M], kind: Callable[[M], S]) -> Callable[P, S]:
    @wraps(function)
    def connect(*arguments: P.args, **settings: P.kwargs) -> S:
        return kind(function(*arguments, **settings))

    return connect


connect_embedder = _block(connect_embedder_async, SyncEmbedder)
"""Open an embedding model whose calls block; see ``dragoman.connect_embedder``."""

connect_reranker = _block(connect_reranker_async, SyncReranker)
"""Open a reranking model whose calls block; see ``dragoman.connect_reranker``."""

connect = _block(connect_async, SyncProvider)
"""Open a model whose calls block; see ``dragoman.connect``."""


def gather(
    model: SyncProvider,
    prompts: Iterable[Messages],
    tools: Tools | None = None,
    config: RuntimeConfig | ConfigRecord | None = None,
    response_schema: ResponseSchema[Wanted] | None = None,
    tool_choice: ToolChoices | None = None,
    *,
    concurrency: int = 8,
    ordered: bool = False,
    session_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
    **settings: Unpack[Settings],
) -> Iterator[Gathered[Wanted]]:
    """Call ``complete`` for every prompt, at most ``concurrency`` at once.

    This is the synchronous ``dragoman.gather``.

    Prompts are read in a separate thread, so their iterator may block or call a model itself.
    Closing the returned iterator cancels the calls in flight.
    """
    items = gather_async(
        model.provider, prompts if isinstance(prompts, str) else _take_in_thread(prompts),
        tools, config, response_schema, tool_choice,
        concurrency=concurrency, ordered=ordered, session_id=session_id, metadata=metadata,
        **settings,
    )  # fmt: skip

    # An interrupted read still runs in the portal for a while; the lock makes close() wait until
    # it has ended.
    one_at_a_time = asyncio.Lock()

    async def take() -> Gathered[Wanted] | None:
        async with one_at_a_time:
            return await anext(items, None)

    async def close() -> None:
        async with one_at_a_time:
            await items.aclose()

    try:
        while (item := _portal.run(take())) is not None:
            yield item
    finally:
        _portal.run(close())


async def _take_in_thread(prompts: Iterable[Messages]) -> AsyncIterator[Messages]:
    iterator = iter(prompts)
    while (taken := await asyncio.to_thread(_take, iterator)) is not None:
        yield taken[0]


def _take(iterator: Iterator[Messages]) -> tuple[Messages] | None:
    """Return the next prompt in a one-element tuple, or ``None`` at the end."""
    for prompt in iterator:
        return (prompt,)
    return None
