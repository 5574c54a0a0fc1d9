"""The provider: one model, one contract, no state.

``Provider`` has one method to implement, ``events``; everything a caller uses is derived from it, so
that anything which makes events is a whole provider. ``HttpProvider`` is the one that encodes, sends
and decodes. It never retries, never loops, never executes a tool and never calls ``ready()`` by itself.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeAlias, final
from weakref import ref

import msgspec
from msgspec.structs import replace

from .capabilities import Capabilities
from .errors import (
    CallCancelledError,
    InvalidRequestError,
    ProviderError,
    StreamInterruptedError,
    StructuredOutputError,
    UnsupportedContentError,
    UnsupportedFeatureError,
    quote,
    without_frames,
)
from .events import Assembler, Event, MessageComplete, MessageStart, Partial, Response, fold
from .messages import Issuer, LossWarning, Request, RuntimeConfig, Text, Thinking, ToolCall, ToolChoice
from .tokens import FAMILIES, estimate_input_tokens
from .transport import MAX_ERROR_BODY, HttpTransport, Reply, Secret, Timeouts, Transport
from .validate import Expectation, build_request, check_request, find_refusal, parse_messages, parse_tools
from .wire import CODECS, Codec, Decoder, Encoded, HttpReply, HttpRequest, SwapPlan, make_plan

__all__ = ["SCHEMES", "EventStream", "HttpProvider", "Messages", "Provider", "connect", "plan"]

log = logging.getLogger("dragoman")

_NOTHING_KNOWN = Capabilities()
# So many seconds the body of a refusal is waited for.
_PATIENCE = 10.0

Messages = Any
"""Text, one message, or a sequence of messages: our values, plain records or chat-completion dicts."""


class Provider(ABC):
    """A model that answers. Subclasses say how in ``events``; callers use the rest."""

    name: str = ""
    model: str = ""
    capabilities: Capabilities = Capabilities()
    token_family: str = "default"  # noqa: S105 - of vocabularies, see ``tokens``

    @abstractmethod
    def events(self, request: Request) -> AsyncIterator[Event]:
        """Answer one request as events that keep the stream's rules, then raise if it failed."""

    async def ready(self) -> None:  # noqa: B027
        """Return if the next call can be expected to succeed; raise what stands in the way."""

    async def close(self) -> None:  # noqa: B027
        """Release connections."""

    async def complete(
        self,
        messages: Messages,
        tools: Any = None,
        config: RuntimeConfig | Mapping[str, Any] | None = None,
        response_schema: Any = None,
        tool_choice: ToolChoice | Mapping[str, Any] | None = None,
        *,
        request_id: str | None = None,
    ) -> Response:
        """Ask, wait for the whole reply, and return it. One call to the model; nothing is executed."""
        request = self._request(messages, tools, config, response_schema, tool_choice, request_id, stream=False)
        began = time.perf_counter()
        waiting = _Waiting(self._calls(), request.request_id)
        try:
            heard = await self._hear(request)
        except asyncio.CancelledError:
            if waiting.is_interrupted():
                raise self._cancelled(request) from None
            raise
        finally:
            waiting.end()
        response = fold(heard, (time.perf_counter() - began) * 1000)
        if response_schema is None:
            return response
        return replace(response, parsed=_as_instance(response, response_schema, request))

    def stream(
        self,
        messages: Messages,
        tools: Any = None,
        config: RuntimeConfig | Mapping[str, Any] | None = None,
        response_schema: Any = None,
        tool_choice: ToolChoice | Mapping[str, Any] | None = None,
        *,
        request_id: str | None = None,
    ) -> EventStream:
        """Ask, and return the reply as a stream of events."""
        request = self._request(messages, tools, config, response_schema, tool_choice, request_id, stream=True)
        return EventStream(self, request, response_schema)

    async def cancel(self, request_id: str) -> bool:
        """Abort a call in flight; ``False`` if there is none of this id. Calling it again does no harm."""
        known = self._calls().get(request_id)
        call = known() if known is not None else None
        return await call.cancel() if call is not None else False

    def estimate_input_tokens(self, messages: Messages, tools: Any = None, system_prompt: str | None = None) -> int:
        """About how many tokens this will be, without asking anybody."""
        family = self.token_family
        return estimate_input_tokens(parse_messages(messages), parse_tools(tools), system_prompt, family=family)

    def plan(self, messages: Messages) -> SwapPlan:
        """What would become of this conversation here: kept, rewritten or dropped, block by block."""
        return self._plan(None, messages)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or '?'} {self.model or '?'}>"

    # inside

    async def _batches(self, request: Request, partial: Partial | None = None) -> AsyncIterator[list[Event]]:
        """The events in the portions they arrive in; ``partial`` is told who makes them, if one assembler does."""
        source = self.events(request)
        try:
            async for event in source:
                yield [event]
        finally:
            await _close(source)

    async def _hear(self, request: Request) -> list[Event]:
        """The first and the last event of the whole reply, of which the others are parts."""
        ends: list[Event] = []
        async for batch in self._batches(request):
            ends += [event for event in batch if type(event) is MessageComplete or type(event) is MessageStart]
        if not ends or type(ends[-1]) is not MessageComplete:
            raise StreamInterruptedError("the provider's events ended before the message did")
        return ends

    def _calls(self) -> _Calls:
        """Calls in flight by request id. Weak: a stream that was dropped is not in flight."""
        calls: _Calls | None = self.__dict__.get("_in_flight")
        if calls is None:
            calls = self.__dict__["_in_flight"] = {}
        return calls

    def _request(
        self, messages: Any, tools: Any, config: Any, schema: Any, choice: Any, request_id: str | None, *, stream: bool
    ) -> Request:
        request = build_request(
            messages, tools, config, schema, choice, model=self.model, request_id=request_id, stream=stream
        )
        try:
            check_request(request)
            self._refuse_known(request)
            if request_id is not None and request_id in self._calls():
                raise InvalidRequestError(f"request_id {quote(request_id)} is already in flight")
        except ProviderError as error:
            error.provider, error.model, error.request_id = self.name or None, self.model or None, request.request_id
            raise
        return request

    def _refuse_known(self, request: Request) -> None:
        if self.capabilities == _NOTHING_KNOWN:
            return
        estimate = None
        if self.capabilities.known("max_context_tokens") is not None:
            # An estimate can be a third too high; only what is surely too long is refused unasked.
            estimate = estimate_input_tokens(request.messages, request.tools, family=self.token_family) * 2 // 3
        refusal = find_refusal(request, self.capabilities, estimate)
        if refusal is not None and refusal[0] != "no_structured_output_support":
            reason, error = refusal
            error.provider_code = reason  # nobody was asked, so the word is the contract's
            raise error
        if request.stream and self.capabilities.known("supports_streaming") is False:
            raise UnsupportedFeatureError("this model is known not to stream; use complete()")

    def _plan(self, codec: Codec | None, messages: Any) -> SwapPlan:
        # A wire that demands max_tokens is not to refuse a plan for want of it.
        request = Request(parse_messages(messages), config=RuntimeConfig(max_tokens=1), model=self.model)
        refusal = find_refusal(request, self.capabilities) if request.messages else None
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
            "the call was cancelled", provider=self.name or None, model=self.model, request_id=request.request_id
        )


