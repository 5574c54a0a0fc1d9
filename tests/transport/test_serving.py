"""An application is served on a port while a context is open."""

import asyncio
import contextlib
import logging
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from dragoman.transport.serving import serving

from ..waiting import arrival

GET = b"GET /path HTTP/1.1\r\nhost: x\r\n\r\n"


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def open_connection(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(port))


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
async def test_application_is_served_at_the_address(host: str, shown: str) -> None:
    async with serving(answer, host=host) as url:
        assert url.startswith(f"http://{shown}:")
        reader, writer = await open_connection(url)
        for _ in range(2):  # the connection is kept
            writer.write(GET)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 204 No Content\r\n\r\n"
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(OSError):
        await open_connection(url)


async def test_running_reply_is_awaited_at_the_end() -> None:
    begun = asyncio.Event()
    ended = False

    async def work(scope: Any, receive: Any, send: Any) -> None:
        nonlocal ended
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        await asyncio.to_thread(lambda: None)
        ended = True

    async with serving(work) as url:
        _, writer = await open_connection(url)
        writer.write(GET)
        await begun.wait()
    assert ended
    writer.close()


async def test_server_of_a_caller_keeps_its_log(caplog: pytest.LogCaptureFixture) -> None:
    access = logging.getLogger("uvicorn.access")
    before = (access.propagate, list(access.handlers))
    with caplog.at_level(logging.DEBUG):
        async with serving(answer) as url:
            reader, writer = await open_connection(url)
            writer.write(GET)
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
    assert (access.propagate, list(access.handlers)) == before
    assert "/path" not in caplog.text


@pytest.mark.parametrize("iterations", range(5))
async def test_connection_that_is_accepted_at_the_end_is_closed(iterations: int) -> None:
    async with serving(answer) as url:
        address = urlsplit(url)
        link = socket.create_connection((address.hostname, address.port))
        for _ in range(iterations):
            await asyncio.sleep(0)  # the server accepts it, or not yet
    link.setblocking(False)
    with link, contextlib.suppress(ConnectionResetError):
        received = asyncio.get_running_loop().sock_recv(link, 1)
        assert await arrival(received, "the end of the connection") == b""
