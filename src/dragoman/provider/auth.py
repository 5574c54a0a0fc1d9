"""Credentials that are created for each request: tokens that expire, and signatures.

The argument ``api_key`` of ``connect`` is a key, a function that returns a key, or an ``Auth``.
The function may be a coroutine function. If it returns a string, it is called for every request.
If it returns a ``Token``, the token is cached until shortly before it expires. Concurrent requests
share one call of the function.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import hmac
import inspect
import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeGuard
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from ..errors import AuthenticationError, ProviderError
from ..transport import Secret
from ..wire import Codec, HttpRequest

log = logging.getLogger("dragoman")

MARGIN = 60.0
"""How many seconds before its expiry a token is renewed."""


_KEY_MISTAKES = {
    "a line break": re.compile(r"[\r\n]"),
    "a space": re.compile(r"[^\S\r\n]"),
    "typographic quotes": re.compile(r"[\u2018-\u201f\u00ab\u00bb]"),
    "quotes": re.compile(r"^[\"'`]|[\"'`]$"),
    "characters that no key has": re.compile(r"[^\x21-\x7e]"),
}


def check_key(key: str, **where: Any) -> str:
    """Return a key; raise ``AuthenticationError`` if it is empty or cannot be a key.

    A key that was read from a file ends with a line break, and one that was copied from a page may
    have spaces or quotes around it. ``where`` are the provider and the model of the error.
    """
    if not key:
        raise AuthenticationError(
            "no key was given: api_key is empty",
            advice="Leave api_key out to use the key in the environment, or to send no key.",
            **where,
        )
    for mistake, pattern in _KEY_MISTAKES.items():
        if pattern.search(key):
            is_around = not pattern.search(key.strip())
            advice = (
                "Remove it, for example with key.strip()."
                if is_around
                else "Copy the key again, without what surrounds it."
            )
            raise AuthenticationError(
                f"the key contains {mistake}, so it was not sent",
                advice=advice,
                **where,
            )
    return key


class Token(Struct, frozen=True):
    """A key and the Unix time at which it expires; the time is ``None`` if it never expires."""

    value: str
    expires_at: float | None = None

    def __repr__(self) -> str:
        return f"Token(hidden, expires_at={self.expires_at!r})"


TokenSource: TypeAlias = Callable[[], str | Token | Awaitable[str | Token]]


class Auth(ABC):
    """Create the headers with which a request is authorised."""

    @abstractmethod
    async def headers(self, request: HttpRequest, codec: Codec) -> Mapping[str, Secret]:
        """Return the headers that authorise a request.

        Raise ``AuthenticationError`` if the credentials cannot be obtained.
        """

    def reject(self) -> None:  # noqa: B027
        """Discard the cached credentials, because the server has rejected them."""

    def secrets(self) -> list[str]:
        """Return the secrets that logs, errors and recordings must not contain."""
        return []


class TokenAuth(Auth):
    """Authorise requests with a token that a function returns.

    The token is sent in the header that the wire uses for keys, or, with ``bearer``, in
    ``Authorization: Bearer``.
    """

    def __init__(
        self, source: TokenSource, *, bearer: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        self._source = source
        self._bearer = bearer
        self._clock = clock
        self._token: Token | None = None
        self._fetch: asyncio.Task[Token] | None = None

    async def headers(self, request: HttpRequest, codec: Codec) -> Mapping[str, Secret]:
        value = (await self._find()).value
        named = {"authorization": f"Bearer {value}"} if self._bearer else codec.authorise(value)
        return {name: Secret(text) for name, text in named.items()}

    def reject(self) -> None:
        self._token = None

    def secrets(self) -> list[str]:
        return [self._token.value] if self._token is not None else []

    def _lasts(self, token: Token | None, seconds: float) -> TypeGuard[Token]:
        """Return whether a token is still valid for more than some seconds."""
        expires = None if token is None else token.expires_at
        return expires is not None and expires - self._clock() > seconds

    async def _find(self) -> Token:
        token = self._token
        if self._lasts(token, MARGIN):
            return token
        if (
            self._fetch is None
            or self._fetch.done()
            or self._fetch.get_loop() is not asyncio.get_running_loop()
        ):
            self._fetch = asyncio.ensure_future(self._obtain())
        try:
            # Several callers may wait for the same token: if one is cancelled, the others still
            # need it.
            return await asyncio.shield(self._fetch)
        except ProviderError:
            if self._lasts(token, 0):
                log.warning("a token could not be renewed; the old one is used until it expires")
                return token
            raise

    async def _obtain(self) -> Token:
        try:
            if inspect.iscoroutinefunction(self._source):
                found: Any = await self._source()
            else:
                found = await asyncio.to_thread(self._source)  # pyright: ignore[reportArgumentType]
                if inspect.isawaitable(found):
                    found = await found
        except ProviderError:
            raise
        except Exception as error:
            problem = f"the key could not be obtained: {type(error).__name__}"
            raise AuthenticationError(problem, provider_code="no_credentials") from None
        token = Token(found) if isinstance(found, str) else found
        if not isinstance(token, Token) or not isinstance(token.value, str):
            raise AuthenticationError("the function for the key must return a text or a Token")
        if not token.value:
            raise AuthenticationError("the function for the key returned an empty text")
        check_key(token.value)
        self._token = token
        return token


# --- signing requests with AWS Signature Version 4 ---------------------------------------------


class AccessKeys(Struct, frozen=True):
    """The credentials that requests are signed with."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return "AccessKeys(hidden)"