async def _close(source: AsyncIterator[Any]) -> None:
    """Close a source of events at once; left to the event loop, its socket would stay open until later."""
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


def _as_instance(response: Response, schema: Any, request: Request) -> Any:
    """The structured value as the type the caller asked for, if it asked by type."""
    value = response.parsed
    if value is None or schema is None or isinstance(schema, Mapping):
        return value
    try:
        if hasattr(schema, "model_validate"):  # Pydantic, by its shape
            return schema.model_validate(value)
        return msgspec.convert(value, schema)
    except ValueError as error:  # both libraries' validation errors
        raise StructuredOutputError(
            f"the reply does not fit {getattr(schema, '__name__', schema)}",
            response_schema=request.response_schema,
            output_content=response.text,
            error_message=str(error),
            finish_reason=response.finish_reason,
            usage=response.usage,
            response=response,
            request_id=request.request_id,
        ) from error


def plan(messages: Messages, target: Provider) -> SwapPlan:
    """What would become of a conversation on ``target``, without sending anything."""
    return target.plan(messages)


# --- calls in flight ------------------------------------------------------------------------------


_Calls: TypeAlias = "dict[str, ref[EventStream | _Waiting]]"


class _Interruptible:
    """Something a task waits in and another may stop, without touching cancellations from outside.

    The waiting task is cancelled and takes our cancellation back (as ``asyncio.timeout`` does), so
    no task and no queue stands between the socket and the caller.
    """

    _task: asyncio.Task[Any] | None = None
    _interrupting = False
    _others = 0

    def _wait(self) -> None:
        """Begin to wait in the present task; cancellations that it has by now are not ours."""
        self._task = asyncio.current_task()
        self._others = self._task.cancelling() if self._task is not None else 0

    def _interrupt(self) -> None:
        if self._task is not None and not self._interrupting:
            self._interrupting = True
            self._task.cancel()

    def is_interrupted(self) -> bool:
        """Was the task cancelled by us, and by nobody else? Then the cancellation is taken back."""
        if not self._interrupting or self._task is None:
            return False
        self._interrupting = False
        return self._task.uncancel() <= self._others


