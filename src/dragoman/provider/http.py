"""Call a model over HTTP: encode the request, send it, and decode the reply.

Nothing in this module repeats a call, runs an agent loop or executes a tool.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NoReturn, Protocol, final
from urllib.parse import urlsplit

from msgspec.structs import replace

from ..capabilities import Capabilities
from ..errors import ProviderError
from ..events import Assembler, Event, MessageComplete
from ..messages import Issuer, LossWarning, Message, Request, Text, Thinking, ToolCall
from ..transport import HttpStream, Transport
from ..validate import Expectation, Messages
from ..wire import Codec, Decoder, Encoded, HttpRequest, SwapPlan
from ..wire.continuity import find_compaction, withhold_state
from ..wire.counting import count_tokens
from ..wire.described import Description
from .call_log import CallLine
from .contract import ReplyProvider
from .http_model import HttpModel
from .model_limits import NO_LOSS, fit_request
from .reply import AssembledReply, Reply

log = logging.getLogger("dragoman")


class Observer(Protocol):
    """An object that derives the capabilities of an endpoint from its replies."""

    def see_reply(self, request: Request, complete: MessageComplete) -> None:
        """Record the capabilities that a complete reply proves."""

    def see_refusal(self, fact: str) -> None:
        """Record that the server does not support a capability."""


_NOTHING_KNOWN = Capabilities()


@final
class HttpProvider(HttpModel, ReplyProvider):
    """A provider that calls a model over HTTP.

    To change its behaviour, wrap it in another provider. ``settings`` are those of ``HttpModel``.
    """

    def __init__(
        self,
        codec: Codec,
        transport: Transport,
        *,
        token_family: str = "default",  # noqa: S107 - a tokenizer family, not a secret
        observe: Observer | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(codec, transport, **settings)
        self.codec: Codec = codec
        self.token_family = token_family
        self._issuer = Issuer(codec.wire, codec.issuer_vendor, self.model)
        # if nothing is known about the model, requests are sent unchanged
        self._fits = self.capabilities == _NOTHING_KNOWN
        self._observe = observe

    @property
    def searches_tools(self) -> bool:  # type: ignore[override]
        """Whether the endpoint searches deferred tools; false after it refused to."""
        return getattr(self.codec, "searches_tools", False)

    def compaction(self, tokens: int | None) -> dict[str, Any] | None:
        write = getattr(self.codec, "compaction", None)
        return None if write is None else write(tokens)

    def compacted_at(self, messages: Sequence[Message]) -> int:
        return find_compaction(messages, self._issuer) or 0

    def open(self, request: Request) -> Reply:
        return WireReply(self, request)

    async def count_input_tokens(self, request: Request) -> int | None:
        """Return the server's count of the input tokens; ``None`` if the wire cannot count.

        Raise an error if the server replies with an error, for example because it does not have
        this endpoint.
        """
        codec = self.codec
        fitted, _ = self._fit(request)
        return await self._ask_all(count_tokens(codec, codec.encode(fitted), self.model))

    def plan(self, messages: Messages) -> SwapPlan:
        return self._plan(self.codec, messages)

    def preview(self, request: Request) -> Encoded:
        fitted, losses = self._fit(request)
        encoded = self.codec.encode(fitted)
        return replace(encoded, warnings=(*losses, *encoded.warnings)) if losses else encoded

    async def fetch(self, question: HttpRequest) -> AsyncIterator[bytes]:
        """Send a request other than a model call, such as one to a batch API; yield the body.

        The request contains this provider's key, so its URL must have the origin of ``base_url``.
        If the reply has an error status, raise the error.
        """
        if urlsplit(question.url)[:2] != urlsplit(self._base_url)[:2]:
            raise ValueError("fetch: the URL is of another origin than the provider's base_url")
        try:
            async with self._transport.send(question, self._credentials, self._timeouts) as http:
                if http.status >= 300:
                    raise await self.read_failure(http, self.codec, question.url)
                while chunk := await http.receive():
                    yield chunk
        except ProviderError as error:
            raise self.annotate(error).with_traceback(None) from error.__cause__

    def describe(self, description: Description) -> None:
        super().describe(description)
        self._fits = self.capabilities == _NOTHING_KNOWN

    # --- encoding requests, and learning from rejected ones

    def _fit(self, request: Request) -> tuple[Request, tuple[LossWarning, ...]]:
        return (request, NO_LOSS) if self._fits else fit_request(request, self.capabilities)

    def _encode(
        self, codec: Codec, request: Request, losses: tuple[LossWarning, ...] = NO_LOSS
    ) -> Encoded:
        """Encode a request; log its losses, or raise an error with ``on_loss="reject"``."""
        encoded = codec.encode(request)
        if losses:
            encoded = replace(encoded, warnings=(*losses, *encoded.warnings))
        if encoded.warnings:
            self._report(encoded.warnings, request)
        return encoded

    def make_assembler(self, request: Request, encoded: Encoded) -> Assembler:
        """Return the assembler of the reply to an encoded request."""
        out = Assembler(
            request_id=request.request_id,
            model=request.model or self.model,
            provider=self.name,
            issuer=self._issuer,
            expected=Expectation(request),
            warnings=encoded.warnings,
            structured_path=encoded.structured_path,
        )
        out.terms = encoded.terms
        return out

    def _learn(self, codec: Codec, error: ProviderError, request: Request) -> None:
        """Change the codec so that later requests omit or replace a field that was rejected.

        If the error does not name a field, raise the error. Sending the changed request is not a
        retry, because it differs from the rejected one.
        """
        lesson = codec.learn(error, request)
        if lesson is None:
            raise error
        # a concurrent call has changed the codec since this request was encoded
        if self.codec is not codec:
            newer = self.codec.learn(error, request)
            if newer is None:
                return
            lesson = newer
        self.codec = lesson
        log.warning(
            "%s/%s: %s",
            self.name,
            self.model,
            self.lessons[-1] if self.lessons else "a lesson was learned",
        )
        if self._observe is not None and _asks_natively(codec) and not _asks_natively(lesson):
            self._observe.see_refusal("supports_structured_output")

    @property
    def lessons(self) -> tuple[str, ...]:
        """The fields that the endpoint has rejected so far, and what is sent instead."""
        return tuple([lesson.detail for lesson in getattr(self.codec, "lessons", ())])


class WireReply(AssembledReply):
    """The reply of an HTTP provider, which decodes the bytes that the transport receives.

    This class is not an async generator, because asyncio registers every async generator, which
    takes measurable time when a call takes 300 µs. If a reply is garbage collected, its
    ``HttpStream`` closes the socket.
    """

    def __init__(self, provider: HttpProvider, request: Request) -> None:
        super().__init__(request, provider.name, provider.model)
        self.token_family = provider.token_family
        self._provider = provider
        self._exchange: AbstractAsyncContextManager[HttpStream] | None = None
        self._http: HttpStream | None = None
        self._decoder: Decoder | None = None
        self._line: CallLine | None = None
        self._ended = False

    @property
    def headers(self) -> Mapping[str, str]:
        if self._http is None:
            return {}
        return self._provider.keep_headers(self._http)

    async def next(self) -> list[Event]:
        if self._ended:
            return []
        try:
            return await self._read()
        except BaseException as error:
            await self._fail(error)

    async def aclose(self) -> None:
        if not self._ended:
            await self._leave(GeneratorExit())

    def _count_input(self) -> int:
        return self._provider.estimate_input_tokens(self.request.messages, self.request.tools)

    async def _read(self) -> list[Event]:
        """Read bytes until they contain events, and return the events.

        At the end of the reply, return an empty list, or raise the error.
        """
        http = self._http
        decoder = self._decoder
        if http is None or decoder is None:
            http, decoder = await self._send()
        else:
            # restart the idle deadline, since the caller has handled the previous events
            http.touch()
        events: list[Event] = []
        try:
            while not events and not decoder.done:
                chunk = b"" if http.over else await http.receive()
                events = decoder.feed(chunk) if chunk else decoder.end()
        except ProviderError as error:
            events = decoder.fail(error)
        if not decoder.done:
            return events
        if decoder.error is not None:
            if not events:
                raise decoder.error
            return self._close(events)
        # If the body is complete, its connection can be reused at once: the caller need not ask
        # for the end.
        if http.over or not events:
            self._observe()
            await self._leave(None)
        return events

    def _observe(self) -> None:
        observer = self._provider._observe
        out = self.out
        if observer is not None and out is not None and out.complete is not None:
            observer.see_reply(self.request, out.complete)

    async def _send(self) -> tuple[HttpStream, Decoder]:
        """Send the request.

        If the server rejects an optional field by name, send the request again without the field.
        If it rejects its own state in the conversation, send the request again without the state.
        """
        provider = self._provider
        request, losses = provider._fit(self.request)
        line = self._line = provider.begin_line(request)
        while True:
            codec = provider.codec
            encoded = provider._encode(codec, request, losses)
            self.out = out = provider.make_assembler(self.request, encoded)
            if line is not None:
                line.send(encoded.http)
            form = getattr(codec, "socket", None)
            exchange = await provider.exchange(encoded.http, stream=request.stream, form=form)
            http = await exchange.__aenter__()
            if line is not None:
                line.receive(http.status)
            if http.status < 300:
                self._exchange = exchange
                self._http = http
                self._decoder = codec.decoder(request, out)
                return http, self._decoder
            try:
                failure = await provider.read_failure(http, codec, encoded.http.url)
            finally:
                await exchange.__aexit__(*sys.exc_info())
            home = replace(provider._issuer, model=request.model or provider.model)
            withheld = withhold_state(failure, request, home)
            if withheld is None or provider.on_loss == "reject":
                provider._learn(codec, failure, request)
            else:
                request, loss = withheld
                losses = (*losses, loss)

    async def _fail(self, error: BaseException) -> NoReturn:
        await self._leave(error)
        self._charge(error)
        try:
            if not isinstance(error, ProviderError):
                raise error
            # Raise the error without its traceback: the frames contain the reply, in which some
            # servers repeat the key.
            error = self._provider.annotate(error, self.request, find_texts(self.request.messages))
            raise error.with_traceback(None) from error.__cause__
        finally:
            # The error refers to this frame, and the frame to the request.
            del error
            if self.out is not None:
                self.out.error = None

    async def _leave(self, error: BaseException | None) -> None:
        self._ended = True
        line, self._line = self._line, None
        if line is not None:
            line.end(self.usage, lambda: self.raw, error)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await exchange.__aexit__(type(error) if error is not None else None, error, None)


def _asks_natively(codec: Codec) -> bool:
    """Return whether the response schema is sent in a request field rather than in the prompt."""
    return getattr(getattr(codec, "quirks", None), "structured", None) == "native"


def find_texts(messages: Any) -> list[str]:
    """Return the texts of a conversation, so that they can be removed from error messages."""
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
    """Return the strings in tool arguments, except short ones, which may be common words."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for item in value for text in _strings(item)]
    return [value] if isinstance(value, str) and len(value) >= 8 else []
