"""The page and its data over HTTP, on this machine alone.

What a log holds was written by models and by the tools they called, so nothing of it is trusted: the
page's policy allows no script but its own and no address but this one, every text is set as text, and
data goes out as JSON only. The path begins with a token that is new each time, so that no other page
in the same browser can ask; a name that does not mean this machine is refused, so that no other name
can be made to mean it (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
from aiohttp import web

from ..errors import scrub
from ..log import EventLog, LogError
from .reading import Reader

__all__ = ["TraceServer", "make_app"]

_PAGE = Path(__file__).parent / "page"
_FILES = {
    "": ("index.html", "text/html"),
    "trace.css": ("trace.css", "text/css"),
    "trace.js": ("trace.js", "text/javascript"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",  # the token is in the path
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_MOST = 1000

_READER = web.AppKey("reader", Reader)
_TOKEN = web.AppKey("token", str)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(log: EventLog, token: str) -> web.Application:
    """The application that serves ``log`` below ``/token/``."""
    app = web.Application(middlewares=[_guard], client_max_size=0)
    app[_READER] = Reader(log)
    app[_TOKEN] = token
    app.on_response_prepare.append(_add_headers)
    app.router.add_get("/{token}/", _send_file)
    app.router.add_get("/{token}/{name:trace\\.(?:css|js)}", _send_file)
    for name, handler in _HANDLERS.items():
        app.router.add_get(f"/{{token}}/api/{name}", handler)
    return app


class TraceServer:
    """Serves a log at ``url`` while it is open: ``async with TraceServer(log) as server: ...``."""

    def __init__(self, log: EventLog, *, port: int = 0) -> None:
        self.url = ""
        self._token = secrets.token_urlsafe(24)
        self._runner = web.AppRunner(make_app(log, self._token), access_log=None)  # it would write the token down
        self._port = port

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        try:
            await site.start()
        except BaseException:
            await self._runner.cleanup()
            raise
        _, port = self._runner.addresses[0][:2]
        self.url = f"http://127.0.0.1:{port}/{self._token}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def __repr__(self) -> str:  # without the address, which is the key
        return "<TraceServer>"


# --- who may ask ------------------------------------------------------------------------------------


@web.middleware
async def _guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
    name = request.host.rpartition(":")[0] if request.host.rpartition(":")[2].isdigit() else request.host
    if name not in _NAMES:
        return _refuse(403, "this address is for this machine alone")
    given = request.match_info.get("token", "")
    if not hmac.compare_digest(given.encode(), request.app[_TOKEN].encode()):
        return _refuse(404, "there is nothing here")
    try:
        return await handler(request)
    except LogError as error:
        return _refuse(500, scrub(str(error)))
    except ValueError as error:
        return _refuse(400, str(error))


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _refuse(status: int, why: str) -> web.Response:
    return web.Response(body=msgspec.json.encode({"error": why}), status=status, content_type="application/json")


# --- the page and its data --------------------------------------------------------------------------


async def _send_file(request: web.Request) -> web.Response:
    name, kind = _FILES[request.match_info.get("name", "")]
    body = await asyncio.to_thread((_PAGE / name).read_bytes)
    return web.Response(body=body, content_type=kind, charset="utf-8")


def _answer(read: Callable[[Reader, Mapping[str, str]], Any]) -> _Handler:
    """A handler that reads in a thread and sends JSON; ``None`` is "there is no such thing"."""

    async def handle(request: web.Request) -> web.Response:
        found = await asyncio.to_thread(read, request.app[_READER], request.query)
        if found is None:
            return _refuse(404, "there is no such record")
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    return handle


async def _send_line(request: web.Request) -> web.Response:
    """The whole record, however long, as a file."""
    session, seq = _text(request.query, "session"), _number(request.query, "seq")
    record = await asyncio.to_thread(request.app[_READER].find_record, session, seq)
    if record is None:
        return _refuse(404, "there is no such record")
    headers = {"Content-Disposition": f'attachment; filename="record-{seq}.json"'}
    return web.Response(body=record.line + b"\n", content_type="application/json", headers=headers)


def _text(query: Mapping[str, str], name: str) -> str:
    if not query.get(name):
        raise ValueError(f"{name}: is missing")
    return query[name]


def _number(query: Mapping[str, str], name: str, default: int = 0, most: int = 2**62) -> int:
    given = query.get(name, str(default))
    if not (given.isascii() and given.isdigit() and len(given) < 20 and int(given) <= most):
        raise ValueError(f"{name}: must be a whole number of at most {most}")
    return int(given)


_HANDLERS: dict[str, _Handler] = {
    "sessions": _answer(
        lambda reader, query: reader.list_sessions(
            query.get("query", ""), _number(query, "offset"), _number(query, "limit", 100, _MOST)
        )
    ),
    "steps": _answer(
        lambda reader, query: reader.read_page(
            _text(query, "session"), _number(query, "after"), _number(query, "limit", 500, _MOST)
        )
    ),
    "totals": _answer(lambda reader, query: reader.count(_text(query, "session"))),
    "chain": _answer(lambda reader, query: reader.check_chain(_text(query, "session"))),
    "record": _answer(lambda reader, query: reader.read_record(_text(query, "session"), _number(query, "seq"))),
    "exchange": _answer(lambda reader, query: reader.read_exchange(_text(query, "session"), _text(query, "request"))),
    "raw": _send_line,
}
