"""The pages of a log-in at an identity provider: its begin, its answer, its end, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING

from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ...errors import ProviderError

if TYPE_CHECKING:
    from ..login import LogIn  # its library is an extra

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<title>Log-in · Dragoman</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{url}/ui/trace.css">
<link rel="stylesheet" href="{url}/ui/site.css">
</head>
<body class="site">
<main><div class="sheet sign-in">
<h1>You are not logged in</h1>
<p role="alert">{why}</p>
<p><a class="button" href="{url}/ui/login">Log in again</a> <a href="{url}/">To the pages</a></p>
</div></main>
</body>
</html>
"""
_BEGUN_SECONDS = 600


def read_cookie(headers: Mapping[str, str], name: str) -> str | None:
    """Return the value of a cookie of a request; ``None`` if there is none."""
    return cookie_parser(headers.get("cookie", "")).get(name)


class LoginPages:
    """The routes by which people log in and out."""

    def __init__(self, login: LogIn) -> None:
        self._login = login

    def routes(self) -> list[Route]:
        """Return the routes."""
        handlers: dict[str, tuple[str, Callable[[Request], object]]] = {
            "/ui/login": ("GET", self._begin),
            "/ui/login/callback": ("GET", self._finish),
            "/ui/api/logout": ("POST", self._end),
        }
        return [Route(path, run, methods=[method]) for path, (method, run) in handlers.items()]

    async def _begin(self, _: Request) -> Response:
        try:
            address, cookie = await self._login.begin()
        except ProviderError as error:
            return self._explain(error)
        reply = RedirectResponse(address, 303)
        self._set(reply, "begun", cookie, _BEGUN_SECONDS)
        return reply

    async def _finish(self, request: Request) -> Response:
        begun = read_cookie(request.headers, self._login.cookie_name("begun"))
        try:
            session = await self._login.finish(request.query_params.multi_items(), begun)
        except ProviderError as error:
            reply = self._explain(error)
        else:
            reply = RedirectResponse(f"{self._login.settings.url}/", 303)
            seconds = int(self._login.settings.session_hours * 3600)
            self._set(reply, "session", session, seconds)
        self._set(reply, "begun", "", 0)
        return reply

    async def _end(self, _: Request) -> Response:
        """End the session of this browser; the one at the provider goes on."""
        reply = Response("{}", media_type="application/json")
        self._set(reply, "session", "", 0)
        return reply

    def _set(self, reply: Response, purpose: str, value: str, seconds: int) -> None:
        """Set a cookie of these pages, or delete it if no seconds are left.

        The answer of a provider comes from another site, to which a strict cookie is not sent.
        """
        reply.set_cookie(
            self._login.cookie_name("session" if purpose == "session" else "begun"),
            value,
            max_age=seconds,
            path="/",
            secure=self._login.is_secure,
            httponly=True,
            samesite="strict" if purpose == "session" else "lax",
        )

    def _explain(self, error: ProviderError) -> Response:
        url = escape(self._login.settings.url, quote=True)
        text = _PAGE.format(url=url, why=escape(error.message))
        return Response(text, error.status or 400, media_type="text/html")
