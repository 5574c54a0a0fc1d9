"""Streams that can be cancelled, and a table of the calls in flight by request id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self
from weakref import ref

from msgspec.structs import replace

from ..calls import TURN
from ..errors import StreamInterruptedError, StructuredOutputError, release_frames
from ..events import (
    Event,
    MessageComplete,
    MessageStart,
    Parsed,
    Response,
    Sale,
    TextDelta,
    make_response,
)
from ..messages import Request
from ..validate import PartialValue, to_instance
from .reply import Reply


class CallsInFlight:
    """Calls in flight by request id.

    References to streams are weak: when a caller drops its stream, the call is removed.
    """

    def __init__(self) -> None:
        self._calls: dict[str, WaitingCall | ref[EventStream[Any]]] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._calls

    def add(self, request_id: str, call: WaitingCall) -> None:
        """Register a call of ``complete()`` as in flight."""
        self._calls[request_id] = call

    def add_stream(self, request_id: str, stream: EventStream[Any]) -> None:
        """Register a stream as in flight."""
        calls = self._calls
        calls[request_id] = ref(stream, lambda _: calls.pop(request_id, None))

    def remove(self, request_id: str) -> None:
        """Remove a call that has ended."""
        self._calls.pop(request_id, None)

    async def cancel(self, request_id: str) -> bool:
        """Cancel the call with this request id; return ``False`` if it is not in flight."""
        known = self._calls.get(request_id)
        call = known() if isinstance(known, ref) else known
        return await call.cancel() if call is not None else False


class _Interruptible:
    """A call that one task waits for and that another task may stop.

    ``cancel`` cancels the waiting task, which then undoes the cancellation with ``Task.uncancel``,
    as ``asyncio.timeout`` does. This needs neither a further task nor a queue between the socket
    and the caller. If the task is also cancelled for another reason, that cancellation takes
    effect.
    """

    _task: asyncio.Task[Any] | None = None
    _interrupting = False
    _others = 0

    def _note_task(self) -> None:
        """Record the waiting task and the number of cancellation requests that it already has."""
        self._task = asyncio.current_task()
        self._others = self._task.cancelling() if self._task is not None else 0

    def _interrupt(self) -> None:
        if self._task is not None and not self._interrupting:
            self._interrupting = True
            self._task.cancel()

    def check(self) -> None:
        """Raise the cancellation by ``cancel`` again if the code that waited has swallowed it."""
        if self._interrupting:
            raise asyncio.CancelledError

    def end(self) -> None:
        """Record that no task waits any more; a cancellation that became an error is undone."""
        if self._interrupting:
            self.is_interrupted()
        self._task = None

    def is_interrupted(self) -> bool:
        """Undo a cancellation by ``cancel``; return whether only ``cancel`` cancelled the task."""
        if not self._interrupting or self._task is None:
            return False
        self._interrupting = False
        return self._task.uncancel() <= self._others


class WaitingCall(_Interruptible):
    """A call of ``complete()`` that is in flight."""

    def __init__(self) -> None:
        self._note_task()

    async def cancel(self) -> bool:
        """Interrupt the waiting task; return ``False`` if the call has ended."""
        if self._task is None or self._interrupting:
            return False
        self._interrupt()
        return True


class EventStream(_Interruptible, Generic[Parsed]):
    """A reply as a stream of events; use it as a context manager, so that it is always closed.

    ``text()`` iterates over the text alone, ``partial()`` over a structured value as it grows.
    ``response`` is the complete reply after the stream has ended, even if it failed. ``cancel()``
    ends the stream early: it closes open tool calls, and the last event is ``message.complete``
    with the finish reason ``cancelled``. ``reply`` is the underlying ``Reply``, with the usage so
    far, the number of the attempt, and the provider that answers.
    """

    def __init__(
        self,
        reply: Reply,
        request: Request,
        calls: CallsInFlight | None = None,
        find_sold: Callable[[str, str], Any] | None = None,
    ) -> None:
        self.reply = reply
        self.request_id = request.request_id
        self._response: Response[Parsed] | None = None
        self.request = request
        self._find_sold = find_sold
        self._start: MessageStart | None = None
        self._batch: list[Event] = []  # the events that arrived together most recently
        self._at = 0  # how many events of ``_batch`` have been delivered
        self._ended = False
        self._unfit: StructuredOutputError | None = None
        self._began = time.perf_counter()
        self._calls = calls if calls is not None else CallsInFlight()
        self._calls.add_stream(self.request_id, self)

    @property
    def turn_id(self) -> str | None:
        """The turn of a session that the request belongs to, if any."""
        return self.request.metadata.get(TURN)

    @property
    def ended(self) -> bool:
        """Whether the message is complete, so that ``response`` is available."""
        return self._response is not None

    @property
    def response(self) -> Response[Parsed]:
        """The complete reply; raise ``RuntimeError`` if the stream has not ended yet."""
        if self._response is None:
            raise RuntimeError(
                "the stream has not ended: read it to its end, or cancel it, before using response"
            )
        return self._response

    if not TYPE_CHECKING:  # type checkers report these mistakes themselves

        def __iter__(self):
            raise TypeError("use 'async for': the events of a stream arrive one by one")

        def __enter__(self):
            raise TypeError("use 'async with', or dragoman.sync for code that is not async")

        def __exit__(self, *_):
            """Exist, so that Python calls ``__enter__``, which explains the mistake."""

        def __await__(self):
            raise TypeError("a stream is not awaited: use 'async for event in stream'")

    async def text(self) -> AsyncIterator[str]:
        """Iterate over the text of the reply as it arrives."""
        async for event in self:
            if type(event) is TextDelta:
                yield event.text

    async def partial(self) -> AsyncIterator[Parsed | dict[str, Any] | list[Any] | str]:
        """Iterate over the structured value as it grows; the last item is the validated instance.

        The other items are plain data: objects, lists and strings contain the part that has
        arrived. A number appears only when it is complete. Complete parts satisfy the schema: when
        a part violates it, no item follows, and the stream ends with a ``StructuredOutputError``.
        """
        value = PartialValue(self.request)
        async for event in self:
            if type(event) is TextDelta:
                for item in value.feed(event):
                    yield item
        if self.response.parsed is not None:
            yield self.response.parsed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        at = self._at
        if at == len(self._batch):
            await self._fetch()
            at = 0
        self._at = at + 1
        event = self._batch[at]
        if type(event) is MessageComplete and self._response is None:
            self._finish(event)
        return event

    async def _fetch(self) -> None:
        """Wait for the next batch of events."""
        if self._ended:
            raise StopAsyncIteration
        self._batch = []
        self._at = 0
        self._note_task()
        try:
            self._batch = await self.reply.next()
            self.check()
        except asyncio.CancelledError:
            # If a caller continues to iterate after its task was cancelled, it receives the
            # closing events.
            await self._cancel_reply()
            if not self.is_interrupted():
                raise
        except BaseException as error:
            self._end()
            release_frames(error)
            raise
        finally:
            self.end()
        if not self._batch:
            self._at_end()
        elif self._start is None:
            self._start = find_start(self._batch)

    def _at_end(self) -> None:
        self._end()
        if self._response is None:
            raise StreamInterruptedError("the provider's events ended before the message did")
        # the message is complete but violates the schema; ``complete()`` raises the same error
        if self._unfit is not None:
            raise self._unfit from self._unfit.__cause__
        raise StopAsyncIteration

    async def cancel(self) -> bool:
        """End the stream as cancelled; return ``False`` if its message was already complete."""
        if self._ended or self._interrupting:
            return False
        is_complete = self._response is not None
        if self._task is not None:
            self._interrupt()
        elif not is_complete:
            await self._cancel_reply()
        return not is_complete

    async def aclose(self) -> None:
        """Stop reading and close the connection; no further events are delivered."""
        if self._task is not None:
            self._interrupt()
            return
        if not self._ended:
            await self._cancel_reply()
        self._batch = []
        self._at = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _finish(self, complete: MessageComplete) -> None:
        latency = (time.perf_counter() - self._began) * 1000
        sale = (
            Sale(partial(self._find_sold, self.reply.provider, self.reply.model))
            if self._find_sold
            else None
        )
        failed = self.reply.failed
        response: Response[Any] = make_response(self._start, complete, latency, sale, failed)
        if self.request.response_type is not None:
            try:
                response = replace(response, parsed=to_instance(response, self.request))
            except StructuredOutputError as error:
                self._unfit = error
                response = replace(response, parsed=None)
        self._response = response
        self._calls.remove(self.request_id)

    async def _cancel_reply(self) -> None:
        """End the message after the last delivered event, and close the connection."""
        self._end()
        if self._response is None:
            self._batch = self.reply.cancel(self._batch[self._at :])
            self._at = 0
            self._start = find_start(self._batch) or self._start
            if self._batch and type(last := self._batch[-1]) is MessageComplete:
                self._finish(last)
        await self.reply.aclose()

    def _end(self) -> None:
        self._ended = True
        self._calls.remove(self.request_id)


def find_start(batch: list[Event]) -> MessageStart | None:
    """Return the event that begins the message; ``None`` if it is not in this batch."""
    return next((event for event in batch if type(event) is MessageStart), None)
