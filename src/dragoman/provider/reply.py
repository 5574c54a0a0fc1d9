"""``Reply``: the object that a provider returns for a call.

``Provider.open`` returns a reply. ``complete()`` and ``EventStream`` read it with ``next()``. A
middleware layer returns a ``WrappedReply`` around the reply of its inner provider, so that even a
cancelled call keeps its usage, raw bytes, warnings and opaque state in all layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

from msgspec.structs import replace

from ..calls import CallFailed, CallRecord
from ..errors import MalformedToolCallError, ProviderError, TimedOutError
from ..events import (
    Assembler,
    Event,
    Follower,
    MessageComplete,
    MessageStart,
    Usage,
    add_terms,
)
from ..messages import Assistant, AssistantBlock, Issuer, LossWarning, Request
from ..tokens import estimate_input_tokens


class Reply(ABC):
    """The reply to one request: its events as they arrive, and the properties of the call."""

    @property
    @abstractmethod
    def provider(self) -> str:
        """The name of the provider that serves the request.

        With a ``Fallback``, it is the chosen candidate's name.
        """

    @property
    @abstractmethod
    def model(self) -> str:
        """The provider's own name for the model that serves the request."""

    @property
    @abstractmethod
    def issuer(self) -> Issuer | None:
        """The issuer of the reply's opaque state; ``None`` until the request is sent."""

    @property
    @abstractmethod
    def attempt(self) -> int:
        """The number of the attempt, counted from 0 by ``Retry``."""

    @property
    @abstractmethod
    def usage(self) -> Usage:
        """The token counts that were reported so far."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The reply headers that are kept, such as the provider's request id and rate limits."""
        return {}

    @property
    def is_cached(self) -> bool:
        """Whether the reply comes from a cache."""
        return False

    @property
    def history(self) -> Sequence[CallRecord]:
        """Records of earlier failed attempts and of switches to another provider, in order."""
        return ()

    @property
    def failed(self) -> tuple[CallFailed, ...]:
        """The records of earlier failed attempts alone."""
        history = self.history
        return tuple([each for each in history if isinstance(each, CallFailed)]) if history else ()

    @property
    @abstractmethod
    def raw(self) -> Any:
        """What the provider has sent so far, as parsed JSON; ``None`` if it is not kept."""

    @property
    @abstractmethod
    def warnings(self) -> tuple[LossWarning, ...]:
        """Warnings about parts of the request that the wire could not express."""

    @abstractmethod
    async def next(self) -> list[Event]:
        """Wait for the next events and return them; return an empty list at the end of the reply.

        The first call of this method sends the request. If the model call fails after some events,
        the events that close the message are returned first; the next call raises the error.
        """

    @abstractmethod
    def cancel(self, undelivered: Sequence[Event] = ()) -> list[Event]:
        """End the message as cancelled; return its closing events, or none if it was complete.

        ``undelivered`` are the last events that ``next`` returned and that the caller did not
        deliver; they do not become part of the message. The connection stays open until ``aclose``
        is called.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connection. The properties and ``cancel`` can still be used."""


async def read_events(reply: Reply) -> AsyncIterator[Event]:
    """Yield the events of a reply one by one, and close the reply at the end."""
    async with aclosing(reply):
        while batch := await reply.next():
            for event in batch:
                yield event


