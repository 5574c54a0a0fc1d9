"""Allow cross-origin requests from web pages whose origin the operator has listed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_EXPOSED = "x-request-id, request-id, x-dragoman-warnings, retry-after"
_DAY = "86400"


class Cors:
    """ASGI middleware that lets web pages from listed origins send requests and read replies."""

    def __init__(self, app: Any, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one ASGI request."""
        found = dict(scope["headers"]) if scope["type"] == "http" else {}
        origin = found.get(b"origin", b"").decode("latin-1")
        if not origin or not ({origin, "*"} & self._origins):
            await self._app(scope, receive, send)
            return
        allowed = [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"vary", b"origin"),
        ]
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in found:
            wanted = found.get(b"access-control-request-headers", b"*")
            allowed += [
                (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
                (b"access-control-allow-headers", wanted),
                (b"access-control-max-age", _DAY.encode()),
                (b"content-length", b"0"),
            ]
            await send({"type": "http.response.start", "status": 204, "headers": allowed})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        allowed.append((b"access-control-expose-headers", _EXPOSED.encode()))

        async def send_allowed(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *allowed]}
            await send(message)

        await self._app(scope, receive, send_allowed)
