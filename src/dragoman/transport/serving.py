"""Serve an ASGI application on a port, in the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ..errors import advise_import

__all__ = ["MISSING", "serving"]

MISSING = "the simulator's server and the trace viewer need the extra: pip install 'dragoman[cli]'"
_KEEP_ALIVE = 75  # seconds; longer than clients keep an idle connection
_BACKLOG = 128


@contextlib.asynccontextmanager
async def serving(app: Any, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve ``app`` while the context is open; yield the address, or raise ``OSError``.

    In the application, ``scope["state"]["connection"]`` is uvicorn's protocol, whose ``transport``
    an application may close in the middle of a reply. At the end all connections are closed, and
    the replies that are still running are awaited.
    """
    with advise_import(MISSING):  # uvicorn is an optional dependency and slow to import
        from uvicorn.config import Config
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
        from uvicorn.server import ServerState

    config = Config(
        app, ws="none", log_config=None, proxy_headers=False, timeout_keep_alive=_KEEP_ALIVE
    )
    config.load()
    # At its level TRACE, uvicorn would log every scope; a path may contain a secret.
    config.loaded_app = app
    state = ServerState()

    def accept() -> HttpToolsProtocol:
        facts: dict[str, Any] = {}
        facts["connection"] = connection = HttpToolsProtocol(config, state, facts)
        connection.access_log = False  # the access log contains paths
        return connection

    loop = asyncio.get_running_loop()
    server = await loop.create_server(accept, host, port, backlog=_BACKLOG)
    name, number = server.sockets[0].getsockname()[:2]
    try:
        yield f"http://[{name}]:{number}" if ":" in name else f"http://{name}:{number}"
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.gather(*state.tasks)