class _Waiting(_Interruptible):
    """A ``complete()`` in flight."""

    def __init__(self, calls: _Calls, request_id: str) -> None:
        self._calls = calls
        self._request_id = request_id
        self._wait()
        calls[request_id] = ref(self)

    def end(self) -> None:
        self._task = None
        self._calls.pop(self._request_id, None)

    async def cancel(self) -> bool:
        if self._task is None or self._interrupting:
            return False
        self._interrupt()
        return True


class EventStream(_Interruptible):
    """A reply as it comes: iterate it, or use it as a context manager to be sure it is closed.

    ``response`` is the whole reply once the stream has ended, in whatever way. ``cancel()`` ends it
    early but well: open calls are closed, the last event is ``message.complete`` with ``cancelled``.
    """

    def __init__(self, provider: Provider, request: Request, schema: Any = None) -> None:
        self.request_id = request.request_id
        self.response: Response | None = None
        self._provider = provider
        self._request = request
        self._schema = schema
        self._partial = Partial()
        self._source = provider._batches(request, self._partial)
        self._batch: list[Event] = []  # what arrived together
        self._at = 0  # how much of it was handed out
        self._ended = False
        self._unfit: StructuredOutputError | None = None
        self._began = time.perf_counter()
        self._calls = calls = provider._calls()
        calls[request.request_id] = ref(self, lambda _: calls.pop(request.request_id, None))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        at = self._at
        if at == len(self._batch):
            await self._fetch()
            at = 0
        self._at = at + 1
        event = self._batch[at]
        if type(event) is MessageComplete and self.response is None:
            self._finish(event)
        return event

    async def _fetch(self) -> None:
        """Wait for the next batch."""
        if self._ended:
            raise StopAsyncIteration
        self._partial.extend(self._batch)
        self._batch, self._at = [], 0
        self._wait()
        try:
            self._batch = await self._source.__anext__()
        except asyncio.CancelledError:
            # Whoever goes on after a cancellation of theirs is told how it ended, too.
            await self._close_well()
            if not self.is_interrupted():
                raise
        except StopAsyncIteration:
            self._end()
            if self.response is None:
                raise StreamInterruptedError("the provider's events ended before the message did") from None
            if self._unfit is not None:  # as complete() does: the message is whole, and not what was asked for
                raise self._unfit from self._unfit.__cause__
            raise
        except BaseException:
            self._end()
            raise
        finally:
            self._task = None

    async def cancel(self) -> bool:
        """End the stream as cancelled; ``False`` if it had ended."""
        if self._ended or self._interrupting or self.response is not None:
            return False
        if self._task is not None:
            self._interrupt()
        else:
            await self._close_well()
        return True

    async def aclose(self) -> None:
        """Stop and close the connection, without further events."""
        if self._task is not None:
            self._interrupt()
            return
        if not self._ended:
            await self._close_well()
        self._batch, self._at = [], 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _finish(self, complete: MessageComplete) -> None:
        latency = (time.perf_counter() - self._began) * 1000
        response = fold([*self._partial.opening(self._batch), complete], latency)
        try:
            response = replace(response, parsed=_as_instance(response, self._schema, self._request))
        except StructuredOutputError as error:
            self._unfit = error
            response = replace(response, parsed=None)
        self.response = response
        self._calls.pop(self.request_id, None)

    async def _close_well(self) -> None:
        self._end()
        if self.response is None:
            said, unsaid = self._batch[: self._at], self._batch[self._at :]
            self._partial.extend(said)
            self._batch = self._partial.close(self.request_id, self._provider.model, self._provider.name, unsaid)
            self._at = 0
            if self._batch and isinstance(last := self._batch[-1], MessageComplete):
                self._finish(last)
        await _close(self._source)

    def _end(self) -> None:
        self._ended = True
        self._calls.pop(self.request_id, None)