class AssembledReply(Reply):
    """A reply whose events an assembler creates.

    ``out`` is the assembler, or ``None`` before the request is sent.
    """

    # Plain attributes replace the abstract properties, because they are set while the reply is
    # read.
    provider: str = ""
    model: str = ""
    attempt: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    history: Sequence[CallRecord] = ()  # pyright: ignore[reportIncompatibleMethodOverride]
    failed: tuple[CallFailed, ...] = ()  # pyright: ignore[reportIncompatibleMethodOverride]
    token_family: str = "default"  # noqa: S105 - a tokenizer family, not a secret

    def __init__(self, request: Request, provider: str, model: str) -> None:
        self.request = request
        self.provider = provider  # pyright: ignore[reportIncompatibleMethodOverride]
        self.model = request.model or model  # pyright: ignore[reportIncompatibleMethodOverride]
        self.out: Assembler | None = None
        self._failed = False

    @property
    def issuer(self) -> Issuer | None:
        return self.out.issuer if self.out is not None else None

    @property
    def usage(self) -> Usage:
        return self.out.reported if self.out is not None else Usage()

    @property
    def raw(self) -> Any:
        return self.out.kept.peek() if self.out is not None and self.out.kept is not None else None

    @property
    def warnings(self) -> tuple[LossWarning, ...]:
        return self.out.warnings if self.out is not None else ()

    def cancel(self, undelivered: Sequence[Event] = ()) -> list[Event]:
        is_sent = self.out is not None
        # The counts of a reply whose end was read are final, even if the caller did not read it.
        end = self.out.complete if self.out is not None else None
        is_counted = end is not None and end.usage.output_tokens is not None
        if self.out is None:
            self.out = Assembler(
                request_id=self.request.request_id, model=self.model, provider=self.provider
            )
        closing = self.out.cut(undelivered)
        # A failed call has been charged already, with nothing if it never left this machine.
        is_open = is_sent and not is_counted and not self._failed
        if is_open and closing and type(closing[-1]) is MessageComplete:
            self.out.reported = self._estimate(closing[-1].usage, closing[-1].final_content)
            closing[-1] = replace(closing[-1], usage=self.out.reported)
        return closing

    def _close(self, events: list[Event]) -> list[Event]:
        """Add an estimate of the usage to the closing event of an interrupted message."""
        out = self.out
        last = events[-1]
        if out is None or type(last) is not MessageComplete or last.finish_reason != "error":
            return events
        # Without an error, or with a malformed tool call, the message is complete, and so are its
        # counts.
        if out.error is None or isinstance(out.error, MalformedToolCallError):
            return events
        out.reported = self._estimate(last.usage, last.final_content)
        out.complete = replace(last, usage=out.reported)
        out.error.response = replace(out.error.response, usage=out.reported)
        return [*events[:-1], out.complete]

    def _charge(self, error: BaseException) -> None:
        """Estimate the input tokens of a request that timed out, since they may be billed."""
        self._failed = isinstance(error, ProviderError)
        is_late = isinstance(error, TimedOutError) and error.which != "connect"
        if is_late and self.out is not None and replace(self.out.reported, terms=()) == Usage():
            self.out.reported = self._estimate(Usage(), ())

    def _count_input(self) -> int:
        """Return the estimated input tokens of the request."""
        request = self.request
        return estimate_input_tokens(request.messages, request.tools, family=self.token_family)

    def _estimate(self, usage: Usage, content: Sequence[AssistantBlock]) -> Usage:
        """Return an estimate of what the provider bills for an interrupted message.

        The reported counts are too low: a provider reports them at the end of a stream, or reports
        one output token at the start.
        """
        messages = (Assistant(tuple(content)),) if content else ()
        written = estimate_input_tokens(messages, family=self.token_family) if messages else 0
        asked = usage.input_tokens
        if asked is None:
            asked = self._count_input()
        output = max(usage.output_tokens or 0, written)
        estimate = replace(
            usage, input_tokens=asked, output_tokens=output, total_tokens=None, estimated=True
        )
        return estimate if self.out is None else add_terms(estimate, self.out.terms)


