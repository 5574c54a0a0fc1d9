"""OAuth for MCP servers at a URL: how to log in, and where tokens are stored.

The MCP library follows the protocol: discovery, registration, PKCE, scopes and refreshing. This
module decides which addresses its requests may have, keeps a failed login to one call, and logs
in by a browser, which is redirected to a port of this machine.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import re
import webbrowser
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import parse_qs, urljoin, urlsplit

import msgspec
from msgspec import Struct

from ..registry.keys import open_keyring, read_key, remove_key, store_key
from ..transport.connect import is_loopback

Authorize: TypeAlias = Callable[[str], Awaitable[str]]
_NO_LOGIN = "no login is stored; log in with dragoman mcp login, or pass McpOAuth(authorize=...)"
_NO_REGISTRATION = (
    "the server registers no clients; pass client_id= of a registered one, or client_metadata_url= "
    "with the address of the document that dragoman mcp document prints"
)
_MAX_PROBLEM = 500  # limit in characters: the authorization server may write the message
_TIMEOUT = {"connect": 30.0, "read": 30.0, "write": 30.0, "pool": 30.0}
_HEAD = "Content-Type: text/plain\r\nConnection: close\r\nContent-Length: "
REDIRECT = "http://127.0.0.1:8976/callback"
"""Where the browser is sent to after a login, by default."""

_CLIENT_NAME = "Dragoman"
_PAGE = "You can close this page and return to the program.\n"
_MAX_LINE = 16 * 1024


class TokenStore(Protocol):
    """Where tokens are stored, by the URL of the server. A ``dict`` is a store in memory."""

    def get(self, server: str, /) -> str | None: ...
    def __setitem__(self, server: str, saved: str, /) -> None: ...
    def pop(self, server: str, default: None, /) -> str | None: ...


class KeyringTokens:
    """Store tokens in the system's keyring, as ``dragoman keys`` does; without one, in memory."""

    _memory: dict[str, str] = {}  # noqa: RUF012 - shared by all servers of this process

    def get(self, server: str, /) -> str | None:
        return self._memory.get(server) or read_key(name_tokens(server))

    def __setitem__(self, server: str, saved: str, /) -> None:
        if open_keyring() is None:
            self._memory[server] = saved
        else:
            store_key(name_tokens(server), saved)

    def pop(self, server: str, default: None = None, /) -> str | None:
        found = self.get(server)
        self._memory.pop(server, None)
        remove_key(name_tokens(server))
        return found or default


def name_tokens(server: str) -> str:
    """Return the name by which ``dragoman keys list`` shows the login of a server."""
    host = re.sub("[^A-Z0-9]+", "_", (urlsplit(server).hostname or "").upper())
    return f"MCP_{host[:60]}_{hashlib.sha256(server.encode()).hexdigest()[:12].upper()}"


class McpOAuth(Struct, frozen=True, kw_only=True):
    """How to log in to an MCP server with OAuth.

    By default the client registers itself with the authorization server and uses the stored
    tokens. ``authorize`` receives the URL of the page to log in at, and returns the URL that the
    browser was sent to afterwards; without it, only stored tokens are used. ``log_in_by_browser``
    is such a function.

    Pass ``client_id`` for a client that is registered already, or ``client_metadata_url`` for one
    that a document describes (``describe_client``), for servers without registration. A
    ``client_secret`` is sent only to the authorization server ``issuer``. The grant
    ``client_credentials`` needs no login.
    """

    authorize: Authorize | None = None
    client_id: str | None = None
    client_secret: str | None = None
    client_metadata_url: str | None = None
    issuer: str | None = None
    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    auth_method: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    redirect_uri: str = REDIRECT
    tokens: TokenStore | None = None

    def __post_init__(self) -> None:
        if self.client_secret and not (self.client_id and self.issuer):
            raise ValueError("oauth: a client_secret needs client_id and issuer")
        if self.grant == "client_credentials" and not self.client_secret:
            raise ValueError("oauth: client_credentials needs a client_secret")

    def __repr__(self) -> str:
        return f"McpOAuth({self.grant}, client_id={self.client_id!r}, issuer={self.issuer!r})"


