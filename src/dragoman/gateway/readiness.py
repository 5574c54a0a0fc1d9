"""Serve ``/health`` and ``/ready`` on a port of their own, without a key, for load balancers.

The listener is separate from the main one: it counts its own connections, so that it still answers
when the main port has too many, and it stays open until the last reply of a drain has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from email.utils import formatdate

from msgspec.structs import replace
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from ..transport.serving import end_listening
from .access import Service
from .http_protocol import BoundedHttpProtocol

_CONNECTIONS = 64  # limit per worker; dragoman serve reserves open files for them
_BACKLOG = 128


@contextlib.asynccontextmanager
async def serve_readiness(service: Service, listener: socket.socket) -> AsyncIterator[None]:
    """Serve ``/health`` and ``/ready`` on a bound socket while the context is open.

    Several processes may serve the same socket; any of them accepts a connection.
    """
    bounds = replace(
        service.bounds,
        connections=min(_CONNECTIONS, service.bounds.connections),
        connections_per_peer=min(_CONNECTIONS // 2, service.bounds.connections_per_peer),
    )
    config = Config(
        _Readiness(service),
        http=BoundedHttpProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
    )
    config.load()
    state = ServerState()
    app_state = {"bounds": bounds}
    server = await asyncio.get_running_loop().create_server(
        lambda: BoundedHttpProtocol(config, state, app_state),
        sock=listener,
        backlog=_BACKLOG,
    )
    try:
        yield
    finally:
        await end_listening(server)
        for connection in list(state.connections):
            connection.shutdown()


class _Readiness:
    """The ASGI application for ``/health`` and ``/ready``; it ignores headers and bodies."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, text = await self._check(scope["method"], scope["path"])
        headers = {"date": formatdate(usegmt=True)}
        if status == 405:
            headers["allow"] = "GET, HEAD"
        await JSONResponse({"status": text}, status, headers)(scope, receive, send)

    async def _check(self, method: str, path: str) -> tuple[int, str]:
        if path not in ("/health", "/ready"):
            return 404, "not found"
        if method not in ("GET", "HEAD"):
            return 405, "method not allowed"
        if path == "/health":
            return 200, "ok"
        status, _ = await self._service.check_readiness()
        return 200 if status in ("ready", "degraded") else 503, status
