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
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import msgspec

from ..errors import advise_import, scrub
from ..log import EventLog, LogError
from ..transport.serving import MISSING, serving
from .export import PAGE, SCRIPTS, STYLE, export_html
from .queries import NotOpenError, Reader, SessionFilter

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from .approval import Approvals

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
_NOTHING = "there is nothing here"
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_MOST = 1000
_MOST_BYTES = 1_000_000  # maximum size of an answer in bytes

_Handler = Callable[["Request"], Awaitable["Response"]]
_Read = Callable[[Reader, Mapping[str, str]], Any]


def make_app(log: EventLog, token: str, *, decisions: Approvals | None = None) -> ASGIApp:
    """Return the ASGI application that serves ``log``; every path begins with ``token``.

    With ``decisions``, the user can answer open questions of sessions on the page.
    """
    return Viewer(log, "/{token}", partial(_check_token, token.encode()), decisions)


class TraceServer:
    """Serve the trace viewer of a log at ``url``: ``async with TraceServer(log) as server: ...``.

    With ``decisions``, the user can answer open questions of sessions on the page.
    """

    def __init__(
        self, log: EventLog, *, port: int = 0, decisions: Approvals | None = None
    ) -> None:
        self.url = ""
        self._token = secrets.token_urlsafe(24)
        self._serving = serving(make_app(log, self._token, decisions=decisions), port=port)

    async def __aenter__(self) -> Self:
        self.url = f"{await self._serving.__aenter__()}/{self._token}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._serving.__aexit__(None, None, None)

    def __repr__(self) -> str:  # the repr omits the address, which contains the token
        return "<TraceServer>"


class Viewer:
    """The ASGI application of the trace viewer, for paths that begin with ``prefix``.

    ``check`` returns why a request is refused, as a status and a message, or ``None``.
    """

    def __init__(
        self,
        log: EventLog,
        prefix: str,
        check: Callable[[Scope], tuple[int, str] | None],
        decisions: Approvals | None = None,
    ) -> None:
        with advise_import(MISSING):  # Starlette is an optional dependency and slow to import
            from starlette.responses import Response
            from starlette.routing import Route, Router

        self._respond = Response
        self._log = log
        self._reader = Reader(log)
        self._decisions = decisions
        self._check = check
        handlers = {
            **dict.fromkeys(_FILES, self._send_file),
            "api/raw": self._send_line,
            "api/export": self._send_export,
            "api/questions": self._send_questions,
            **{f"api/{name}": self._answer(read) for name, read in _READS.items()},
        }
        routes = [Route(f"{prefix}/{name}", handle) for name, handle in handlers.items()]
        if decisions is not None:
            routes.append(Route(f"{prefix}/api/answer", self._take_answer, methods=["POST"]))
        self._router = Router(
            routes,
            redirect_slashes=False,
            default=self._refuse(404, _NOTHING),
            max_body_size=_MOST_BYTES,
        )

    # --- access control of the trace viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        send = add_headers(send)
        try:
            refused = self._check(scope) if scope["type"] == "http" else None
            answer = self._router if refused is None else self._refuse(*refused)
            await answer(scope, receive, send)
            return
        except NotOpenError as error:  # the question was answered in the meantime
            refusal = self._refuse(409, scrub(str(error)))
        except LogError as error:
            refusal = self._refuse(500, scrub(str(error)))
        except ValueError as error:
            refusal = self._refuse(400, str(error))
        await refusal(scope, receive, send)

    def _refuse(self, status: int, why: str) -> Response:
        return self._send({"error": why}, status)

    def _send(self, value: Any, status: int = 200) -> Response:
        return self._respond(msgspec.json.encode(value), status, media_type="application/json")

    # --- sending responses to the browser

    async def _send_file(self, request: Request) -> Response:
        name, kind = _FILES[request.scope["path"].rpartition("/")[2]]
        body = await asyncio.to_thread((PAGE / name).read_bytes)
        return self._respond(body, media_type=kind)

    def _answer(self, read: _Read) -> _Handler:
        """Return a handler that calls ``read`` in a thread and sends its result as JSON.

        If the result is ``None``, the handler sends status 404.
        """

        async def handle(request: Request) -> Response:
            found = await asyncio.to_thread(read, self._reader, request.query_params)
            if found is None:
                return self._refuse(404, "there is no such record")
            return self._send(found)

        return handle

    async def _send_line(self, request: Request) -> Response:
        """Send the complete record, however long, as a file."""
        session = _text(request.query_params, "session")
        seq = _number(request.query_params, "seq")
        record = await asyncio.to_thread(self._reader.find_record, session, seq)
        if record is None:
            return self._refuse(404, "there is no such record")
        headers = {"Content-Disposition": f'attachment; filename="record-{seq}.json"'}
        line = record.line + b"\n"
        return self._respond(line, media_type="application/json", headers=headers)

    async def _send_export(self, request: Request) -> Response:
        """Send the session as one HTML file."""
        session = _text(request.query_params, "session")
        try:
            page = await asyncio.to_thread(export_html, self._log, session)
        except LookupError as error:
            return self._refuse(404, str(error))
        headers = {"Content-Disposition": 'attachment; filename="session.html"'}
        return self._respond(page, media_type="text/html", headers=headers)

    # --- decisions on permission requests

    async def _send_questions(self, _: Request) -> Response:
        """Send the open questions and the token for answers; nothing if answers are disabled."""
        if self._decisions is None:
            return self._send({"approve": False, "questions": []})
        questions = await asyncio.to_thread(self._decisions.list_questions)
        token = self._decisions.token
        return self._send({"approve": True, "token": token, "questions": questions})

    async def _take_answer(self, request: Request) -> Response:
        assert self._decisions is not None
        given = request.headers.get(_ANSWER_HEADER, "").encode("utf-8", "replace")
        is_ours = request.headers.get("Origin") == f"http://{_read_host(request.scope)}"
        is_ours = is_ours and request.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
        if not is_ours or not hmac.compare_digest(given, self._decisions.token.encode()):
            return self._refuse(403, "an answer must come from this page")
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip()
        if kind.lower() != "application/json":
            return self._refuse(415, "an answer must be JSON")
        body = await request.body()
        return self._send(await asyncio.to_thread(self._decisions.answer, body))