class SignatureAuth(Auth):
    """Sign requests with AWS Signature Version 4.

    ``find_keys`` is called for every request and returns the credentials.
    """

    def __init__(
        self,
        find_keys: Callable[[], AccessKeys],
        region: str,
        service: str,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._find_keys = find_keys
        self._region = region
        self._service = service
        self._clock = clock
        self._last: AccessKeys | None = None

    async def headers(self, request: HttpRequest, codec: Codec) -> Mapping[str, Secret]:
        try:
            keys = self._last = await asyncio.to_thread(self._find_keys)
        except ProviderError:
            raise
        except Exception as error:
            problem = f"the credentials could not be obtained: {type(error).__name__}"
            raise AuthenticationError(problem, provider_code="no_credentials") from None
        signed = sign_v4(request, keys, self._region, self._service, self._clock())
        return {name: Secret(value) for name, value in signed.items()}

    def secrets(self) -> list[str]:
        keys = self._last
        return [] if keys is None else [each for each in (keys.secret_key, keys.token) if each]


def sign_v4(
    request: HttpRequest, keys: AccessKeys, region: str, service: str, now: float
) -> dict[str, str]:
    """Return the headers of a signed request: date, body digest, session token and signature."""
    stamp = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    parts = urlsplit(request.url)
    digest = hashlib.sha256(request.body).hexdigest()
    added = {"x-amz-date": stamp, "x-amz-content-sha256": digest}
    if keys.token:
        added["x-amz-security-token"] = keys.token
    signed = {"host": parts.netloc.rpartition("@")[2].lower(), **added}
    if "content-type" in request.headers:
        signed["content-type"] = request.headers["content-type"]
    names = ";".join(sorted(signed))
    lines = [f"{name}:{' '.join(signed[name].split())}\n" for name in sorted(signed)]
    # AWS computes the signature over a path that is percent-encoded twice.
    path = "/".join([quote(piece, safe="-_.~") for piece in parts.path.split("/")]) or "/"
    canonical = "\n".join(
        [request.method, path, _write_query(parts.query), "".join(lines), names, digest]
    )
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{keys.secret_key}".encode()
    for piece in (stamp[:8], region, service, "aws4_request"):
        key = hmac.new(key, piece.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}"
    return {
        **added,
        "authorization": f"{credential}, SignedHeaders={names}, Signature={signature}",
    }


def _write_query(query: str) -> str:
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    escaped = [
        (quote(unquote(name), safe="-_.~"), quote(unquote(value), safe="-_.~"))
        for name, _, value in pairs
    ]
    return "&".join([f"{name}={value}" for name, value in sorted(escaped)])
