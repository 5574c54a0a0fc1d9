"""Serve a gateway on a real socket, for tests."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn

from dragoman.gateway.http_protocol import BoundedHttpProtocol
from dragoman.gateway.supervisor import ServerConfig
from tests.transport.certificates import Authority
from tests.waiting import arrival


@contextlib.asynccontextmanager
async def serving(app: Any, *, port: int = 0, **settings: Any) -> AsyncIterator[str]:
    """Serve an application with uvicorn in this event loop; yield its address.

    The protocol is the gateway's, unless ``settings`` names another. Every reply of a gateway is checked against the vendors' descriptions.
    """
    checker: Any = None
    if hasattr(getattr(app, "state", None), "service"):
        # Imported only here, because the clients of the vendors take seconds to import.
        from .official import ReplyChecker

        checker = ReplyChecker(app)
    listener = socket.socket()
    listener.bind(("127.0.0.1", port))
    listener.listen(4096)
    config = ServerConfig(
        checker or app,
        log_config=None,
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=5,
        **{"http": BoundedHttpProtocol, **settings},
    )
    # Do what ``Server.serve`` does, but without its loop, which checks for shutdown only ten times
    # a second.
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    await server.on_tick(0)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await _let_close(server)
        await server.shutdown(sockets=[listener])
        listener.close()
        # Over TLS, a connection whose client does not take part in the closing is still open.
        for left in list(server.server_state.connections):
            if isinstance(left, BoundedHttpProtocol):
                left.inner.abort()
        await _let_close(server)
    faults = [] if checker is None else list(checker.find_faults())
    if faults:
        raise AssertionError("\n".join(faults[:20]))


async def _let_close(server: uvicorn.Server) -> None:
    """Wait until the server has noticed which connections are closed, up to a tenth of a second."""
    for _ in range(20):
        if not server.server_state.connections:
            break
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def serving_tls(app: Any, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Serve an application over TLS; yield its address and the certificate of its authority."""
    authority = Authority(folder)
    cert, key = authority.issue("127.0.0.1")
    async with serving(app, ssl_certfile=cert, ssl_keyfile=key) as url:
        yield url.replace("http://", "https://"), authority.path


async def raw(url: str, data: bytes) -> bytes:
    """Send bytes over a new connection; return what the server sends until it closes the
    connection.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    try:
        return await arrival(reader.read(), "the end of the connection")
    finally:
        writer.close()