# --- over HTTP ------------------------------------------------------------------------------------


@final
class HttpProvider(Provider):
    """A model behind a wire: encode, send, decode. To change what it does, put a provider around it."""

    def __init__(
        self,
        codec: Codec,
        transport: Transport,
        *,
        name: str,
        model: str,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        capabilities: Capabilities | None = None,
        token_family: str = "default",  # noqa: S107 - as above
        timeouts: Timeouts | None = None,
        on_loss: Literal["warn", "reject"] = "warn",
    ) -> None:
        self.name = name
        self.model = model
        self.codec = codec
        self.capabilities = capabilities or Capabilities()
        self.token_family = token_family
        self._transport = transport
        self._timeouts = timeouts or Timeouts()
        self._on_loss = on_loss
        self._issuer = Issuer(codec.wire, codec.issuer_vendor, model)
        self._key = Secret(api_key)
        self._credentials = {name: Secret(value) for name, value in (headers or {}).items()}
        if api_key:
            self._credentials |= {name: Secret(value) for name, value in codec.authorise(api_key).items()}

    async def events(self, request: Request) -> AsyncIterator[Event]:
        source = self._batches(request)
        try:
            async for batch in source:
                for event in batch:
                    yield event
        finally:
            await _close(source)

    def _batches(self, request: Request, partial: Partial | None = None) -> AsyncIterator[list[Event]]:
        return _Answer(self, request, partial)

    async def _hear(self, request: Request) -> list[Event]:
        return await _Answer(self, request, None).hear()

    async def ready(self) -> None:
        questions = self.codec.ready()
        try:
            question = next(questions)
            while True:
                question = questions.send(await self._ask(question))
        except StopIteration:
            return
        except ProviderError as error:
            cause = error.__cause__ and without_frames(error.__cause__)
            error = self._annotate(error).with_traceback(None)
            error.__context__ = None
            raise error from cause

    async def close(self) -> None:
        await self._transport.close()

    def plan(self, messages: Messages) -> SwapPlan:
        return self._plan(self.codec, messages)

    # inside

    async def _send(self, request: Request) -> tuple[AbstractAsyncContextManager[Reply], Reply, Decoder]:
        """Ask until the answer is no refusal that something can be learned from."""
        while True:
            codec = self.codec
            encoded = self._encode(codec, request)
            sending = self._transport.send(encoded.http, self._credentials, self._timeouts, stream=request.stream)
            reply = await sending.__aenter__()
            if reply.status < 300:
                return sending, reply, codec.decoder(request, self._assembler(request, encoded))
            try:
                body = await _read_refusal(reply)
            finally:
                await sending.__aexit__(*sys.exc_info())
            self._learn(codec, codec.error(reply.status, reply.headers, body, time.time()), request)

    def _learn(self, codec: Codec, error: ProviderError, request: Request) -> None:
        """Remember what a server refused by name and ask without it from now on; anything else is raised.

        Not a retry: the next request is another one.
        """
        lesson = codec.learn(error, request)
        if lesson is None:
            raise error
        self.codec = lesson

    async def _ask(self, question: HttpRequest) -> HttpReply:
        return await self._transport.exchange(question, self._credentials, self._timeouts)

    def _encode(self, codec: Codec, request: Request) -> Encoded:
        encoded = codec.encode(request)
        if encoded.warnings:
            if self._on_loss == "reject":
                raise _rejected(encoded.warnings)
            for warning in encoded.warnings:
                log.warning("%s/%s %s: %s", self.name, self.model, request.request_id, warning)
        return encoded

    def _assembler(self, request: Request, encoded: Encoded) -> Assembler:
        return Assembler(
            request_id=request.request_id,
            model=request.model or self.model,
            provider=self.name,
            issuer=self._issuer,
            expected=Expectation(request),
            warnings=encoded.warnings,
            structured_path=encoded.structured_path,
        )

    def _annotate(self, error: ProviderError, request: Request | None = None) -> ProviderError:
        error.provider, error.model = error.provider or self.name, error.model or self.model
        if request is not None:
            error.request_id = error.request_id or request.request_id
        secrets = [secret.reveal() or "" for secret in [self._key, *self._credentials.values()]]
        error.hide(secrets, _texts(request.messages) if request is not None else ())
        return error


