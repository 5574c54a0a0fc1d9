"""Call a model over HTTP: encode the request, send it, and decode the reply.

Nothing in this module repeats a call, runs an agent loop or executes a tool.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Literal, NoReturn, Protocol, TypeAlias, TypeVar, cast, final
from urllib.parse import urlsplit

from msgspec.structs import replace

from ..capabilities import Capabilities
from ..errors import (
    NetworkError,
    ProviderError,
    UnsupportedContentError,
    UnsupportedFeatureError,
    without_frames,
)
from ..events import Assembler, Event, MessageComplete
from ..messages import Issuer, LossWarning, Request, Text, Thinking, ToolCall
from ..prices import PricedAs, find_seller, find_server
from ..transport import MAX_ERROR_BODY, HttpStream, Secret, Timeouts, Transport
from ..validate import Expectation, Messages
from ..wire import Codec, Decoder, Encoded, HttpReply, HttpRequest, SwapPlan
from ..wire.counting import count_tokens
from .auth import Auth, TokenAuth, TokenSource
from .contract import ReplyProvider
from .fit import NO_LOSS, fit_request
from .reply import AssembledReply, Reply
from .tracing import TRACE_HEADERS, add_trace

log = logging.getLogger("dragoman")
_T = TypeVar("_T")

# How long to wait for the body of an error response, in seconds.
_ERROR_BODY_SECONDS = 10.0


ApiKey: TypeAlias = str | Auth | TokenSource
"""A key, a function that returns one, or an ``Auth``."""


class Observer(Protocol):
    """An object that derives the capabilities of an endpoint from its replies."""

    def see_reply(self, request: Request, complete: MessageComplete) -> None:
        """Record the capabilities that a complete reply proves."""

    def see_refusal(self, fact: str) -> None:
        """Record that the server does not support a capability."""


_NOTHING_KNOWN = Capabilities()


def _read_auth(api_key: Any) -> Auth | None:
    if api_key is None or isinstance(api_key, str):
        return None
    if isinstance(api_key, Auth):
        return api_key
    if not callable(api_key):
        raise ValueError(
            f"api_key must be a text, a function or an Auth, not {type(api_key).__name__}"
        )
    return TokenAuth(cast("TokenSource", api_key))


@final
class HttpProvider(ReplyProvider):
    """A provider that calls a model over HTTP.

    To change its behaviour, wrap it in another provider.
    """

    def __init__(
        self,
        codec: Codec,
        transport: Transport,
        *,
        name: str,
        model: str,
        api_key: ApiKey | None = None,
        headers: Mapping[str, str] | None = None,
        capabilities: Capabilities | None = None,
        token_family: str = "default",  # noqa: S107 - a tokenizer family, not a secret
        timeouts: Timeouts | None = None,
        on_loss: Literal["warn", "reject"] = "warn",
        base_url: str = "",
        hint: str | None = None,
        observe: Observer | None = None,
    ) -> None:
        self._base_url = base_url
        self.server = find_server(base_url)
        self._hint = hint
        self.name = name
        self.model = model
        self.codec = codec
        self.capabilities = capabilities or Capabilities()
        self.token_family = token_family
        self._transport = transport
        self._timeouts = timeouts or Timeouts()
        self.on_loss = on_loss
        self._issuer = Issuer(codec.wire, codec.issuer_vendor, model)
        key = api_key if isinstance(api_key, str) else None
        self._key = Secret(key)
        self._credentials = {name: Secret(value) for name, value in (headers or {}).items()}
        if key:
            self._credentials |= {
                name: Secret(value) for name, value in codec.authorise(key).items()
            }
        self._auth = _read_auth(api_key)
        # if nothing is known about the model, requests are sent unchanged
        self._fits = self.capabilities == _NOTHING_KNOWN
        self._observe = observe

    def open(self, request: Request) -> Reply:
        return WireReply(self, request)

    async def ready(self) -> None:
        await self._ask_all(self.codec.ready())

    async def count_input_tokens(self, request: Request) -> int | None:
        """Return the server's count of the input tokens; ``None`` if the wire cannot count.

        Raise an error if the server replies with an error, for example because it does not have
        this endpoint.
        """
        codec, (fitted, _) = self.codec, self._fit(request)
        return await self._ask_all(count_tokens(codec, codec.encode(fitted), self.model))

    async def close(self) -> None:
        await self._transport.close()

    def plan(self, messages: Messages) -> SwapPlan:
        return self._plan(self.codec, messages)

    async def fetch(self, question: HttpRequest) -> AsyncIterator[bytes]:
        """Send a request other than a model call, such as one to a batch API; yield the body.

        The request contains this provider's key, so its URL must have the origin of ``base_url``.
        If the reply has an error status, raise the error.
        """
        if urlsplit(question.url)[:2] != urlsplit(self._base_url)[:2]:
            raise ValueError("fetch: the URL is of another origin than the provider's base_url")
        codec = self.codec
        try:
            async with self._transport.send(question, self._credentials, self._timeouts) as http:
                if http.status >= 300:
                    raise codec.error(
                        http.status, http.headers, await _read_error(http), time.time()
                    )
                while chunk := await http.receive():
                    yield chunk
        except ProviderError as error:
            raise self._annotate(error).with_traceback(None) from error.__cause__

    # --- encoding and authorising requests, and learning from rejected ones

    def _find_seller(self) -> PricedAs:
        return (
            find_seller(self._base_url, self.model) if self._base_url else super()._find_seller()
        )

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
            if self.on_loss == "reject":
                raise _rejected(encoded.warnings)
            for warning in encoded.warnings:
                call = (
                    f"{request.session_id} {request.request_id}"
                    if request.session_id
                    else request.request_id
                )
                log.warning("%s/%s %s: %s", self.name, self.model, call, warning)
        return encoded

    async def _authorise(self, request: HttpRequest) -> Mapping[str, Secret]:
        """Return the headers that authorise a request, including those that ``Auth`` creates."""
        credentials = add_trace(self._credentials)
        if self._auth is None:
            return credentials
        return {**credentials, **await self._auth.headers(request, self.codec)}

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

    def _annotate(self, error: ProviderError, request: Request | None = None) -> ProviderError:
        """Add the provider, the model and the request id to an error.

        Remove keys and texts of the conversation from the error's message.
        """
        error.provider, error.model = error.provider or self.name, error.model or self.model
        if self._hint and isinstance(error, NetworkError) and error.is_unreached:
            error.advice = self._hint
        if request is not None:
            error.request_id = error.request_id or request.request_id
        error.hide(self._reveal_secrets(), _texts(request.messages) if request is not None else ())
        return error

    def _reveal_secrets(self) -> list[str]:
        """Return the secrets to remove from errors: some servers repeat request headers there."""
        fixed = [secret.reveal() or "" for secret in [self._key, *self._credentials.values()]]
        return fixed if self._auth is None else [*fixed, *self._auth.secrets()]

    async def _ask_all(self, questions: Generator[HttpRequest, HttpReply, _T]) -> _T:
        """Send the requests that a generator yields, pass it each reply, and return its result."""
        try:
            question = next(questions)
            while True:
                question = questions.send(await self._ask(question))
        except StopIteration as end:
            return cast("_T", end.value)
        except ProviderError as error:
            cause = error.__cause__ and without_frames(error.__cause__)
            error = self._annotate(error).with_traceback(None)
            error.__context__ = None
            raise error from cause

    async def _ask(self, question: HttpRequest) -> HttpReply:
        return await self._transport.exchange(
            question, await self._authorise(question), self._timeouts
        )


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
        self._ended = False

    @property
    def headers(self) -> Mapping[str, str]:
        if self._http is None:
            return {}
        return self._http.keep_headers(self._provider._reveal_secrets())

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

    async def _read(self) -> list[Event]:
        """Read bytes until they contain events, and return the events.

        At the end of the reply, return an empty list, or raise the error.
        """
        http, decoder = self._http, self._decoder
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
        observer, out = self._provider._observe, self.out
        if observer is not None and out is not None and out.complete is not None:
            observer.see_reply(self.request, out.complete)

    async def _send(self) -> tuple[HttpStream, Decoder]:
        """Send the request.

        If the server rejects an optional field by name, send the request again without the field.
        """
        provider = self._provider
        request, losses = provider._fit(self.request)
        while True:
            codec = provider.codec
            encoded = provider._encode(codec, request, losses)
            self.out = out = self._assembler(encoded)
            credentials = provider._credentials
            if provider._auth is not None or TRACE_HEADERS.get() is not None:
                credentials = await provider._authorise(encoded.http)  # type: ignore[assignment]
            transport = provider._transport
            exchange = transport.send(
                encoded.http, credentials, provider._timeouts, stream=request.stream
            )
            http = await exchange.__aenter__()
            if http.status < 300:
                self._exchange, self._http, self._decoder = (
                    exchange,
                    http,
                    codec.decoder(request, out),
                )
                return http, self._decoder
            if http.status == 401 and provider._auth is not None:
                provider._auth.reject()
            try:
                body = await _read_error(http)
            finally:
                await exchange.__aexit__(*sys.exc_info())
            provider._learn(
                codec, codec.error(http.status, http.headers, body, time.time()), request
            )

    def _assembler(self, encoded: Encoded) -> Assembler:
        return Assembler(
            request_id=self.request.request_id,
            model=self.model,
            provider=self.provider,
            issuer=self._provider._issuer,
            expected=Expectation(self.request),
            warnings=encoded.warnings,
            structured_path=encoded.structured_path,
        )

    async def _fail(self, error: BaseException) -> NoReturn:
        await self._leave(error)
        self._charge(error)
        try:
            if not isinstance(error, ProviderError):
                raise error
            # Raise the error without its traceback: the frames contain the reply, in which some
            # servers repeat the key.
            error = self._provider._annotate(error, self.request)
            raise error.with_traceback(None) from error.__cause__
        finally:
            # The error refers to this frame, and the frame to the request.
            del error
            if self.out is not None:
                self.out.error = None

    async def _leave(self, error: BaseException | None) -> None:
        self._ended = True
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await exchange.__aexit__(type(error) if error is not None else None, error, None)


async def _read_error(http: HttpStream) -> bytes:
    """Return the body of an error reply, or the part of it that arrives in time.

    If no body arrives, the status is enough to classify the error.
    """
    body = bytearray()
    with suppress(ProviderError, TimeoutError):
        async with asyncio.timeout(_ERROR_BODY_SECONDS):
            while len(body) < MAX_ERROR_BODY and (chunk := await http.receive()):
                body += chunk
    return bytes(body[:MAX_ERROR_BODY])


def _asks_natively(codec: Codec) -> bool:
    """Return whether the response schema is sent in a request field rather than in the prompt."""
    return getattr(getattr(codec, "quirks", None), "structured", None) == "native"


def _rejected(warnings: Sequence[LossWarning]) -> ProviderError:
    kind = UnsupportedContentError if ".content[" in warnings[0].path else UnsupportedFeatureError
    more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
    return kind(f"on_loss='reject': {warnings[0]}{more}")


def _texts(messages: Any) -> list[str]:
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
