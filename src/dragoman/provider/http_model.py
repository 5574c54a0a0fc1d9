"""``HttpModel``: the address, credentials and errors of a model behind HTTP."""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Literal, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit, urlunsplit

from ..calls import TURN
from ..capabilities import Capabilities, describe_end
from ..errors import (
    AuthenticationError,
    InvalidModelError,
    InvalidRequestError,
    NetworkError,
    ProviderError,
    UnsupportedContentError,
    UnsupportedFeatureError,
    quote,
    without_frames,
)
from ..messages import LossWarning
from ..prices import PricedAs, PriceRow, find_seller, find_server
from ..transport import MAX_ERROR_BODY, HttpStream, Secret, Timeouts, Transport
from ..wire import HttpReply, HttpRequest
from ..wire.codec import HINTS
from ..wire.described import Description, apply
from ..wire.socket import SocketForm
from .auth import Auth, TokenAuth, TokenSource, check_key
from .call_log import CallLine
from .model import Model
from .tracing import TRACE_HEADERS, add_trace

log = logging.getLogger("dragoman")
_T = TypeVar("_T")

# How long to wait for the body of an error response, in seconds.
_ERROR_BODY_SECONDS = 10.0


ApiKey: TypeAlias = str | Auth | TokenSource
"""A key, a function that returns one, or an ``Auth``."""


class HttpModel(Model):
    """A model at one address: its codec, its transport, and the credentials for this address."""

    def __init__(
        self,
        codec: Any,
        transport: Transport,
        *,
        name: str,
        model: str,
        api_key: ApiKey | None = None,
        headers: Mapping[str, str] | None = None,
        capabilities: Capabilities | Mapping[str, Any] | None = None,
        timeouts: Timeouts | Mapping[str, Any] | float | None = None,
        on_loss: Literal["warn", "reject"] = "warn",
        base_url: str = "",
        hint: str | None = None,
        key_hint: str | None = None,
        address_env: str | None = None,
        priced_as: PricedAs | PriceRow | str | None = None,
    ) -> None:
        self._base_url = base_url
        self.server = find_server(base_url)
        self._hint = hint
        self._key_hint = key_hint
        self.address_env = address_env
        self.name = name
        self.model = model
        self.codec = codec
        self.capabilities = read_capabilities(capabilities)
        self._transport = transport
        self._timeouts = parse_timeouts(timeouts)
        if on_loss not in ("warn", "reject"):
            raise ValueError(f"on_loss must be 'warn' or 'reject', not {on_loss!r}")
        self.on_loss = on_loss
        key = None
        if isinstance(api_key, str):
            key = check_key(api_key, provider=name, model=model)
        self._key = Secret(key)
        for field, content in (headers or {}).items():
            if not isinstance(content, str):
                raise TypeError(f"headers: {field!r} must be a string, not {quote(content)}")
        self._credentials = {name: Secret(value) for name, value in (headers or {}).items()}
        # the configured header whose values are sent together with those of the codec
        joined = getattr(codec, "joined_header", "")
        self._joined_header = next(
            (name for name in self._credentials if name.lower() == joined), None
        )
        if key:
            self._credentials |= {
                name: Secret(value) for name, value in codec.authorise(key).items()
            }
        self._auth = _read_auth(api_key)
        if priced_as is not None:
            self.priced_as = priced_as

    async def ready(self) -> None:
        description: Description | None = await self._ask_all(self.codec.ready())
        if description is not None:
            self.describe(description)
        if (notice := describe_end(self.model, self.capabilities)) is not None:
            log.warning("%s/%s: %s", self.name, self.model, notice)

    def describe(self, description: Description) -> None:
        """Add what the server states about the model to what is known."""
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        by = "the server's model list"
        stated = Capabilities.of(description.facts, "observed", at=today, by=by)
        self.capabilities = self.capabilities.merged(stated)
        if hasattr(self.codec, "taught"):
            self.codec = apply(self.codec, description)

    async def close(self) -> None:
        await self._transport.close()

    def _find_seller(self) -> PricedAs:
        return (
            find_seller(self._base_url, self.model) if self._base_url else super()._find_seller()
        )

    async def exchange(
        self, request: HttpRequest, *, stream: bool = False, form: SocketForm | None = None
    ) -> AbstractAsyncContextManager[HttpStream]:
        """Return the exchange of a request, which is sent when the exchange is entered.

        With ``form``, the request is a message on a WebSocket.
        """
        credentials: Mapping[str, Secret] = self._credentials
        is_fixed = self._auth is None and self._joined_header is None
        if not is_fixed or TRACE_HEADERS.get() is not None:
            credentials = await self._authorise(request)
        if form is not None:
            return self._transport.send_over_socket(
                request, credentials, self._timeouts, form, stream=stream
            )
        return self._transport.send(request, credentials, self._timeouts, stream=stream)

    async def read_failure(self, http: HttpStream, codec: Any, url: str) -> ProviderError:
        """Return the error that a reply with an error status reports; ``url`` was asked."""
        if http.status == 401 and self._auth is not None:
            self._auth.reject()
        body = await _read_error(http)
        error: ProviderError = codec.error(http.status, http.headers, body, time.time())
        if http.status < 400:
            error.advice = f"It redirects to {show_url(http.headers.get('location', ''))}."
        is_missing = http.status in (404, 405, 426) and type(error) is InvalidRequestError
        if http.status < 400 or is_missing:
            error.advice = f"{error.advice} Check base_url: {show_url(url)} was asked.".strip()
        if is_missing and getattr(codec, "socket", None) is not None:
            error.advice += " If the server has no WebSocket there, leave out the quirk socket."
        return error

    def keep_headers(self, http: HttpStream) -> Mapping[str, str]:
        """Return the headers of a reply that are kept, without keys."""
        return http.keep_headers(self._reveal_secrets())

    def annotate(
        self, error: ProviderError, request: Any = None, texts: Sequence[str] = ()
    ) -> ProviderError:
        """Add the provider, the model and the request id to an error.

        The advice about a model that the server does not know names its end, if there is one.
        Remove keys and the caller's texts from the error's message.
        """
        error.attribute(self.name, self.model, None if request is None else request.request_id)
        if self._hint and isinstance(error, NetworkError) and error.is_unreached:
            error.advice = self._hint
        has_key = self._key.reveal() is not None or self._auth is not None
        if self._key_hint and isinstance(error, AuthenticationError) and not has_key:
            error.advice = self._key_hint
        if self.address_env and _is_at_wrong_address(error):
            source = f"The address comes from the environment variable {self.address_env}."
            error.advice = f"{error.advice} {source}".strip()
        if isinstance(error, InvalidModelError):
            notice = describe_end(self.model, self.capabilities)
            if notice is not None and notice not in error.advice:
                error.advice = f"{notice}. {error.advice}"
        error.hide(self._reveal_secrets(), texts)
        return error

    async def _authorise(self, request: HttpRequest) -> Mapping[str, Secret]:
        """Return the headers that authorise a request, including those that ``Auth`` creates."""
        credentials = add_trace(self._credentials)
        name = self._joined_header
        if name is not None and (own := request.headers.get(name.lower())):
            credentials = {**credentials, name: Secret(f"{credentials[name].reveal()},{own}")}
        if self._auth is None:
            return credentials
        return {**credentials, **await self._auth.headers(request, self.codec)}

    def _report(self, warnings: Sequence[LossWarning], request: Any) -> None:
        """Log losses; with ``on_loss="reject"`` raise the first of them."""
        lost = [warning for warning in warnings if warning.code not in HINTS]
        if lost and self.on_loss == "reject":
            raise _rejected(lost)
        if TURN in request.metadata:
            return  # the session logs each loss once, with the id of the message
        session = f"{request.session_id} " if request.session_id else ""
        for warning in warnings:
            log.warning(
                "%s/%s %s%s: %s", self.name, self.model, session, request.request_id, warning
            )

    def begin_line(self, request: Any) -> CallLine | None:
        """Return the line of a call in the log, or ``None`` if calls are not logged."""
        if not log.isEnabledFor(logging.INFO):
            return None
        name = f"{self.name}/{self.model}"
        return CallLine(name, request.request_id, request.metadata, self._reveal_secrets)

    def _reveal_secrets(self) -> list[str]:
        """Return the secrets to remove from errors: some servers repeat request headers there."""
        fixed = [secret.reveal() or "" for secret in [self._key, *self._credentials.values()]]
        return fixed if self._auth is None else [*fixed, *self._auth.secrets()]

    async def _ask(self, question: HttpRequest) -> HttpReply:
        # The reply has no name in the caller, whose local variables an error reporter may send: a
        # server may have repeated the key in it.
        return await self._transport.exchange(
            question, await self._authorise(question), self._timeouts
        )

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
            error = self.annotate(error).with_traceback(None)
            error.__context__ = None
            raise error from cause


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