class _Answer:
    """What comes back for one request: an async iterator over the events of each read.

    Not a generator: the event loop keeps a register of those, and that is dear where a whole call
    is a few hundred microseconds. Dropped halfway, it closes its socket by the exchange that it holds.
    """

    def __init__(self, provider: HttpProvider, request: Request, partial: Partial | None) -> None:
        self._provider = provider
        self._request = request
        self._partial = partial
        self._sending: AbstractAsyncContextManager[Reply] | None = None
        self._reply: Reply | None = None
        self._decoder: Decoder | None = None
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Event]:
        if self._over:
            raise StopAsyncIteration
        try:
            events = await self._next()
        except BaseException as error:
            await self._fail(error)
        if not events:
            await self._leave(None)
            raise StopAsyncIteration
        return events

    async def hear(self) -> list[Event]:
        """Wait for the whole; the first event and the last."""
        try:
            heard = await self._read()
        except BaseException as error:
            await self._fail(error)
        await self._leave(None)
        return [heard[0], heard[-1]]

    async def aclose(self) -> None:
        await self._leave(GeneratorExit())

    async def _read(self) -> list[Event]:
        self._sending, reply, decoder = await self._provider._send(self._request)
        heard: list[Event] = []
        try:
            chunk = await reply.receive()
            heard = decoder.read(chunk) if reply.over else decoder.feed(chunk)
            while not decoder.done:
                chunk = b"" if reply.over else await reply.receive()
                heard += decoder.feed(chunk) if chunk else decoder.end()
        except ProviderError as error:
            heard += decoder.fail(error)
        if decoder.error is not None:
            raise decoder.error
        return heard

    async def _next(self) -> list[Event]:
        """The events of the next read that has any; none at the end."""
        reply, decoder = self._reply, self._decoder
        if reply is None or decoder is None:
            self._sending, reply, decoder = await self._provider._send(self._request)
            self._reply, self._decoder = reply, decoder
            if self._partial is not None:
                self._partial.follow(decoder.out)
        else:
            reply.touch()  # the caller has seen what came before
        try:
            while not decoder.done:
                chunk = b"" if reply.over else await reply.receive()
                events = decoder.feed(chunk) if chunk else decoder.end()
                if events:
                    return events
        except ProviderError as error:
            events = decoder.fail(error)
            if events:
                return events
        if decoder.error is not None:
            raise decoder.error
        return []

    async def _fail(self, error: BaseException) -> NoReturn:
        await self._leave(error)
        if not isinstance(error, ProviderError):
            raise error
        # Without the frames below: they hold the reply, and some servers repeat the key in it.
        error = self._provider._annotate(error, self._request)
        raise error.with_traceback(None) from error.__cause__

    async def _leave(self, error: BaseException | None) -> None:
        self._over = True
        sending, self._sending = self._sending, None
        if sending is not None:
            await sending.__aexit__(type(error) if error is not None else None, error, None)