class EventsReply(AssembledReply):
    """A reply whose events come from the method ``events`` of a provider.

    The provider creates the events itself, so a ``Follower`` records them. If the call is
    cancelled, the follower closes the message after the last delivered event.
    """

    def __init__(
        self,
        request: Request,
        provider: str,
        model: str,
        events: Callable[[Request], AsyncIterator[Event]],
    ) -> None:
        super().__init__(request, provider, model)
        self._events = events
        self._follower: Follower | None = None
        self._source: AsyncIterator[Event] | None = None
        self._ended = False

    async def next(self) -> list[Event]:
        if self._ended:
            return []
        if self._source is None or self._follower is None:
            self._source = self._events(self.request)
            self.out = self._follower = Follower(
                request_id=self.request.request_id, model=self.model, provider=self.provider
            )
        try:
            event = await anext(self._source)
        except StopAsyncIteration:
            await self.aclose()
            return []
        except BaseException as error:
            self._charge(error)
            await self.aclose()
            raise
        self._follower.follow(event)
        if type(event) is MessageStart and event.provider not in ("", self.provider):
            # The event has the name of the provider that answered, which may be a fallback.
            self.provider = event.provider
            self.model = event.model
        return [event]

    async def aclose(self) -> None:
        self._ended = True
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


class LayerCall:
    """The state of one call in a middleware layer.

    It has the inner provider's reply, the events that the layer holds back, and the history of
    earlier attempts.
    """

    __slots__ = ("_recorded", "attempt", "cancelled", "held", "history", "reply")

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.attempt: int | None = None
        self.held: list[Event] = []
        self.cancelled = False
        self.history: list[CallRecord] = []
        self._recorded: Reply | None = None

    def record(self, reply: Reply | None, *records: CallRecord) -> None:
        """Add the history of a failed reply, and further records, to the history of the call."""
        if reply is not None:
            self.history += reply.history
            self._recorded = reply
        self.history += records

    @property
    def behind(self) -> Sequence[CallRecord]:
        """The history of the call, followed by the history of the current reply."""
        if self.reply is None or self.reply is self._recorded:
            return self.history
        return [*self.history, *self.reply.history]


Serve: TypeAlias = Callable[[Request, LayerCall], AsyncGenerator[list[Event], None]]


class WrappedReply(Reply):
    """The reply of a middleware layer, which wraps the reply of the inner provider.

    ``serve`` is the layer's generator: it yields batches of events and sets ``Served.reply``. The
    code in its ``finally`` runs even if the caller drops the reply without closing it. The
    generator must not refer to this object, since a reference cycle would keep the connection open
    until the next garbage collection.
    """

    def __init__(self, request: Request, provider: str, model: str, serve: Serve) -> None:
        self._served = LayerCall()
        self._source = serve(request, self._served)
        self._unserved = _Unserved(request, provider, model)

    @property
    def inner(self) -> Reply:
        """The wrapped reply; an empty reply until the inner provider is called."""
        return self._served.reply or self._unserved

    @property
    def provider(self) -> str:
        return self.inner.provider

    @property
    def model(self) -> str:
        return self.inner.model

    @property
    def issuer(self) -> Issuer | None:
        return self.inner.issuer

    @property
    def attempt(self) -> int:
        return self.inner.attempt if self._served.attempt is None else self._served.attempt

    @property
    def usage(self) -> Usage:
        return self.inner.usage

    @property
    def headers(self) -> Mapping[str, str]:
        return self.inner.headers

    @property
    def is_cached(self) -> bool:
        return self.inner.is_cached

    @property
    def history(self) -> Sequence[CallRecord]:
        return self._served.behind

    @property
    def raw(self) -> Any:
        return self.inner.raw

    @property
    def warnings(self) -> tuple[LossWarning, ...]:
        return self.inner.warnings

    async def next(self) -> list[Event]:
        return await anext(self._source, [])

    def cancel(self, undelivered: Sequence[Event] = ()) -> list[Event]:
        closing = self.inner.cancel([*undelivered, *self._served.held])
        self._served.cancelled = self._served.cancelled or bool(closing)
        return closing

    async def aclose(self) -> None:
        await self._source.aclose()


class _Unserved(AssembledReply):
    """The empty reply that a layer has before it calls its inner provider."""

    async def next(self) -> list[Event]:
        return []

    async def aclose(self) -> None:
        pass
