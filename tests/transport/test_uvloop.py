"""Test the transport on uvloop, the event loop of ``dragoman serve``: replies, streams, TLS,
broken streams and cancellation.
"""

import asyncio
import ssl
from pathlib import Path

import pytest

import dragoman as d
from dragoman.wire import HttpRequest

from ..waiting import arrival, until
from .certificates import Authority, server_context
from .raw import PATIENT, call, listen, read_request, replying

uvloop = pytest.importorskip("uvloop", reason="uvloop does not exist for Windows")
REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"5\r\nhello\r\n" * 3
WRONG: list[tuple[bytes, type[Exception]]] = [
    (b"", d.NetworkError),
    (b"nonsense\r\n\r\n", d.InvalidResponseError),
    (CHUNKS, d.StreamInterruptedError),
    (CHUNKS + b"zz\r\n", d.StreamInterruptedError),
]


async def plain() -> None:
    transport = d.HttpTransport()
    async with listen(replying(REPLY)) as server:
        for stream in (False, True, False):
            assert (await call(transport, server.url, stream=stream))[2] == b"hi"
        assert server.connections == 2
        # Connect by host name: uvloop does not support happy_eyeballs_delay.
        assert (await call(transport, server.url.replace("127.0.0.1", "localhost")))[2] == b"hi"
        await transport.close()
    for data, kind in WRONG:
        async with listen(replying(data, close=True)) as server:
            with pytest.raises(kind):
                await call(transport := d.HttpTransport(), server.url)
            opened = transport.open_pool()
            await until(lambda each=opened: each.sizes == (0, 0), "the pool to be empty")
            await transport.close()
    transport = d.HttpTransport()
    with pytest.raises(d.NetworkError, match="cannot be reached"):
        await call(transport, "http://127.0.0.1:1")
    await transport.close()


async def cancelled() -> None:
    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKS)
        await reader.read()

    transport = d.HttpTransport()
    async with listen(stuck) as server:
        with pytest.raises(d.TimedOutError):
            await call(transport, server.url, stream=True, timeouts=d.Timeouts(first_event=0.1))
        await until(lambda: not server.open, "the connection to close")
        before = server.connections  # on a busy machine the deadline passes without a connection
        task = asyncio.ensure_future(call(transport, server.url))
        await until(lambda: server.connections > before, "the second connection")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not server.open, "the connection to close")
        await transport.close()


async def secure(folder: Path) -> None:
    authority = Authority(folder)
    context = server_context(authority.issue("127.0.0.1"))
    transport = d.HttpTransport(ca=authority.path)
    async with listen(replying(REPLY), ssl=context) as server:
        for stream in (True, False, True):
            assert (await call(transport, server.url, stream=stream))[2] == b"hi"
        assert server.connections == 1
        stranger = d.HttpTransport(ca=ssl.create_default_context())
        with pytest.raises(d.NetworkError, match="certificate"):
            await call(stranger, server.url)
        await stranger.close()
        await transport.close()
        await arrival(server.closed.wait(), "the connection to close")


async def until_eof(folder: Path, *, notify: bool) -> bytes:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhi")
        await writer.drain()
        await read.wait()
        if not notify:
            writer.transport.abort()

    read = asyncio.Event()
    authority = Authority(folder)
    transport = d.HttpTransport(ca=authority.path)
    async with listen(handler, ssl=server_context(authority.issue("127.0.0.1"))) as server:
        request = HttpRequest("POST", server.url, {}, b"{}")
        try:
            async with transport.send(request, {}, PATIENT) as reply:
                first = await reply.receive()
                read.set()
                return first + await reply.receive()
        finally:
            await transport.close()


def run(work: object) -> object:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)  # type: ignore[arg-type]


def test_calls_work_on_uvloop(tmp_path: Path) -> None:
    run(plain())
    run(cancelled())
    run(secure(tmp_path))


def test_tls_shutdown_works_on_uvloop(tmp_path: Path) -> None:
    assert run(until_eof(tmp_path, notify=True)) == b"hi"
    with pytest.raises(d.StreamInterruptedError):
        run(until_eof(tmp_path, notify=False))
