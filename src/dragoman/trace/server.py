"""Serve the page of the trace viewer and its data over HTTP, on the loopback address only.

Models and tools wrote the contents of a log, so none of it is trusted: the Content-Security-Policy
allows only the page's own script and address, every text is inserted as text, and data is sent as
JSON only. The path begins with a token that is new each time, so that no other page in the same
browser can read it. A foreign Host header is rejected (DNS rebinding). An answer to a question, if
enabled, requires a second token in a header and this page as its origin (CSRF).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from ..errors import scrub
from ..log import EventLog, LogError
from .export import PAGE, SCRIPTS, STYLE, export_html
from .queries import Reader, Wanted

if TYPE_CHECKING:
    from aiohttp import web

_FILES = {
    "": ("index.html", "text/html"),
    STYLE: (STYLE, "text/css"),
    **{name: (name, "text/javascript") for name in SCRIPTS},
}
_ANSWER_HEADER = "X-Approval-Token"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src "
        "data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # The URL contains the token, so it must not be sent as a referrer.
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_MOST = 1000
_MOST_BYTES = 1_000_000  # maximum size of an answer in bytes

_Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]
_Read = Callable[[Reader, Mapping[str, str]], Any]


class NotOpenError(Exception):
    """The question is no longer open: it was answered in the meantime."""


class Decisions(Protocol):
    """List the questions that sessions ask the user, and record the user's answers.

    Every HTTP request with an answer must include ``token``. The viewer itself cannot run
    anything; ``dragoman.trace.approval`` implements this protocol with functions of
    ``dragoman.session``.
    """

    token: str

    def list_questions(self) -> list[dict[str, Any]]:
        """Return the open questions, each with the complete input of its tool call."""
        ...

    def answer(self, body: bytes) -> dict[str, Any]:
        """Record an answer; raise ``NotOpenError`` if the question is not open."""
        ...


def make_app(log: EventLog, token: str, *, decisions: Decisions | None = None) -> web.Application:
    """Return the web application that serves ``log``; every path begins with ``token``.

    With ``decisions``, the user can answer open questions of sessions on the page.
    """
    return _Site(log, token, decisions).make_app()


class TraceServer:
    """Serve the trace viewer of a log at ``url``: ``async with TraceServer(log) as server: ...``.

    With ``decisions``, the user can answer open questions of sessions on the page.
    """

    def __init__(
        self, log: EventLog, *, port: int = 0, decisions: Decisions | None = None
    ) -> None:
        self.url = ""
        self._token = secrets.token_urlsafe(24)
        self._site = _Site(log, self._token, decisions)
        # The token is in the path, so aiohttp's access log and its log of malformed requests would
        # contain it.
        logger = _QuietLogger(f"{__name__}.http")
        logger.parent = logging.getLogger(__name__)
        self._runner = self._site.web.AppRunner(
            self._site.make_app(), access_log=None, logger=logger
        )
        self._port = port

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        listener = self._site.web.TCPSite(self._runner, "127.0.0.1", self._port)
        try:
            await listener.start()
        except BaseException:
            await self._runner.cleanup()
            raise
        _, port = self._runner.addresses[0][:2]
        self.url = f"http://127.0.0.1:{port}/{self._token}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def __repr__(self) -> str:  # the repr omits the address, which contains the token
        return "<TraceServer>"


class _QuietLogger(logging.Logger):
    """Log failures of the handlers, but not aiohttp's parser errors, which quote the request."""

    def handle(self, record: logging.LogRecord) -> None:
        from aiohttp.http_exceptions import HttpProcessingError

        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, HttpProcessingError):
            super().handle(record)


