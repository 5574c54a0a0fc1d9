"""The contract: what every provider implements, and what callers use.

``Provider`` has one method to implement, ``events``. Everything that callers use is derived from
it, so any source of events is a full provider.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Self, Unpack

from msgspec.structs import replace

from ..capabilities import Capabilities
from ..errors import (
    CallCancelledError,
    InvalidRequestError,
    ProviderError,
    StreamInterruptedError,
    UnsupportedFeatureError,
    quote,
)
from ..events import Event, MessageComplete, Parsed, Response, Sale, fold
from ..messages import Request, RuntimeConfig
from ..prices import PricedAs, PriceRow
from ..tokens import estimate_input_tokens
from ..validate import (
    build_request,
    check_request,
    find_refusal,
    parse_messages,
    parse_tools,
    to_instance,
)
from ..validate.arguments import (
    ConfigRecord,
    Messages,
    ResponseSchema,
    Settings,
    ToolChoices,
    Tools,
)
from ..wire import Codec, SwapPlan, make_plan
from .reply import EventsReply, Reply, read_events
from .stream import CallsInFlight, EventStream, WaitingCall

_NOTHING_KNOWN = Capabilities()


class Provider(ABC):
    """One model that can be called.

    A subclass implements ``events``; callers use the other methods.
    """

    name: str = ""
    model: str = ""
    capabilities: Capabilities = Capabilities()
    token_family: str = "default"  # noqa: S105 - of vocabularies, see ``tokens``
    server: str | None = None
    """The host and port that calls go to, such as ``api.example.com:443``; ``None`` if they use no
    network.
    """
    _priced_as: PricedAs | None = None

    @property
    def priced_as(self) -> PricedAs:
        """The price of calls.

        Assign ``"vendor:model"`` in a price table, ``"free"``, or a ``PriceRow``.
        """
        return self._priced_as or self._find_seller()

    @priced_as.setter
    def priced_as(self, given: PricedAs | PriceRow | str) -> None:
        self._priced_as = PricedAs.of(given, self.model)

    @abstractmethod
    def events(self, request: Request) -> AsyncIterator[Event]:
        """Yield the events of the reply to one request.

        They obey the rules of an event stream; if the call failed, the error is raised after them.
        """

    def open(self, request: Request) -> Reply:
        """Return the reply to a request. Nothing is sent before its first ``next()``.

        Every call goes through this method: ``complete``, ``stream``, a layer around this
        provider, the gateway. The default reads ``events``.
        """
        reply = EventsReply(request, self.name, self.model, self.events)
        reply.token_family = self.token_family
        return reply

    async def ready(self) -> None:  # noqa: B027
        """Check that the next call is likely to succeed; raise the expected error if it is not."""

    async def close(self) -> None:  # noqa: B027
        """Release connections."""

    async def complete(
        self,
        messages: Messages,
        tools: Tools | None = None,
        config: RuntimeConfig | ConfigRecord | None = None,
        response_schema: ResponseSchema[Parsed] | None = None,
        tool_choice: ToolChoices | None = None,
        *,
        request_id: str | None = None,
        session_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        check_calls: bool = True,
        continues: bool = False,
        **settings: Unpack[Settings],
    ) -> Response[Parsed]:
        """Call the model once and return its complete reply. Nothing is executed.

        ``settings`` are the fields of ``RuntimeConfig`` (``temperature=0``, ``max_tokens=50``,
        ...) and ``system``, a system prompt. Functions among ``tools`` are described, never
        called. ``session_id`` and ``metadata`` go to the records of the call, not to the provider.
        With ``check_calls=False`` a call of an unknown tool, or with arguments that violate the
        schema, is returned instead of raising an error.
        """
        request = self._request(
            messages, tools, config, response_schema, tool_choice, check_calls=check_calls,
            continues=continues,
            request_id=request_id, session_id=session_id, metadata=metadata, settings=settings,
        )  # fmt: skip
        began = time.perf_counter()
        reply, first, last = self.open(request), None, None
        waiting = WaitingCall()
        self._calls.add(request.request_id, waiting)
        try:
            while batch := await reply.next():
                first, last = first or batch[0], batch[-1]
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                reply.cancel()  # cancelling the reply adds estimated usage to the error
            await reply.aclose()
            if isinstance(error, asyncio.CancelledError) and waiting.is_interrupted():
                raise self._cancelled(request) from None
            raise
        finally:
            waiting.end()
            self._calls.remove(request.request_id)
        if first is None or type(last) is not MessageComplete:
            raise StreamInterruptedError("the provider's events ended before the message did")
        sale = Sale(partial(self.find_sold, reply.provider, reply.model))
        response: Response[Any] = fold((first, last), (time.perf_counter() - began) * 1000, sale)
        if request.response_type is None:
            return response
        return replace(response, parsed=to_instance(response, request))

    def stream(
        self,
        messages: Messages,
        tools: Tools | None = None,
        config: RuntimeConfig | ConfigRecord | None = None,
        response_schema: ResponseSchema[Parsed] | None = None,
        tool_choice: ToolChoices | None = None,
        *,
        request_id: str | None = None,
        session_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        check_calls: bool = True,
        continues: bool = False,
        **settings: Unpack[Settings],
    ) -> EventStream[Parsed]:
        """Call the model and return its reply as a stream; it takes the arguments of ``complete``.

        With ``check_calls=False`` a call of an unknown tool, or with arguments that violate the
        schema, becomes an intent instead of an error: the caller checks it. With
        ``continues=True`` the last message may be a reply that its provider paused
        (``Response.is_paused``).
        """
        request = self._request(
            messages, tools, config, response_schema, tool_choice, stream=True,
            check_calls=check_calls,
            continues=continues,
            request_id=request_id, session_id=session_id, metadata=metadata, settings=settings,
        )  # fmt: skip
        return EventStream(self.open(request), request, self._calls, self.find_sold)

    async def cancel(self, request_id: str) -> bool:
        """Cancel the call in flight with this id; return whether there was one. Idempotent."""
        return await self._calls.cancel(request_id)

    def find_sold(self, name: str, model: str) -> PricedAs:
        """Return the price of a call that the inner provider with this name and model answered."""
        return self.priced_as

    def check(self, request: Request) -> None:
        """Raise an error before sending if the model is known not to support the request."""
        if self.capabilities == _NOTHING_KNOWN:
            return
        estimate = None
        if self.capabilities.known("max_context_tokens") is not None:
            # An estimate can be a third too high, so only a prompt that is certainly too long is
            # rejected locally.
            estimate = (
                estimate_input_tokens(request.messages, request.tools, family=self.token_family)
                * 2
                // 3
            )
        refusal = find_refusal(request, self.capabilities, estimate, results=False)
        if refusal is not None and refusal[0] != "no_structured_output_support":
            reason, error = refusal
            # An error raised before sending has the adapter contract's reason code.
            error.provider_code = reason
            raise error
        if request.stream and self.capabilities.known("supports_streaming") is False:
            raise UnsupportedFeatureError("this model is known not to stream; use complete()")

    def estimate_input_tokens(
        self, messages: Messages, tools: Tools | None = None, system_prompt: str | None = None
    ) -> int:
        """Estimate the number of input tokens without calling the model."""
        family = self.token_family
        return estimate_input_tokens(
            parse_messages(messages), parse_tools(tools), system_prompt, family=family
        )

    @property
    def lessons(self) -> tuple[str, ...]:
        """The fields that the endpoint has rejected, and what is sent instead.

        ``describe()`` shows them.
        """
        return ()

    def plan(self, messages: Messages) -> SwapPlan:
        """Return which blocks of a conversation this model's wire keeps, rewrites or drops."""
        return self._plan(None, messages)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or '?'} {self.model or '?'}>"

    # --- methods for subclasses and middleware layers

    def _find_seller(self) -> PricedAs:
        return PricedAs(f"{self.name}:{self.model}")

    @cached_property
    def _calls(self) -> CallsInFlight:
        return CallsInFlight()  # created on first use: subclasses need not call __init__

    def _request(self, *arguments: Any, request_id: str | None, **more: Any) -> Request:
        request = build_request(*arguments, model=self.model, request_id=request_id, **more)
        try:
            check_request(request)
            self.check(request)
            if request_id is not None and request_id in self._calls:
                raise InvalidRequestError(f"request_id {quote(request_id)} is already in flight")
        except ProviderError as error:
            error.provider, error.model, error.request_id = (
                self.name or None,
                self.model or None,
                request.request_id,
            )
            raise
        return request

    def _plan(self, codec: Codec | None, messages: Any) -> SwapPlan:
        # Some wires require max_tokens; set one so that planning does not fail.
        request = Request(
            parse_messages(messages), config=RuntimeConfig(max_tokens=1), model=self.model
        )
        refusal = (
            find_refusal(request, self.capabilities, results=False) if request.messages else None
        )
        planned = make_plan(
            codec,
            request,
            f"{self.name}:{self.model}" if self.name else self.model,
            estimated_tokens=estimate_input_tokens(request.messages, family=self.token_family),
            context_tokens=self.capabilities.known("max_context_tokens"),
        )
        return planned if refusal is None else replace(planned, refused=str(refusal[1]))

    def _cancelled(self, request: Request) -> CallCancelledError:
        return CallCancelledError(
            "the call was cancelled",
            provider=self.name or None,
            model=self.model,
            request_id=request.request_id,
        )


class ReplyProvider(Provider):
    """A provider that creates ``Reply`` objects.

    A subclass implements ``open``, from which ``events`` is derived.
    """

    @abstractmethod
    def open(self, request: Request) -> Reply:
        """Return the reply to a request. Nothing is sent before its first ``next()``."""

    def events(self, request: Request) -> AsyncIterator[Event]:
        return read_events(self.open(request))


def plan(messages: Messages, target: Provider) -> SwapPlan:
    """Return which parts of a conversation ``target`` keeps, rewrites or drops; send nothing."""
    return target.plan(messages)