def add_headers(send: Send) -> Send:
    """Return a function that sends a reply with the headers that protect a page."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            added = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
            missing = [each for each in added if each[0] not in given]
            message["headers"] = [*message["headers"], *missing]
        await send(message)

    return send_with_headers


def _check_token(expected: bytes, scope: Scope) -> tuple[int, str] | None:
    """Return why a request is refused, or ``None`` if it has a local Host header and the token."""
    host = _read_host(scope)
    name, _, port = host.rpartition(":")
    if (name if port.isdigit() else host) not in _NAMES:
        return 403, "this address is for this machine alone"
    token = scope["path"].removeprefix("/").partition("/")[0]
    if not hmac.compare_digest(token.encode("utf-8", "replace"), expected):
        return 404, _NOTHING
    return None


def _read_host(scope: Scope) -> str:
    """Return the Host header; several such headers are joined, so that they match no name."""
    found = [value for name, value in scope["headers"] if name == b"host"]
    return b",".join(found).decode("latin-1")


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


_READS: dict[str, _Read] = {
    "sessions": lambda reader, query: reader.list_sessions(
        SessionFilter(
            **{name: query[name] for name in SessionFilter.__struct_fields__ if name in query}
        ),
        _number(query, "offset"),
        _number(query, "limit", 100, _MOST),
    ),
    "find": lambda reader, query: reader.find(_text(query, "session"), query.get("query", "")),
    "steps": lambda reader, query: reader.read_page(
        _text(query, "session"), _number(query, "after"), _number(query, "limit", 500, _MOST)
    ),
    "totals": lambda reader, query: reader.count(_text(query, "session")),
    "tools": lambda reader, query: reader.rate_tools(),
    "chain": lambda reader, query: reader.check_chain(_text(query, "session")),
    "record": lambda reader, query: reader.read_record(
        _text(query, "session"), _number(query, "seq")
    ),
    "exchange": lambda reader, query: reader.read_exchange(
        _text(query, "session"), _text(query, "request")
    ),
}