def describe_client(url: str, redirect_uri: str = REDIRECT) -> dict[str, Any]:
    """Return the document that describes this client, to be published at ``url``.

    A server that supports Client ID Metadata Documents fetches it in place of a registration,
    which the specification of 2026-07-28 deprecates.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.path in ("", "/") or parts.fragment:
        raise ValueError(f"url: must be an https:// address with a path, not {url!r}")
    return {
        "client_id": url,
        "client_name": _CLIENT_NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "native",
    }


class _Storage:
    """The storage that the MCP library calls; it also restores the state of the library.

    A token is refreshed later at the endpoint of the stored metadata.
    """

    def __init__(self, oauth: McpOAuth, server: str, secrets: list[str]) -> None:
        self._oauth = oauth
        self._server = server
        self._secrets = secrets
        self._store: TokenStore = KeyringTokens() if oauth.tokens is None else oauth.tokens
        self._saved: dict[str, Any] = {}
        self.context: Any = None

    async def get_tokens(self) -> Any:
        from mcp.shared.auth import OAuthMetadata, OAuthToken, ProtectedResourceMetadata

        text = await asyncio.to_thread(self._store.get, self._server)
        with contextlib.suppress(ValueError):
            found = msgspec.json.decode(base64.b64decode(text or ""), type=dict[str, Any])
            tokens = self._load(OAuthToken, found.get("tokens"))
            metadata = self._load(OAuthMetadata, found.get("metadata"))
            resource = self._load(ProtectedResourceMetadata, found.get("resource"))
            self._saved = found
            context = self.context
            context.token_expiry_time = found.get("expires_at")
            context.oauth_metadata = metadata
            context.protected_resource_metadata = resource
            return tokens
        return None

    async def set_tokens(self, tokens: Any) -> None:
        from mcp.client.auth import OAuthTokenError

        context = self.context
        for each in (tokens.access_token, tokens.refresh_token or ""):
            if not (each.isascii() and each.isprintable()):
                # an error of a later request would quote its header
                context.clear_tokens()
                raise OAuthTokenError("the server sent a token that no header can have")
        found = {"tokens": self._dump(tokens), "metadata": self._dump(context.oauth_metadata)}
        found["resource"] = self._dump(context.protected_resource_metadata)
        self._saved |= found | {"expires_at": context.token_expiry_time}
        text = base64.b64encode(msgspec.json.encode(self._saved)).decode()
        await asyncio.to_thread(self._store.__setitem__, self._server, text)

    async def get_client_info(self) -> Any:
        from mcp.shared.auth import OAuthClientInformationFull

        oauth = self._oauth
        client = self._saved.get("client")
        if oauth.client_id is not None:
            client = {"client_id": oauth.client_id, "client_secret": oauth.client_secret}
            client |= {"issuer": oauth.issuer, "redirect_uris": [oauth.redirect_uri]}
            method = oauth.auth_method if oauth.client_secret else "none"
            client |= {"token_endpoint_auth_method": method}
        return self._load(OAuthClientInformationFull, client)

    async def set_client_info(self, client_info: Any) -> None:
        self._saved["client"] = self._dump(client_info)

    def _load(self, kind: Any, found: Any) -> Any:
        return None if found is None else self._hide(kind.model_validate(found))

    def _dump(self, model: Any) -> Any:
        return None if model is None else self._hide(model).model_dump(mode="json")

    def _hide(self, model: Any) -> Any:
        names = ("access_token", "refresh_token", "client_secret")
        self._secrets += [value for name in names if (value := getattr(model, name, None))]
        return model


def make_auth(oauth: McpOAuth, server: str, secrets: list[str]) -> Any:
    """Return the library's authentication for a server; secrets that it uses are collected."""
    from mcp.client.auth import OAuthClientProvider, OAuthFlowError
    from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
    from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata

    if oauth.client_secret:
        secrets.append(oauth.client_secret)
    storage = _Storage(oauth, server, secrets)
    provider: Any
    if oauth.grant == "client_credentials":
        facts = oauth.client_id or "", oauth.client_secret or "", oauth.auth_method
        provider = ClientCredentialsOAuthProvider(server, storage, *facts, issuer=oauth.issuer)
        storage.context = provider.context
        return provider
    asked: list[str] = []

    async def show(url: str) -> None:
        check_place(url, server)
        asked[:] = [url]

    async def answer() -> AuthorizationCodeResult:
        if oauth.authorize is None:
            raise OAuthFlowError(_NO_LOGIN)
        given = parse_qs(urlsplit(await oauth.authorize(asked[0])).query)
        first = {name: values[0] for name, values in given.items()}
        if "error" in first:
            why = first.get("error_description", "")
            raise OAuthFlowError(f"the login was refused: {first['error']} {why}".rstrip())
        return AuthorizationCodeResult.model_validate({"code": "", **first})

    metadata = {"client_name": _CLIENT_NAME, "redirect_uris": [oauth.redirect_uri]}
    parts = OAuthClientMetadata.model_validate(metadata), storage, show, answer
    described = oauth.client_metadata_url
    provider = OAuthClientProvider(server, *parts, client_metadata_url=described)
    storage.context = provider.context
    return provider


