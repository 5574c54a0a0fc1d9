"""The connection to an MCP server at a URL, with bounds on what the server may send.

A reply is counted while it arrives, because the MCP library reads a complete reply of any size,
decompresses it and builds about fifty bytes of objects from each byte of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from http.client import responses
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from ..transport.connect import parse_url

MAX_REPLY = 4 * 1024 * 1024
"""How many bytes a reply may have, with all its events; the MCP library limits one to 1 MiB."""
MAX_ITEMS = 1000
"""How many tools a server may have, and how many blocks a result."""

_READ_TIMEOUT = 300.0  # the read timeout in seconds: a server may hold a stream of events open
_Items: TypeAlias = Annotated[tuple[msgspec.Raw, ...], Meta(max_length=MAX_ITEMS)]


class _McpResult(Struct):
    content: _Items = ()
    tools: _Items = ()
    resources: _Items = ()
    contents: _Items = ()
    prompts: _Items = ()
    messages: _Items = ()


class _McpReply(Struct):
    result: _McpResult | None = None


class _McpError(Struct):
    jsonrpc: str
    error: dict[str, Any] | None = None


async def open_http(
    stack: contextlib.AsyncExitStack,
    url: str,
    headers: Mapping[str, str],
    patience: float,
    guard: Any = None,
) -> Any:
    """Return a transport that sends the headers to the server's own origin only.

    ``guard`` is the ``Guard`` of a server with OAuth.
    """
    import httpx2  # httpx2 is a dependency of the MCP library
    from mcp.client.streamable_http import streamable_http_client

    class Bounded(httpx2.AsyncByteStream):
        """The body of a response. An excess is a ``StreamError``, which ends only one call."""

        def __init__(self, response: httpx2.Response) -> None:
            self._headers = response.headers
            self._body = response.stream

        def __aiter__(self) -> AsyncIterator[bytes]:
            return _bound(self._headers, self._body, httpx2.StreamError)

        async def aclose(self) -> None:
            await self._body.aclose()  # type: ignore[union-attr]

    class Guarded(httpx2.Auth):
        def async_auth_flow(self, request: httpx2.Request) -> Any:
            return guard.run(request)

    home = parse_url(url)

    async def add_headers(request: httpx2.Request) -> None:
        place = parse_url(str(request.url))
        if (place.scheme, place.host, place.port) == (home.scheme, home.host, home.port):
            request.headers.update(headers)

    async def bound(response: httpx2.Response) -> None:
        response.stream = Bounded(response)
        if guard is not None and "oauth" in response.request.extensions:
            try:
                body = b"".join([part async for part in response.stream])
            except httpx2.StreamError as error:
                guard.problem = str(error)
                body = b""
            response.stream = httpx2.ByteStream(body)
        elif response.status_code >= 400 and response.status_code != 404:
            body = await _read_error(response, guard.problem if guard else None)
            response.headers["content-type"] = "application/json"
            response.stream = httpx2.ByteStream(body)

    http = httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(patience, read=_READ_TIMEOUT),
        auth=Guarded() if guard is not None else None,
        event_hooks={"request": [add_headers], "response": [bound]},
    )
    return streamable_http_client(url, http_client=await stack.enter_async_context(http))


async def _read_error(response: Any, problem: str | None) -> bytes:
    """Return the JSON-RPC error in the body of a failed reply, or an error that names its status.

    Without such a body, the MCP library reports any status as "Server returned an error response",
    and 404 as an unknown method or session.
    """
    import httpx2

    body = b""
    if response.headers.get("content-type", "").lower().startswith("application/json"):
        with contextlib.suppress(httpx2.StreamError):
            body = b"".join([part async for part in response.stream])
    await response.stream.aclose()
    return body if _is_error(body) else _describe(response.status_code, problem)


def _is_error(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_McpError).error is not None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _describe(status: int, problem: str | None) -> bytes:
    """Return a JSON-RPC error for an HTTP status; the library puts the id of the request in it."""
    hint = f"; {problem}" if problem else ""
    if status in (401, 403) and not problem:
        hint = "; pass the server's key in headers=, or log in with oauth= or dragoman mcp login"
    phrase = responses.get(status, "")
    error = {"code": -32603, "message": f"the server answered HTTP {status} {phrase}{hint}"}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 0, "error": error})


async def _bound(
    headers: Mapping[str, str], body: Any, error: type[Exception]
) -> AsyncIterator[bytes]:
    """Yield a body; raise ``error`` if it is compressed, too long or has too many items."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise error("the reply is compressed, although the request asked for no compression")
    is_stream = headers.get("content-type", "").lower().startswith("text/event-stream")
    size = 0
    kept = bytearray()
    async for part in body:
        size += len(part)
        if size > MAX_REPLY:
            raise error(f"the reply has more than {MAX_REPLY:,} bytes")
        if is_stream:
            yield part
        else:
            kept += part
    try:
        msgspec.json.decode(kept, type=_McpReply)
    except msgspec.ValidationError as excess:
        raise error(str(excess)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # the MCP library reports a body that is not JSON
    if kept:
        yield bytes(kept)
