"""Serve an ASGI application on a port, in the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ..errors import advise_import

__all__ = ["MISSING", "end_listening", "serving"]

MISSING = "the simulator's server and the trace viewer need the extra: pip install 'dragoman[cli]'"
_KEEP_ALIVE = 75  # seconds; longer than clients keep an idle connection
_BACKLOG = 128
_ACCEPT_ITERATIONS = 3  # of the event loop, from an accepted connection to its protocol


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
        await end_listening(server)
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.gather(*state.tasks)


async def end_listening(server: asyncio.Server) -> None:
    """Close a server, once the protocol of each accepted connection knows it.

    If it were closed before, asyncio of Python 3.11 would fail to make the connection's transport
    and leave the socket to the garbage collector, while the client waits for an answer.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        # other event loops than asyncio's on Unix have no reader for it
        with contextlib.suppress(NotImplementedError, RuntimeError):
            loop.remove_reader(listener.fileno())
    for _ in range(_ACCEPT_ITERATIONS):
        await asyncio.sleep(0)
    server.close()