def read_capabilities(given: Capabilities | Mapping[str, Any] | None) -> Capabilities:
    """Return capabilities that are given as such or as a mapping of their fields."""
    return given if isinstance(given, Capabilities) else Capabilities.of(given or {})


def parse_timeouts(timeouts: Timeouts | Mapping[str, Any] | float | None) -> Timeouts:
    """Convert deadlines to ``Timeouts``: a mapping, a number for ``total``, or ``None``."""
    if timeouts is None or isinstance(timeouts, Timeouts):
        return timeouts or Timeouts()
    if isinstance(timeouts, Mapping):
        for key in timeouts:
            if key not in Timeouts.__struct_fields__:
                raise ValueError(
                    f"timeouts: unknown name {key!r}; one of "
                    f"{', '.join(Timeouts.__struct_fields__)}"
                )
        return Timeouts(**timeouts)
    return Timeouts(total=timeouts)


def show_url(url: str) -> str:
    """Return a URL without what may be secret: the user, the query and the fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


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


def _is_at_wrong_address(error: ProviderError) -> bool:
    """Return whether a wrong address may be the cause of an error."""
    if isinstance(error, NetworkError):
        return error.is_unreached
    is_refused = isinstance(error, AuthenticationError | InvalidModelError)
    return is_refused or error.status in (404, 405)


def _rejected(warnings: Sequence[LossWarning]) -> ProviderError:
    kind = UnsupportedContentError if ".content[" in warnings[0].path else UnsupportedFeatureError
    more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
    return kind(f"on_loss='reject': {warnings[0]}{more}")
