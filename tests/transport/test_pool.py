"""Test the connection pool: which connections are reused, how many there are, how long they stay
open.
"""

import asyncio
import gc
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from dragoman import (
    HttpTransport,
    InvalidRequestError,
    NetworkError,
    TimedOutError,
    Timeouts,
    connect,
)
from dragoman.errors import keep_headers
from dragoman.messages import Request, User
from dragoman.transport import Secret, Transport, pool
from dragoman.transport.pool import share_ahead
from dragoman.wire import HttpRequest
from tests.rows import read_table

from ..server import answering, serve
from ..waiting import arrival, settle, until
from .raw import PATIENT, call, listen, read_request, replying

REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


async def test_most_recently_used_connection_is_reused_first(transport: HttpTransport) -> None:
    waiting: list[asyncio.StreamWriter] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            waiting.append(writer)
            used.append(writer)

    used: list[asyncio.StreamWriter] = []
    async with listen(handler) as server:
        calls = [asyncio.ensure_future(call(transport, server.url)) for _ in range(3)]
        await until(lambda: len(waiting) == 3, "three requests")
        last = waiting[-1]
        for writer in waiting:
            writer.write(REPLY)
            await settle()
        await asyncio.gather(*calls)
        assert transport.open_pool().sizes == (3, 3)
        waiting.clear()
        again = asyncio.ensure_future(call(transport, server.url))
        await until(lambda: waiting, "the next request")
        assert waiting[0] is last
        last.write(REPLY)
        await again


async def test_connection_is_idle_as_soon_as_the_last_events_are_read() -> None:
    transport = HttpTransport()
    async with (
        serve(answering()) as server,
        connect("m", base_url=server.base_url, transport=transport) as model,
    ):
        reply = model.open(Request((User("Hi"),)))
        events = await reply.next()
        assert events[-1].type == "message.complete"
        assert transport.open_pool().sizes == (1, 1)
        assert await reply.next() == []
        await reply.aclose()
        assert transport.open_pool().sizes == (1, 1)


@pytest.mark.usefixtures("virtual_time")
async def test_idle_connections_are_closed_after_a_while(transport: HttpTransport) -> None:
    async with listen(replying(REPLY)) as server:
        await asyncio.gather(*[call(transport, server.url) for _ in range(3)])
        await asyncio.sleep(pool.PLAIN_SECONDS - 0.1)
        assert transport.open_pool().sizes == (3, 3)
        await asyncio.sleep(0.2)
        assert transport.open_pool().sizes == (0, 0)
        await call(transport, server.url)
        assert server.connections == 4


async def test_number_of_idle_connections_is_limited(
    monkeypatch: pytest.MonkeyPatch, transport: HttpTransport
) -> None:
    monkeypatch.setattr(pool, "MAX_IDLE", 2)
    async with listen(replying(REPLY)) as server:
        await asyncio.gather(*[call(transport, server.url) for _ in range(5)])
        assert transport.open_pool().sizes[1] == 2


async def test_connection_limit_makes_calls_wait() -> None:
    most = now = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal most, now
        while True:
            await read_request(reader)
            now += 1
            most = max(most, now)
            await settle()
            now -= 1
            writer.write(REPLY)

    transport = HttpTransport(connections=3)
    async with listen(handler) as server:
        calls = [
            asyncio.ensure_future(call(transport, server.url, stream=number % 3 == 0))
            for number in range(30)
        ]
        for number in (5, 6, 20):
            calls[number].cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(each, tuple) for each in results) == 27
        assert most == 3
        assert transport.open_pool().sizes[0] <= 3
        await transport.close()
    with pytest.raises(ValueError, match="connections"):
        HttpTransport(connections=0)


@pytest.mark.usefixtures("virtual_time")
async def test_waiting_for_a_connection_ends_at_the_connect_timeout() -> None:
    async def mute(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    transport = HttpTransport(connections=1)
    async with listen(mute) as server:
        first = asyncio.ensure_future(call(transport, server.url))
        await settle()
        with pytest.raises(TimedOutError) as caught:
            await call(transport, server.url, timeouts=Timeouts(connect=10))
        assert caught.value.which == "connect"
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await transport.close()


# --- read-ahead and backpressure ---------------------------------------------------------------


def test_read_ahead_buffer_shrinks_with_the_number_of_streams() -> None:
    assert share_ahead(1) >= 4 * share_ahead(40)
    assert share_ahead(100_000) >= 4096


@pytest.mark.parametrize("way", ["close", "cancel", "drop"])
async def test_ended_streams_do_not_count_as_open(way: str) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b'19\r\ndata: {"choices":[{}]}\n\n\r\n')
            await writer.drain()
            await asyncio.sleep(0)

    transport = HttpTransport()
    async with listen(drip) as server:
        model = connect("m", base_url=server.url, transport=transport)
        streams = [model.stream("Hi") for _ in range(10)]
        for stream in streams:
            await anext(stream)
        opened = transport.open_pool()
        assert opened.streams == 10
        for stream in streams:
            if way == "close":
                await stream.aclose()
            elif way == "cancel":
                assert await stream.cancel()
                await stream.aclose()
        del stream, streams
        gc.collect()
        assert opened.streams == 0
        await until(lambda: not server.open, "every connection to close")
        assert opened.sizes == (0, 0)
        await model.close()


