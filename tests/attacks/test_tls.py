"""Attack the gateway over TLS, before and during the handshake."""

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import Any

from ..gateway.serving import raw, serving
from ..gateway.test_http_protocol import GET, LAST, Watched, app, connected, port_of, statuses
from ..transport.certificates import Authority
from ..waiting import until, virtual_time


async def test_connections_are_limited_before_their_tls_handshake(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("127.0.0.1")
    trusted = ssl.create_default_context(cafile=authority.path)
    loop = asyncio.get_running_loop()
    tls = {"ssl_certfile": cert, "ssl_keyfile": key}
    gateway = app(connections=3)

    # ``serving`` would check the replies of the gateway itself with the vendors' clients.
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await gateway(scope, receive, send)

    async with serving(answer, http=Watched, **tls) as url:
        for sent in (GET, b"\x16\x03\x01" + b"\xff" * 9000, b"\0" * 9000):
            assert b"HTTP" not in await raw(url, sent)
        async with contextlib.AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(connected(url)) for _ in range(3)]
            await until(lambda: len(Watched.opened[-1].connections) == 3, "the connections")
            assert await raw(url, b"") == b""
            began = loop.time()
            with virtual_time():
                for reader, _ in silent:
                    assert await reader.read() == b""
            assert 14 < loop.time() - began < 20
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url), ssl=trusted)
        writer.write(LAST)
        assert statuses(await reader.read()) == [200]
        writer.close()