async def _read_refusal(reply: Reply) -> bytes:
    """The body of a refusal, or what there is of it: its status says enough to be told without the rest."""
    body = bytearray()
    with suppress(ProviderError, TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while len(body) < MAX_ERROR_BODY and (chunk := await reply.receive()):
                body += chunk
    return bytes(body[:MAX_ERROR_BODY])


def _rejected(warnings: tuple[LossWarning, ...]) -> ProviderError:
    kind = UnsupportedContentError if ".content[" in warnings[0].path else UnsupportedFeatureError
    more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
    return kind(f"on_loss='reject': {warnings[0]}{more}")


def _texts(messages: Any) -> list[str]:
    """What was said, to be kept out of error messages."""
    texts: list[str] = []
    for message in messages:
        if isinstance(message.content, str):
            texts.append(message.content)
            continue
        for block in message.content:
            if isinstance(block, ToolCall):
                texts += _strings(block.arguments)
            elif isinstance(block, Text | Thinking):
                texts.append(block.text)
    return [text for text in texts if text]


def _strings(value: Any) -> list[str]:
    """The texts in arguments that are long enough not to be a word of anybody's."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for item in value for text in _strings(item)]
    return [value] if isinstance(value, str) and len(value) >= 8 else []


# --- connecting -----------------------------------------------------------------------------------

SCHEMES: dict[str, str | Callable[..., Provider]] = {"local": "dragoman.local:open_local"}
"""Names that mean something other than an address, with their opener or, not to load it in vain, its place."""


def connect(
    model: str,
    *,
    wire: str = "openai",
    base_url: str | None = None,
    api_key: str | None = None,
    capabilities: Capabilities | Mapping[str, Any] | None = None,
    quirks: Any = None,
    timeouts: Timeouts | Mapping[str, Any] | float | None = None,
    on_loss: Literal["warn", "reject"] = "warn",
    transport: Transport | None = None,
    name: str | None = None,
    vendor: str | None = None,
    headers: Mapping[str, str] | None = None,
    token_family: str = "default",  # noqa: S107 - as above
    keep_raw: bool = True,
) -> Provider:
    """Bind a model at an address. Nothing is sent until it is asked something.

    ``api_key`` and ``headers`` go to the origin of ``base_url`` and nowhere else. ``capabilities`` is
    your word on what the model can do, by the contract's names; ``quirks`` how the server differs, as
    the wire's ``Quirks`` or a mapping of its fields; ``timeouts`` the four deadlines, or a number for
    ``total``. ``name`` labels the provider in events and errors; ``vendor`` names whose opaque state
    the endpoint understands; ``token_family`` is the vocabulary that lengths are estimated by, one of
    ``tokens.FAMILIES``.
    """
    scheme, _, rest = model.partition(":")
    if base_url is None and scheme in SCHEMES:
        given = {"capabilities": capabilities, "timeouts": timeouts, "on_loss": on_loss, "keep_raw": keep_raw}
        return _opener(scheme)(rest, **{key: value for key, value in given.items() if value is not None})
    if base_url is None:
        raise ValueError(f"connect({model!r}): base_url is required, such as http://127.0.0.1:8080/v1")
    if wire not in CODECS:
        raise ValueError(f"unknown wire {wire!r}; one of {', '.join(sorted(CODECS))}")
    if token_family not in FAMILIES:
        raise ValueError(f"token_family: {token_family!r} is not one of {', '.join(FAMILIES)}")
    if on_loss not in ("warn", "reject"):
        raise ValueError(f"on_loss must be 'warn' or 'reject', not {on_loss!r}")
    known = capabilities if isinstance(capabilities, Capabilities) else Capabilities.of(capabilities or {})
    codec = CODECS[wire].connect(model, base_url, quirks, known, vendor=vendor, keep_raw=keep_raw)
    return HttpProvider(
        codec,
        transport or HttpTransport(),
        name=name or vendor or wire,
        model=model,
        api_key=api_key,
        headers=headers,
        capabilities=known,
        token_family=token_family,
        timeouts=_parse_timeouts(timeouts),
        on_loss=on_loss,
    )


def _opener(scheme: str) -> Callable[..., Provider]:
    opener = SCHEMES[scheme]
    if isinstance(opener, str):
        module, _, name = opener.partition(":")
        opener = SCHEMES[scheme] = getattr(importlib.import_module(module), name)
    assert not isinstance(opener, str)
    return opener


def _parse_timeouts(timeouts: Timeouts | Mapping[str, Any] | float | None) -> Timeouts:
    if timeouts is None or isinstance(timeouts, Timeouts):
        return timeouts or Timeouts()
    if isinstance(timeouts, Mapping):
        for key in timeouts:
            if key not in Timeouts.__struct_fields__:
                raise ValueError(f"timeouts: unknown name {key!r}; one of {', '.join(Timeouts.__struct_fields__)}")
        return Timeouts(**timeouts)
    return Timeouts(total=timeouts)