@pytest.mark.parametrize("secure", [False, True])
async def test_slow_reader_applies_backpressure(secure: bool, tmp_path: Path) -> None:
    from .certificates import Authority, server_context

    authority = Authority(tmp_path)
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        link: socket.socket = writer.get_extra_info("socket")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        writer.transport.set_write_buffer_limits(65536)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)  # over TLS, drain() does not notice that the connection is lost
            written += 4096

    settings: dict[str, Any] = (
        {"ssl": server_context(authority.issue("127.0.0.1"))} if secure else {}
    )
    transport = HttpTransport(ca=authority.path)
    async with listen(flood, **settings) as server:
        request = HttpRequest("POST", f"{server.url}/v1", {}, b"{}")
        async with transport.send(request, {}, PATIENT, stream=True) as reply:
            before = -1
            while before != written:  # write until backpressure stops the server
                before = written
                await settle()
            # The limit is high, because most of these bytes are in the buffers of the kernel.
            assert written < 16 * 1024 * 1024
            received = 0
            while received < 3 * before:
                received += len(await reply.receive())
                reply.touch()
        await arrival(server.closed.wait(), "the connection to close")
        await transport.close()


# --- addresses: Unix sockets and IPv6 ----------------------------------------------------------


async def test_calls_work_over_unix_sockets(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heads.append((await read_request(reader))[0])
            writer.write(REPLY)

    path = str(tmp_path / "s")
    transport = HttpTransport(uds=path)
    with pytest.raises(NetworkError, match="cannot be reached"):
        await call(transport, "http://llama")
    async with listen(handler, path=path) as server:
        for stream in (False, True, False):
            assert (await call(transport, "http://llama", stream=stream))[2] == b"hi"
        assert server.connections == 2
    assert heads[0].startswith(b"POST /v1/chat HTTP/1.1\r\nhost: llama\r\n")
    await transport.close()


async def test_calls_work_over_ipv6() -> None:
    heads: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await read_request(reader))[0])
        writer.write(REPLY)

    transport = HttpTransport()
    async with listen(handler, host="::1") as server:
        assert (await call(transport, server.url))[2] == b"hi"
        assert f"host: {server.url.removeprefix('http://')}".encode() in heads[0].replace(
            b"Host", b"host"
        )
    await transport.close()