class _Site:
    """The request handlers of the trace viewer."""

    def __init__(self, log: EventLog, token: str, decisions: Decisions | None) -> None:
        try:
            # aiohttp is an optional dependency and takes 0.3 s to import, so it is imported only
            # when the trace viewer starts.
            from aiohttp import web
        except ImportError as error:
            raise ImportError(
                "the trace viewer needs an extra: pip install 'dragoman[aiohttp]'"
            ) from error

        self.web = web
        self._log = log
        self._reader = Reader(log)
        self._decisions = decisions
        self._token = token.encode()

    def make_app(self) -> web.Application:
        # aiohttp accepts only functions as middleware, not methods.
        async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
            return await self._guard(request, handler)

        app = self.web.Application(
            middlewares=[self.web.middleware(guard)], client_max_size=_MOST_BYTES
        )
        app.on_response_prepare.append(_add_headers)
        app.router.add_get("/{token}/", self._send_file)
        for name in [name for name in _FILES if name]:
            app.router.add_get(f"/{{token}}/{{name:{name}}}", self._send_file)
        app.router.add_get("/{token}/api/raw", self._send_line)
        app.router.add_get("/{token}/api/export", self._send_export)
        app.router.add_get("/{token}/api/questions", self._send_questions)
        if self._decisions is not None:
            app.router.add_post("/{token}/api/answer", self._take_answer)
        for name, read in _READS.items():
            app.router.add_get(f"/{{token}}/api/{name}", self._answer(read))
        return app

    # --- access control of the trace viewer

    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        name, _, port = request.host.rpartition(":")
        if (name if port.isdigit() else request.host) not in _NAMES:
            return self._refuse(403, "this address is for this machine alone")
        if not hmac.compare_digest(
            request.match_info.get("token", "").encode("utf-8", "replace"), self._token
        ):
            return self._refuse(404, "there is nothing here")
        try:
            return await handler(request)
        except NotOpenError as error:  # the question was answered in the meantime
            return self._refuse(409, scrub(str(error)))
        except LogError as error:
            return self._refuse(500, scrub(str(error)))
        except ValueError as error:
            return self._refuse(400, str(error))

    def _refuse(self, status: int, why: str) -> web.Response:
        return self._send(msgspec.json.encode({"error": why}), status=status)

    def _send(self, body: bytes, **facts: Any) -> web.Response:
        return self.web.Response(body=body, content_type="application/json", **facts)

    # --- sending responses to the browser

    async def _send_file(self, request: web.Request) -> web.Response:
        name, kind = _FILES[request.match_info.get("name", "")]
        body = await asyncio.to_thread((PAGE / name).read_bytes)
        return self.web.Response(body=body, content_type=kind, charset="utf-8")

    def _answer(self, read: _Read) -> _Handler:
        """Return a handler that calls ``read`` in a thread and sends its result as JSON.

        If the result is ``None``, the handler sends status 404.
        """

        async def handle(request: web.Request) -> web.Response:
            found = await asyncio.to_thread(read, self._reader, request.query)
            if found is None:
                return self._refuse(404, "there is no such record")
            return self._send(msgspec.json.encode(found))

        return handle

    async def _send_line(self, request: web.Request) -> web.Response:
        """Send the complete record, however long, as a file."""
        session, seq = _text(request.query, "session"), _number(request.query, "seq")
        record = await asyncio.to_thread(self._reader.find_record, session, seq)
        if record is None:
            return self._refuse(404, "there is no such record")
        headers = {"Content-Disposition": f'attachment; filename="record-{seq}.json"'}
        return self._send(record.line + b"\n", headers=headers)

    async def _send_export(self, request: web.Request) -> web.Response:
        """Send the session as one HTML file."""
        session = _text(request.query, "session")
        try:
            page = await asyncio.to_thread(export_html, self._log, session)
        except LookupError as error:
            return self._refuse(404, str(error))
        headers = {"Content-Disposition": 'attachment; filename="session.html"'}
        return self.web.Response(
            text=page, content_type="text/html", charset="utf-8", headers=headers
        )

    # --- decisions on permission requests

    async def _send_questions(self, _: web.Request) -> web.Response:
        """Send the open questions and the token for answers; nothing if answers are disabled."""
        if self._decisions is None:
            return self._send(msgspec.json.encode({"approve": False, "questions": []}))
        questions = await asyncio.to_thread(self._decisions.list_questions)
        found = {"approve": True, "token": self._decisions.token, "questions": questions}
        return self._send(msgspec.json.encode(found))

    async def _take_answer(self, request: web.Request) -> web.Response:
        assert self._decisions is not None
        given = request.headers.get(_ANSWER_HEADER, "").encode("utf-8", "replace")
        is_ours = request.headers.get("Origin") == f"http://{request.host}"
        is_ours = is_ours and request.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
        if not is_ours or not hmac.compare_digest(given, self._decisions.token.encode()):
            return self._refuse(403, "an answer must come from this page")
        if request.content_type != "application/json":
            return self._refuse(415, "an answer must be JSON")
        body = await request.read()
        return self._send(
            msgspec.json.encode(await asyncio.to_thread(self._decisions.answer, body))
        )


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


# --- reading query parameters ------------------------------------------------------------------


def _text(query: Mapping[str, str], name: str) -> str:
    if not query.get(name):
        raise ValueError(f"{name}: is missing")
    return query[name]


def _number(query: Mapping[str, str], name: str, default: int = 0, most: int = 2**62) -> int:
    given = query.get(name, str(default))
    if not (given.isascii() and given.isdigit() and len(given) < 20 and int(given) <= most):
        raise ValueError(f"{name}: must be a whole number of at most {most}")
    return int(given)


def _read_wanted(query: Mapping[str, str]) -> Wanted:
    return Wanted(**{name: query[name] for name in Wanted.__struct_fields__ if name in query})


_READS: dict[str, _Read] = {
    "sessions": lambda reader, query: reader.list_sessions(
        _read_wanted(query), _number(query, "offset"), _number(query, "limit", 100, _MOST)
    ),
    "find": lambda reader, query: reader.find(_text(query, "session"), query.get("query", "")),
    "steps": lambda reader, query: reader.read_page(
        _text(query, "session"), _number(query, "after"), _number(query, "limit", 500, _MOST)
    ),
    "totals": lambda reader, query: reader.count(_text(query, "session")),
    "chain": lambda reader, query: reader.check_chain(_text(query, "session")),
    "record": lambda reader, query: reader.read_record(
        _text(query, "session"), _number(query, "seq")
    ),
    "exchange": lambda reader, query: reader.read_exchange(
        _text(query, "session"), _text(query, "request")
    ),
}
