"""Test that the example transport over httpx meets the requirements of a provider."""

import asyncio
import sys
from pathlib import Path

import pytest

import dragoman as d

from ..server import Connection, answering, chunk, serve
from ..waiting import arrival

sys.path.insert(0, str(Path(__file__).parents[2]))
from examples import httpx_transport
from examples.httpx_transport import HttpxTransport


async def test_httpx_transport_of_the_example_works(capsys: pytest.CaptureFixture[str]) -> None:
    async with serve(answering("Hello")) as server:
        async with d.connect(
            "m", base_url=server.base_url, api_key="k-1234", transport=HttpxTransport()
        ) as model:
            assert (await model.complete("Hi")).text == "Hello"
            async with model.stream("Hi") as stream:
                d.check_events(events := [event async for event in stream])
            assert len(events) > 5
            assert stream.response.text == "Hello"
        assert server.requests[0].headers["authorization"] == "Bearer k-1234"
        await httpx_transport.main(server.base_url, "m")
    assert capsys.readouterr().out == "Hello"


async def test_httpx_transport_of_the_example_can_use_a_socks_proxy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly((await reader.readexactly(2))[1])
        writer.write(b"\x05\x00")  # no authentication
        asked.append(await reader.readexactly(10))  # CONNECT to an IPv4 address and a port
        port = int.from_bytes(asked[-1][8:])
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, to_server), _copy(from_server, writer))

    proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
    url = f"socks5://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    async with proxy, serve(answering("Hello")) as server:
        await httpx_transport.main(server.base_url, "m", url)
        assert len(server.requests) == 1
    assert [each[:8] for each in asked] == [b"\x05\x01\x00\x01\x7f\x00\x00\x01"]
    assert capsys.readouterr().out == "Hello"


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def refuse(connection: Connection) -> None:
    connection.reply(401, b'{"error": {"message": "no"}}')


async def redirect(connection: Connection) -> None:
    connection.reply(307, b"{}", location="http://127.0.0.1:1/elsewhere")


async def cut(connection: Connection) -> None:
    connection.begin_stream()
    connection.chunk(chunk("Hel"))
    await connection.writer.drain()
    connection.writer.transport.abort()


async def stall(connection: Connection) -> None:
    connection.begin_stream()
    connection.chunk(chunk("Hel"))
    await connection.writer.drain()
    await asyncio.Event().wait()


@pytest.mark.usefixtures("virtual_time")
async def test_httpx_transport_of_the_example_raises_provider_errors() -> None:
    expected = [
        (refuse, d.AuthenticationError, "no"),
        (redirect, Exception, "307"),
        (cut, d.StreamInterruptedError, "middle of the reply"),
        (stall, d.TimedOutError, "in time"),
    ]
    for handler, kind, text in expected:
        async with serve(handler) as server:
            limits = d.Timeouts(idle=30)
            model = d.connect(
                "m", base_url=server.base_url, transport=HttpxTransport(), timeouts=limits
            )
            with pytest.raises(kind, match=text):
                async for _ in model.stream("Hi"):
                    pass
            await model.close()
            await arrival(server.closed.wait(), "the connection to close")
            assert len(server.requests) == 1
    model = d.connect("m", base_url="http://127.0.0.1:1/v1", transport=HttpxTransport())
    with pytest.raises(d.NetworkError):
        await model.complete("Hi")
    await model.close()
