"""The interface of providers: what a provider implements, and what callers use.

A provider implements only the method ``events``. The methods that callers use are derived from it,
so any source of events can be a complete provider.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from ..calls import Operation
from ..capabilities import Capabilities
from ..errors import (
    ProviderError,
    StreamInterruptedError,
    UnsupportedFeatureError,
    release_frames,
)
from ..events import (
    Event,
    MessageComplete,
    MessageStart,
    Response,
    Sale,
    make_response,
)
from ..messages import Message, Request, RuntimeConfig, System
from ..tokens import estimate_input_tokens, loaded_tools
from ..validate import (
    build_request,
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
    Wanted,
)
from ..wire import Codec, Encoded, SwapPlan, make_plan
from .awaited import awaited
from .deadline import open_within
from .model import Model
from .reply import EventsReply, Reply, read_events
from .stream import EventStream, WaitingCall

_NOTHING_KNOWN = Capabilities()


class Provider(Model):
    """One model that can be called.

    A subclass implements only ``events``; callers use the other methods.
    """

    operation: Operation = "chat"
    token_family: str = "default"  # noqa: S105 - a tokenizer family, not a secret
    searches_tools: bool = False
    """Whether the provider searches deferred tools, so that only the found ones are loaded."""

    if TYPE_CHECKING:

        @property
        def _kind(self) -> Provider: ...

    @abstractmethod
    def events(self, request: Request) -> AsyncIterator[Event]:
        """Yield the events of the reply to one request.

        The events follow the rules of the package ``dragoman.events``. If the call fails, the
        error is raised after the last event.
        """

    def open(self, request: Request) -> Reply:
        """Return the reply to a request; the first call of ``Reply.next`` sends the request.

        All callers use this method: ``complete``, ``stream``, middleware layers and the gateway.
        The default implementation reads ``events``.
        """
        reply = EventsReply(request, self.name, self.model, self.events)
        reply.token_family = self.token_family
        return reply

    @awaited
    async def complete(
        self,
        messages: Messages,
        tools: Tools | None = None,
        config: RuntimeConfig | ConfigRecord | None = None,
        response_schema: ResponseSchema[Wanted] | None = None,
        tool_choice: ToolChoices | None = None,
        *,
        request_id: str | None = None,
        session_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        check_calls: bool = True,
        continues: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - the error has the partial reply
        **settings: Unpack[Settings],
    ) -> Response[Wanted]:
        """Call the model once and return its complete reply; no tool is executed.

        ``settings`` are the fields of ``RuntimeConfig`` (``temperature=0``, ``max_tokens=50``,
        ...) and ``system``, a system prompt. If ``tools`` contains functions, they are described
        to the model and never called. ``session_id`` and ``metadata`` are stored in the records of
        the call and not sent. By default, a tool call that names an unknown tool or violates its
        schema raises an error; with ``check_calls=False`` it is returned. After ``timeout``
        seconds, the call ends with ``TimedOutError``, whatever it waits for; ``error.response``
        has the part of the reply that arrived, and its usage.
        """
        request = build_request(
            messages, tools, config, response_schema, tool_choice, model=self.model,
            request_id=request_id, session_id=session_id, metadata=metadata,
            check_calls=check_calls, continues=continues, settings=settings,
        )  # fmt: skip
        request = self.add_defaults(request)
        self._check_request(request)
        return await self._complete(request, timeout)

    @awaited
    async def send(self, request: Request) -> Response[Any]:
        """Check a request that was built before, send it, and return its complete reply.

        ``complete`` builds the request from its arguments. Use this method if you have a
        ``Request``; none of its fields is lost.
        """
        if request.stream or not request.model:
            request = replace(request, stream=False, model=request.model or self.model)
        request = self.add_defaults(request)
        self._check_request(request)
        return await self._complete(request)

    async def _complete(self, request: Request, seconds: float | None = None) -> Response[Any]:
        began = time.perf_counter()
        reply = open_within(self, request, seconds)
        first = None
        last = None
        waiting = WaitingCall()
        self._calls.add(request.request_id, waiting)
        try:
            try:
                while True:
                    batch = await reply.next()
                    waiting.check()
                    if not batch:
                        break
                    first = first or batch[0]
                    last = batch[-1]
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError):
                    reply.cancel()  # this estimates the usage of the interrupted call
                await reply.aclose()
                raise
        except asyncio.CancelledError:
            if waiting.is_interrupted():
                raise self._cancelled(request) from None
            raise
        except ProviderError as error:
            del reply  # it refers to the error
            release_frames(error)
            raise
        finally:
            waiting.end()
            self._calls.remove(request.request_id)
        if first is None or type(last) is not MessageComplete:
            raise StreamInterruptedError("the provider's events ended before the message did")
        sale = Sale(partial(self.find_sold, reply.provider, reply.model))
        latency = (time.perf_counter() - began) * 1000
        start = first if type(first) is MessageStart else None
        response: Response[Any] = make_response(start, last, latency, sale, reply.failed)
        if request.response_type is None:
            return response
        return replace(response, parsed=to_instance(response, request))

    def stream(
        self,
        messages: Messages,
        tools: Tools | None = None,
        config: RuntimeConfig | ConfigRecord | None = None,
        response_schema: ResponseSchema[Wanted] | None = None,
        tool_choice: ToolChoices | None = None,
        *,
        request_id: str | None = None,
        session_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        check_calls: bool = True,
        continues: bool = False,
        timeout: float | None = None,
        **settings: Unpack[Settings],
    ) -> EventStream[Wanted]:
        """Call the model and return its reply as a stream; see ``complete`` for the arguments.

        By default, a tool call that names an unknown tool or violates its schema is an error. With
        ``check_calls=False`` it becomes an intent, which the caller must check. With
        ``continues=True`` the last message may be a reply that the provider paused
        (``Response.is_paused``).
        """
        request = build_request(
            messages, tools, config, response_schema, tool_choice, model=self.model,
            request_id=request_id, stream=True, session_id=session_id, metadata=metadata,
            check_calls=check_calls, continues=continues, settings=settings,
        )  # fmt: skip
        request = self.add_defaults(request)
        self._check_request(request)
        reply = open_within(self, request, timeout)
        return EventStream(reply, request, self._calls, self.find_sold)

    def check(self, request: Request) -> None:
        """Raise an error if the model is known not to support the request; nothing is sent."""
        if self.capabilities == _NOTHING_KNOWN:
            return
        estimate = None
        if self.capabilities.known("max_context_tokens") is not None:
            # An estimate can be a third too high, so only a prompt that is certainly too long is
            # rejected locally.
            tools = loaded_tools(request.tools, searched=self.searches_tools)
            estimate = (
                estimate_input_tokens(
                    _find_read(self, request.messages), tools, family=self.token_family
                )
                * 2
                // 3
            )
        refusal = find_refusal(request, self.capabilities, estimate, results=False)
        if refusal is not None and refusal[0] != "no_structured_output_support":
            reason, error = refusal
            # errors that are raised before sending have a reason code that the adapter contract
            # defines
            error.provider_code = reason
            raise error
        if request.stream and self.capabilities.known("supports_streaming") is False:
            raise UnsupportedFeatureError("this model is known not to stream; use complete()")

    def estimate_input_tokens(
        self, messages: Messages, tools: Tools | None = None, system_prompt: str | None = None
    ) -> int:
        """Estimate the number of input tokens without calling the model."""
        family = self.token_family
        loaded = loaded_tools(parse_tools(tools), searched=self.searches_tools)
        read = _find_read(self, parse_messages(messages))
        return estimate_input_tokens(read, loaded, system_prompt, family=family)

    def compaction(self, tokens: int | None) -> dict[str, Any] | None:
        """Return the extras with which the provider compacts a conversation of ``tokens``.

        The result is ``None`` if the provider cannot do so.
        """
        return None

    def compacted_at(self, messages: Sequence[Message]) -> int:
        """Return the index of the last message with a compaction that this model can read.

        The compaction replaces the messages before it. The result is 0 if there is none.
        """
        return 0

    def plan(self, messages: Messages) -> SwapPlan:
        """Return which blocks of a conversation this model's wire would keep, rewrite or drop."""
        return self._plan(None, messages)

    def preview(self, request: Request) -> Encoded | None:
        """Return the HTTP request that a call would send first, without credentials.

        Return ``None`` if this provider does not send HTTP requests itself.
        """
        return None

    # --- methods for subclasses and middleware layers

    def add_defaults(self, request: Request) -> Request:
        """Return a request with the default settings of this provider, where it has none."""
        return request

    def _plan(self, codec: Codec | None, messages: Any) -> SwapPlan:
        # Some wires require ``max_tokens``; without a value, making the plan would fail.
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
        if refusal is None:
            return planned
        return replace(planned, items=(), refused=str(refusal[1]))


def _find_read(provider: Provider, messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages that a model reads: without messages that a compaction replaces."""
    at = provider.compacted_at(messages)
    system = [each for each in messages[:at] if type(each) is System]
    return [*system, *messages[at:]] if at else messages


class ReplyProvider(Provider):
    """A provider whose subclasses implement ``open`` instead of ``events``.

    ``events`` is derived from the ``Reply`` that ``open`` returns.
    """

    @abstractmethod
    def open(self, request: Request) -> Reply:
        """Return the reply to a request; the first call of ``Reply.next`` sends the request."""

    def events(self, request: Request) -> AsyncIterator[Event]:
        return read_events(self.open(request))


def plan(messages: Messages, target: Provider) -> SwapPlan:
    """Return which parts of a conversation the provider ``target`` would keep, rewrite or drop.

    Nothing is sent.
    """
    return target.plan(messages)
