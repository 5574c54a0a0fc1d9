"""The pages at ``/``, their files and their data.

The files contain no data, so that every browser may load them. Data needs the admin key as a
bearer token, which a script of the page sends; a gateway without keys and without an admin key
shows the playground and the models to its own machine. The only cookie is the session of a person
who logged in at an identity provider: it counts for the data of these pages alone, browsers send
it with requests of these pages only (SameSite), and requests of other sites are refused (CSRF).
Other sites can neither read data nor show the pages in a frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ...errors import ProviderError, scrub
from ...trace import Viewer, add_headers
from ...trace.export import PAGE as TRACE_PAGE
from ..access import Service, read_headers
from ..administration import find_store
from ..clients import ADDRESS, Target, fill_steps, read_clients
from ..people import CHANGERS, OPERATORS, READERS, ROLES, Person, Role
from .keys import PERSON, change_key, list_keys
from .login import LoginPages, read_cookie
from .me import change_own, read_own
from .overview import list_calls, list_names, read_overview
from .playground import PlaygroundChat, preview
from .readings import NotedReading
from .vendors import list_vendors, store_vendor_key

PAGE = Path(__file__).parent / "page"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_FILES = {
    "": PAGE / "site.html",
    **{
        name: PAGE / name
        for name in (
            "site.css",
            "site.js",
            "overview.js",
            "playground.js",
            "me.js",
            "questions.js",
        )
    },
    **{name: TRACE_PAGE / name for name in ("trace.css", "render.js")},
}
_STATE = "/ui/api/state"  # without a key, it reports only that one is needed
_TRACES = "/ui/traces"

_ALL = frozenset(ROLES)
_ADMIN: frozenset[Role] = frozenset({"admin"})
_ANSWERERS: frozenset[Role] = frozenset({"admin", "self"})  # the second about the own sessions
_FORBIDDEN = 403, "your role does not allow this"

Read = Callable[[Service, Request], Awaitable[Any]]


class Site:
    """The ASGI application of the pages for the state of a gateway."""

    def __init__(self, service: Service) -> None:
        self._service = service
        api = [
            ("GET state", _read_state, _ALL),
            ("GET models", _read_models, _ALL),
            ("GET clients", _list_clients, _ALL),
            ("POST preview", preview, _ALL),
        ]
        if service.registry is not None:
            api.append(("GET vendors", list_vendors, _ADMIN))
            api.append(("POST vendors", store_vendor_key, _ADMIN))
        if service.usage is not None:
            api += [("GET overview", read_overview, READERS), ("GET calls", list_calls, READERS)]
            api.append(("GET names", list_names, READERS))
        if find_store(service) is not None:
            api += [("GET keys", list_keys, OPERATORS), ("POST keys", change_key, CHANGERS)]
        if service.login is not None:
            api += [("GET me", read_own, _ALL), ("POST me", change_own, _ALL)]
        if service.sessions is not None:
            api += [
                ("GET questions", _read_questions, _ALL),
                ("POST questions", _answer, _ANSWERERS),
            ]
        routes = [Route(f"/ui/{name}" if name else "/", self._send_file) for name in _FILES]
        most = service.bounds.body_bytes
        for named, make, roles in api:
            method, _, name = named.partition(" ")
            handle = self._answer(make, roles)
            routes.append(Route(f"/ui/api/{name}", handle, methods=[method], max_body_size=most))
        routes.append(Route("/ui/api/chat", PlaygroundChat(service), methods=["POST"]))
        if service.login is not None:
            routes += LoginPages(service.login).routes()
        if service.people is not None and service.calls is not None:
            viewer = Viewer(service.calls.events, _TRACES, self._check_reader)
            routes.append(Route(f"{_TRACES}/", self._send_viewer))
            noted = NotedReading(service, viewer, self._check_reader, _refuse)
            routes.append(Route(f"{_TRACES}/{{path:path}}", noted))
        self._router = Router(routes, redirect_slashes=False, default=_refuse(404, "not found"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        send = add_headers(send)
        refused = self._check(scope)
        answer: ASGIApp = self._router if refused is None else _refuse(*refused)
        try:
            await answer(scope, receive, send)
        except HTTPException as error:  # the path does not take this method
            await _refuse(error.status_code, error.detail)(scope, receive, send)

    def _check(self, scope: Scope) -> tuple[int, str] | None:
        """Return why a request is refused, as a status and a message, or ``None``."""
        if not ("/api/" in scope["path"] or scope["method"] not in ("GET", "HEAD")):
            return None
        try:
            headers = read_headers(scope)
            if self._service.people is None:
                self._service.check_origin(headers)
        except ProviderError as error:
            return error.status or 403, error.message
        site = headers.get("sec-fetch-site")
        origin = headers.get("origin")
        is_foreign = site not in ("same-origin", "none") if site else origin is not None
        if is_foreign and (site or origin.partition("://")[2] != headers.get("host")):  # type: ignore[union-attr]
            return 403, "these pages are not for other sites"
        try:
            person = scope[PERSON] = self._find_person(headers)
        except ProviderError as error:  # it is withdrawn, or the secret of sessions cannot be read
            return error.status or 503, error.message
        asks_state = scope["path"] == _STATE and "authorization" not in headers
        if self._service.people is None or asks_state or person is not None:
            return None
        if self._service.login is not None and "authorization" not in headers:
            return 401, "your session is over; log in again"
        return 401, "the admin key is missing or wrong"

    def _find_person(self, headers: Mapping[str, str]) -> Person | None:
        """Return the person whose key a request has, or whose session if it has no key."""
        login = self._service.login
        if login is None or "authorization" in headers:
            return self._service.find_person(headers)
        person = login.find_person(read_cookie(headers, login.cookie_name("session")))
        self._service.check_user(None if person is None else person.own)
        return person

    def _check_reader(self, scope: Scope) -> tuple[int, str] | None:
        """Return why a request for content is refused: only an admin reads it."""
        refused = self._check(scope)
        person = scope.get(PERSON)
        if refused is None and isinstance(person, Person) and person.role != "admin":
            return _FORBIDDEN
        return refused

    def _answer(
        self, make: Read, roles: Collection[Role]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            person = request.scope.get(PERSON)
            if isinstance(person, Person) and person.role not in roles:
                return _refuse(*_FORBIDDEN)
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if request.method == "POST" and kind != "application/json":
                return _refuse(415, "the body must be JSON")
            try:
                made = await make(self._service, request)
            except (ProviderError, ValueError, LookupError) as error:
                return _refuse(400, scrub(str(error)))
            return Response(msgspec.json.encode(made), media_type="application/json")

        return handle

    async def _send_file(self, request: Request) -> Response:
        path = _FILES[request.scope["path"].rpartition("/")[2]]
        return Response(await asyncio.to_thread(path.read_bytes), media_type=_KINDS[path.suffix])

    async def _send_viewer(self, _: Request) -> Response:
        """Send the page of the trace viewer with the navigation of these pages."""
        text = await asyncio.to_thread((TRACE_PAGE / "index.html").read_text, "utf-8")
        added = (
            '<link rel="stylesheet" href="../site.css">\n<script src="../site.js" defer></script>'
        )
        first = '<script src="timeline.js"'
        return Response(text.replace(first, f"{added}\n{first}"), media_type="text/html")


def _refuse(status: int, why: str) -> Response:
    body = msgspec.json.encode({"error": why})
    return Response(body, status, media_type="application/json")


async def _read_state(service: Service, request: Request) -> dict[str, Any]:
    """Return which pages there are, and what the playground needs."""
    person = request.scope[PERSON]
    log_in = {} if service.login is None else {"log_in": service.login.settings.label}
    if service.people is not None and person is None:
        return {"sign_in": True, **log_in}
    key = request.headers.get("authorization", "").partition(" ")[2]
    has_own = person is not None and person.own is not None
    return {
        "person": None if person is None else {"name": person.name, "role": person.role},
        "logged_in": has_own,
        **log_in,
        "version": version("dragoman"),
        "pages": _list_pages(service, person),
        "models": [name for name in service.models.names() if person is None or person.sees(name)],
        "needs_key": not has_own and service.keys is not None and service.keys.find(key) is None,
        "stores_keys": service.registry is not None,
        "keeps_content": service.calls is not None and service.calls.include_content,
    }


def _list_pages(service: Service, person: Person | None) -> list[str]:
    """Return the names of the pages that a person may open, in their order."""
    role = None if person is None else person.role
    has_me = person is not None and person.own is not None
    pages = ["playground", "models"]
    if role == "self":
        pages = ["me", *pages]
    if service.usage is not None and role in READERS:
        pages = ["overview", *pages]
    if find_store(service) is not None and role in OPERATORS:
        pages.append("keys")
    if service.sessions is not None:
        pages.append("questions")
    if role == "admin" and service.calls is not None:
        pages.append("traces")
    pages.append("clients")
    if has_me and role != "self":
        pages.append("me")
    return pages


async def _read_questions(service: Service, request: Request) -> Any:
    """Return the queue of questions of all sessions."""
    assert service.sessions is not None
    return await service.sessions.read_page(request.scope[PERSON], request.query_params)


async def _answer(service: Service, request: Request) -> Any:
    """Record a decision about a call of a session."""
    assert service.sessions is not None
    return await service.sessions.answer_page(request.scope[PERSON], await request.body())


async def _read_models(service: Service, request: Request) -> dict[str, Any]:
    """Return what is known of the models; check their readiness only if the page requests it."""
    problems = await service.models.problems() if "check" in request.query_params else None
    person = request.scope[PERSON]
    described = service.models.describe(problems)
    return {"models": [each for each in described if person is None or person.sees(each["name"])]}


async def _list_clients(service: Service, request: Request) -> dict[str, Any]:
    """Return the settings of each coding agent for an address and a served model."""
    query = request.query_params
    name = query.get("model")
    target = Target(query.get("url", ADDRESS), name)
    person = request.scope[PERSON]
    if name in service.models.names() and (person is None or person.sees(name)):
        listed = service.models.list_model(name)
        target = replace(target, window=listed.window, longest_reply=listed.longest_reply)
    return {
        "clients": [
            {"name": each.name, "trial": each.trial, "steps": fill_steps(each, target)}
            for each in read_clients().values()
        ]
    }