async def test_happy_eyeballs_connects_to_the_address_that_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of two addresses does not answer, so the second is tried after a short delay."""
    blackhole = socket.socket()
    blackhole.bind(("127.0.0.1", 0))
    blackhole.listen(0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(blackhole.getsockname())
    async with listen(replying(REPLY), host="::1") as server:
        port = int(server.url.rpartition(":")[2])

        async def resolve(host: str, *_: object, **__: object) -> list[Any]:
            stream = socket.SOCK_STREAM
            return [
                (socket.AF_INET, stream, 6, "", blackhole.getsockname()),
                (socket.AF_INET6, stream, 6, "", ("::1", port, 0, 0)),
            ]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        transport = HttpTransport(proxy=None)
        assert (await call(transport, "http://two-addresses.test"))[2] == b"hi"
        await transport.close()
    for each in (blackhole, *fillers):
        each.close()


# --- request lines and headers -----------------------------------------------------------------


async def _sent(
    transport: Transport, url: str, headers: dict[str, str], **secrets: str
) -> tuple[str, dict[str, str]]:
    heads: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await read_request(reader))[0])
        writer.write(REPLY)

    async with listen(handler) as server:
        request = HttpRequest("POST", server.url + url, headers, b"{}")
        keys = {name: Secret(value) for name, value in secrets.items()}
        async with transport.send(request, keys, PATIENT):
            pass
        await transport.close()
    first, *lines = heads[0].decode().strip().split("\r\n")
    fields = [line.split(": ", 1) for line in lines]
    assert len({name.lower() for name, _ in fields}) == len(fields), "a field is sent twice"
    return first, {name.lower(): value for name, value in fields}


async def test_request_line_and_headers_are_written_correctly() -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "mine/1", "accept": "text/x"}
    first, fields = await _sent(
        HttpTransport(), "/v1/a%20b?x=1&y=ü#part", headers, Authorization="Bearer k"
    )
    assert first == "POST /v1/a%20b?x=1&y=%C3%BC HTTP/1.1"
    assert fields.pop("host").startswith("127.0.0.1:")
    assert fields == {
        "user-agent": "mine/1",
        "accept": "text/x",
        "accept-encoding": "gzip, deflate",
        "content-type": "application/json",
        "authorization": "Bearer k",
        "content-length": "2",
    }


HEAD = (
    b"HTTP/1.1 200 OK\r\nDate: Mon, 16 Nov 2026 00:00:00 GMT\r\nserver: s\r\n"
    b"X-RateLimit-Remaining-Requests:  9 \r\nx-ratelimit-note: key-12345678\r\n"
    b"not-date: 1\r\ndated: 2\r\nx-ratelimit: 3\r\nset-cookie: x-request-id: 4\r\n"
    b"request-id: a\r\nRequest-Id: b\r\ncontent-length: 2\r\n\r\n"
)


async def test_records_keep_the_same_headers_as_errors(transport: HttpTransport) -> None:
    async with listen(replying(HEAD + b"hi")) as server:
        request = HttpRequest("POST", server.url, {}, b"{}")
        async with transport.send(request, {}, PATIENT) as reply:
            kept = reply.keep_headers(["key-12345678"])
            assert kept == keep_headers(reply.headers, ["key-12345678"])
            assert kept.keys() == {
                "date", "x-ratelimit-remaining-requests", "x-ratelimit-note", "request-id",
            }  # fmt: skip
            assert kept["x-ratelimit-remaining-requests"] == "9"
            assert "12345678" not in kept["x-ratelimit-note"]


@pytest.mark.parametrize("headers", read_table("invalid_headers_are_rejected"))
async def test_invalid_headers_are_rejected(
    headers: dict[str, str], transport: HttpTransport
) -> None:
    async with listen(replying(REPLY)) as server:
        with pytest.raises(NetworkError, match="malformed") as caught:
            await call(transport, server.url, headers=headers)
        assert not [
            value
            for value in headers.values()
            if value in repr(caught.value.__cause__) and len(value) > 1
        ]


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://[::1", "http://a b", "http://x:99999", "http://\ud800"]
)
async def test_invalid_addresses_are_rejected(url: str) -> None:
    transport = HttpTransport(proxy=None)
    with pytest.raises(NetworkError):
        await call(transport, url)
    await transport.close()


# --- transports and event loops ----------------------------------------------------------------


def test_transport_belongs_to_one_event_loop() -> None:
    transport = HttpTransport()

    async def once() -> None:
        async with serve(answering()) as server:
            await connect("m", base_url=server.base_url, transport=transport).complete("Hi")

    asyncio.run(once())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(once())
    asyncio.run(transport.close())
    with pytest.raises(InvalidRequestError, match="closed"):
        asyncio.run(once())


async def test_transport_can_be_closed_while_a_connection_is_being_opened() -> None:
    async def mute(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    transport = HttpTransport()
    async with listen(mute) as server:
        task = asyncio.ensure_future(call(transport, server.url))
        await asyncio.sleep(0)
        await transport.close()
        with pytest.raises(NetworkError):
            await arrival(task, "the end of the call")
        await until(lambda: not server.open, "every connection to close")


async def test_abandoned_stream_is_closed_in_its_own_event_loop(transport: HttpTransport) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await reader.read()

    async with listen(mute) as server:
        request = HttpRequest("POST", f"{server.url}/v1", {}, b"{}")
        held: list[Any] = [transport.send(request, {}, PATIENT, stream=True)]
        await held[0].__aenter__()
        thread = threading.Thread(target=held.clear)
        thread.start()
        await asyncio.to_thread(thread.join)
        await arrival(server.closed.wait(), "the connection to close")


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in its loop", "in another thread"])
async def test_abandoned_transport_closes_its_sockets(elsewhere: bool) -> None:
    async with listen(replying(REPLY)) as server:
        held = [HttpTransport()]
        await call(held[0], server.url)
        await asyncio.to_thread(held.clear) if elsewhere else held.clear()
        gc.collect()
        await arrival(server.closed.wait(), "the connection to close")


def test_default_tls_context_is_shared() -> None:
    from dragoman.transport.connect import _default_context

    assert _default_context() is _default_context()
    assert _default_context().verify_mode == ssl.CERT_REQUIRED
    assert _default_context().check_hostname