def _has_no_traceback(record: logging.LogRecord) -> bool:
    return record.exc_info is None


def check_place(url: str, server: str) -> None:
    """Raise ``ValueError`` if a server leads to an address that tokens must not be sent to."""
    parts = urlsplit(url)
    is_local = is_loopback(parts.hostname or "") and is_loopback(urlsplit(server).hostname or "")
    if not (parts.scheme == "https" or (parts.scheme == "http" and is_local)):
        place = f"{parts.scheme}://{parts.hostname}"
        raise ValueError(f"oauth: {place} is not an https:// address")


async def log_in_by_browser(
    url: str, *, show: Callable[[str], object] | None = None, browser: bool = True
) -> str:
    """Open the page to log in at; return the URL that the browser is sent to afterwards.

    The redirect URI in ``url`` must have the address of this machine and a port. ``show`` is
    called with the URL of the page; without ``browser`` the page is not opened.
    """
    asked = parse_qs(urlsplit(url).query)
    redirect = asked.get("redirect_uri", [""])[0]
    parts = urlsplit(redirect)
    if parts.scheme != "http" or not parts.port or not is_loopback(parts.hostname or ""):
        raise ValueError("redirect_uri: must be http://127.0.0.1:PORT/... to log in by a browser")
    landed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            words = (await reader.readuntil(b"\r\n")).decode("latin-1").split(" ")
            path = words[1] if words[0] == "GET" and len(words) == 3 else ""
            place, _, query = path.partition("?")
            # Any page can send requests here, so wait for the one with the state of this login.
            state = asked.get("state")
            is_ours = place == parts.path and state in (None, parse_qs(query).get("state"))
            status, page = ("200 OK", _PAGE) if is_ours else ("404 Not Found", "Not found.\n")
            writer.write(f"HTTP/1.1 {status}\r\n{_HEAD}{len(page)}\r\n\r\n{page}".encode())
            await writer.drain()
            if is_ours and not landed.done():
                landed.set_result(urljoin(redirect, path))
        writer.close()

    try:
        server = await asyncio.start_server(answer, parts.hostname, parts.port, limit=_MAX_LINE)
    except OSError as error:
        problem = error.strerror or error
        raise ValueError(f"redirect_uri: cannot listen on port {parts.port}: {problem}") from None
    try:
        if show is not None:
            show(url)
        if browser:
            # A text browser blocks until the user closes it, so it is opened in a thread.
            await asyncio.to_thread(webbrowser.open, url)
        return await landed
    finally:
        server.close()  # do not wait: browsers keep unused connections open


class Guard:
    """Drive the authentication of a server: check its requests, and keep failures to one call.

    An exception in the library's flow would end the connection. ``problem`` is the last failure.
    """

    def __init__(self, auth: Any, server: str, secrets: list[str]) -> None:
        from mcp.client.auth import oauth2

        # The library logs the traceback of each failure, which may quote a token.
        oauth2.logger.addFilter(_has_no_traceback)
        self._auth = auth
        self._server = server
        self._secrets = secrets
        self.problem: str | None = None

    async def run(self, request: Any) -> AsyncGenerator[Any, Any]:
        """Yield the requests to send; see ``httpx2.Auth.async_auth_flow``."""
        from mcp.client.auth import OAuthRegistrationError

        flow = self._auth.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            sent = None
            while True:
                if outgoing is not request:
                    # Send neither a request after a failure nor one that closes or listens again.
                    if self.problem is not None or request.method != "POST":
                        break
                    check_place(str(outgoing.url), self._server)
                    outgoing.headers["Accept-Encoding"] = "identity"
                    outgoing.extensions = {"timeout": _TIMEOUT, "oauth": True}
                self._hide(outgoing.headers)
                response = yield outgoing
                sent = outgoing
                outgoing = await flow.asend(response)
            if sent is request:
                return
        except StopAsyncIteration:
            return
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"[:_MAX_PROBLEM]
            if isinstance(error, OAuthRegistrationError):
                self.problem += f"; {_NO_REGISTRATION}"
        finally:
            await flow.aclose()
        # The server refuses this request again, and its answer becomes the error of the call.
        request.headers.pop("authorization", None)
        yield request

    def _hide(self, headers: Any) -> None:
        sent = [each.partition(" ")[2] or each for each in headers.get_list("authorization")]
        self._secrets += [each for each in sent if each not in self._secrets]
