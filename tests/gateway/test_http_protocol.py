"""Test the limits of HTTP connections: heads, trailers, pipelining, idle and slow clients,
half-closed sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from typing import Any

import pytest

from dragoman.gateway.access import Bounds
from dragoman.gateway.app import create_app
from dragoman.gateway.http_connection import _network_of
from dragoman.gateway.keys import Key, KeyRing, hash_key
from tests.listed import Listed, reply

from .serving import raw, serving

KEY = "dg-ann"
KEYS = KeyRing([Key("ann", hash_key(KEY))])
DATA = json.dumps({"model": "fast", "messages": [{"role": "user", "content": "Hi"}]}).encode()
STREAM = json.dumps(
    {"model": "fast", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
).encode()
POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
)
OURS = b"authorization: Bearer " + KEY.encode() + b"\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


def call(data: bytes = DATA, head: bytes = POST) -> bytes:
    return head + OURS + b"content-length: %d\r\n\r\n" % len(data) + data


def app(model: Any = None, **bounds: Any) -> Any:
    return create_app(
        {"fast": model or Listed("Hello", repeat=True)}, keys=KEYS, bounds=Bounds(**bounds)
    )


def statuses(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


TOO_LARGE: list[tuple[str, bytes]] = [
    ("one endless header", b"GET /health HTTP/1.1\r\nx: " + b"a" * 400_000),
    ("one long header", b"GET /health HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n"),
    (
        "many headers",
        b"GET /health HTTP/1.1\r\n" + b"".join(b"h%d: v\r\n" % n for n in range(101)) + b"\r\n",
    ),
    ("an endless address", b"GET /" + b"a" * 400_000),
    ("a long address", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"),
]


@pytest.mark.parametrize(("name", "sent"), TOO_LARGE, ids=[name for name, _ in TOO_LARGE])
async def test_oversized_request_head_gets_status_431(name: str, sent: bytes) -> None:
    async with serving(app()) as url:
        answer = await raw(url, sent)
        assert statuses(answer) == [431], name
        assert b"connection: close" in answer
        assert "message" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        fits = (
            b"GET /health HTTP/1.1\r\nx: "
            + b"a" * 60_000
            + b"\r\n"
            + b"".join(b"h%d: v\r\n" % n for n in range(98))
        )
        assert statuses(await raw(url, fits + b"connection: close\r\n\r\n")) == [200]


async def test_every_request_head_of_one_packet_is_limited() -> None:
    """The first request is answered; the connection ends with the large head that follows it."""
    async with serving(app()) as url:
        for name, sent in TOO_LARGE:
            answer = await raw(url, GET + sent + GET)
            assert statuses(answer) in ([200], [200, 431]), name
            assert b"connection: close" in answer


CHUNKED = POST + OURS + b"transfer-encoding: chunked\r\n\r\n"
TRAILERS: list[tuple[str, bytes]] = [
    ("many trailers", b"0\r\n" + b"".join(b"t%d: v\r\n" % n for n in range(2000))),
    (
        "many trailers, complete",
        b"0\r\n" + b"".join(b"t%d: v\r\n" % n for n in range(2000)) + b"\r\n",
    ),
    ("one endless trailer", b"0\r\nt: " + b"a" * 400_000),
    ("an endless extension", b"5;" + b"a" * 400_000),
]


@pytest.mark.parametrize(("name", "sent"), TRAILERS, ids=[name for name, _ in TRAILERS])
async def test_size_of_request_trailers_is_limited(name: str, sent: bytes) -> None:
    model = Listed("Hello", repeat=True)
    async with serving(app(model)) as url:
        reader, writer = await _connect(url)
        writer.write(CHUNKED)
        await asyncio.sleep(0.05)  # give the server time to start reading the request
        writer.write(sent)
        assert statuses(await asyncio.wait_for(reader.read(), 5)) == [431], name
        writer.close()
    assert model.requests == []


async def test_key_in_a_request_trailer_is_not_accepted() -> None:
    chunks = b"%x\r\n" % len(DATA) + DATA + b"\r\n0\r\n" + OURS + b"\r\n"
    async with serving(app()) as url:
        head = b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        assert statuses(await raw(url, POST + head + chunks)) == [401]
        assert statuses(await raw(url, POST + OURS + head + chunks)) == [200]


async def test_number_of_pipelined_requests_is_limited() -> None:
    """The running request and the queued requests are answered in order, then the connection is
    closed.
    """
    async with serving(app(pipelined=3)) as url:
        answer = await raw(url, GET * 500)
        assert statuses(answer) == [200] * 4
        assert answer.count(b"connection: close") == 1
        assert (
            statuses(await raw(url, GET * 3 + GET[:-2] + b"connection: close\r\n\r\n"))
            == [200] * 4
        )


async def test_hanging_up_ends_the_running_call_even_with_a_queued_request() -> None:
    forever = asyncio.Event()
    model = Listed(lambda request: [*reply("Hello")(request)[:2], forever], repeat=True)
    async with serving(app(model)) as url:
        reader, writer = await _connect(url)
        writer.write(call(STREAM) + GET)
        while b"He" not in await reader.readline():
            pass
        assert model.running == 1
        writer.transport.abort()
        async with asyncio.timeout(5):
            while model.running:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("garbage", [b"\0\0\0", b"x" * 100_000, b"GET /" + b"a" * 100_000])
async def test_data_sent_after_a_request_does_not_break_its_reply(garbage: bytes) -> None:
    async with serving(app()) as url:
        reader, writer = await _connect(url)
        writer.write(call(STREAM) + garbage)
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


HOLDS: list[tuple[str, bytes, bytes, int | None]] = [
    ("nothing", b"", b"", None),
    ("empty lines", b"\r\n", b"\r\n", None),
    ("half a head", b"GET /hea", b"", 408),
    ("a head by the byte", b"GET /hea", b"a", 408),
    ("empty lines after a reply", GET, b"\r\n", 200),
    ("half a head after a reply", GET + b"GE", b"", 200),
    ("401, then one byte", POST + b"content-length: 1000\r\n\r\n", b"x", 401),
    ("401, then half a chunk", POST + b"transfer-encoding: chunked\r\n\r\n", b"5", 401),
    (
        "401 with an expectation",
        POST + b"expect: 100-continue\r\ncontent-length: 1000\r\n\r\n",
        b"x",
        401,
    ),
    (
        "404, then one byte",
        b"POST /no HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n",
        b"x",
        404,
    ),
    (
        "405, then one byte",
        b"POST /health HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n",
        b"x",
        405,
    ),
    ("a page with a body", GET[:-2] + b"content-length: 1000\r\n\r\n", b"x", 200),
    ("413, then one byte", POST + OURS + b"content-length: 99999999\r\n\r\n", b"x", 413),
    ("a body by the byte", POST + OURS + b"content-length: 1000\r\n\r\n", b"x", 408),
    ("upgrade", GET[:-2] + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n", b"x", 200),
    ("CONNECT", b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", b"x", 400),
]


async def test_connection_without_a_complete_request_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection without a complete request is closed after the configured number of seconds."""
    monkeypatch.setattr("dragoman.gateway.http_connection._LINGER_SECONDS", 0.3)
    settings = {"head_seconds": 0.4, "body_seconds": 0.4, "body_bytes": 10_000}
    async with serving(app(**settings), timeout_keep_alive=1) as url:
        found = await asyncio.gather(*[_hold(url, first, drip) for _, first, drip, _ in HOLDS])
    for (name, first, _, status), answer in zip(HOLDS, found, strict=True):
        assert answer is not None, f"{name}: the connection is still open"
        assert statuses(answer)[:1] == ([] if status is None else [status]), name
        is_body_unread = b"content-length" in first or b"chunked" in first
        assert not is_body_unread or b"connection: close\r\n" in answer, name


async def _hold(url: str, first: bytes, drip: bytes) -> bytes | None:
    """Send some bytes, and more bytes at intervals; return what was received, or None if the
    server did not close the connection.
    """
    reader, writer = await _connect(url)
    received = b""
    writer.write(first)
    deadline = time.monotonic() + 8
    try:
        while time.monotonic() < deadline:
            writer.write(drip)
            try:
                piece = await asyncio.wait_for(reader.read(65536), 0.15)
            except TimeoutError:
                continue
            if not piece and (not drip or writer.transport.is_closing()):
                return received
            received += piece
            await asyncio.sleep(0.1 if not piece else 0)
    except ConnectionError:
        return received
    finally:
        writer.transport.abort()
    return None


@pytest.mark.parametrize("size", [100_000, 3_000_000])
async def test_early_rejection_reaches_a_client_that_is_still_sending(size: int) -> None:
    sent = POST + b"content-length: %d\r\n\r\n" % size + b"x" * size

    def ask(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            client.sendall(sent)
            client.settimeout(5)
            return client.recv(65536)

    async with serving(app()) as url:
        for _ in range(5):
            answer = await asyncio.to_thread(ask, int(url.rpartition(":")[2]))
            assert statuses(answer) == [401]


async def test_client_that_does_not_read_its_reply_is_disconnected() -> None:
    model = Listed(lambda request: reply("x" * 200_000)(request) * 100, repeat=True)
    async with serving(app(model, write_seconds=0.3)) as url:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", int(url.rpartition(":")[2])))
            await loop.sock_sendall(client, call(STREAM))
            async with asyncio.timeout(5):
                while not model.running:
                    await asyncio.sleep(0.01)
                while model.running:
                    await asyncio.sleep(0.01)
            assert not (await _rest(client)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_unread_reply_does_not_keep_a_closed_connection_open() -> None:
    model = Listed("x" * 10_000_000, repeat=True)
    async with serving(app(model, write_seconds=0.3)) as url:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", int(url.rpartition(":")[2])))
            await loop.sock_sendall(client, call(head=POST + b"connection: close\r\n"))
            await asyncio.sleep(1.5)
            assert len(await _rest(client)) < 10_000_000


async def test_long_reply_is_sent_completely_before_the_connection_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invalid bytes after the request make the server close the connection after the reply, which
    the client reads slowly.
    """
    monkeypatch.setattr("dragoman.gateway.http_connection._LINGER_SECONDS", 0.2)
    model = Listed("x" * 5_000_000, repeat=True)
    async with serving(app(model)) as url:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", int(url.rpartition(":")[2])))
            await loop.sock_sendall(client, call() + b"\0\0")
            await asyncio.sleep(0.8)
            answer = await _rest(client)
    assert b"connection: close" in answer[:500]
    assert len(answer) > 5_000_000


async def _rest(client: socket.socket) -> bytes:
    """Return the bytes that can still be read from a connection that the server has closed."""
    pieces: list[bytes] = []
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(5):
            while piece := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
                pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("bounds", [{"connections": 3}, {"connections_per_peer": 3}])
async def test_number_of_connections_is_limited(bounds: dict[str, int]) -> None:
    async with serving(app(**bounds)) as url:
        held = [await _connect(url) for _ in range(3)]
        answer = await raw(url, b"")
        assert statuses(answer) == [503]
        assert b"retry-after: 1" in answer
        assert statuses(await raw(url, GET)) == [503]
        held.pop()[1].close()
        await asyncio.sleep(0.1)
        assert statuses(await raw(url, GET[:-2] + b"connection: close\r\n\r\n")) == [200]
        for _, writer in held:
            writer.close()


def test_ipv6_clients_are_counted_by_network() -> None:
    assert _network_of("10.0.0.1") == "10.0.0.1"
    assert _network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert (
        _network_of("2001:db8::1")
        == _network_of("2001:db8::ffff:2")
        != _network_of("2001:db8:0:1::1")
    )
    assert _network_of("fe80::1%eth0") == _network_of("fe80::2")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("data", [DATA, STREAM])
async def test_a_half_closed_request_is_answered(version: bytes, data: bytes) -> None:
    gate = asyncio.Event()
    model = Listed(lambda request: [gate, *reply("Hello")(request)], repeat=True)
    async with serving(app(model)) as url:
        reader, writer = await _connect(url)
        writer.write(call(data).replace(b"HTTP/1.1", b"HTTP/" + version))
        writer.write_eof()
        await asyncio.sleep(0.3)
        gate.set()
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        final = answer
        while final.startswith(b"HTTP/1.1 100"):
            final = final.partition(b"\r\n\r\n")[2]
        assert final.startswith(b"HTTP/1.1 200")
        assert b"llo" in final
        assert (b"HTTP/1.1 100" in answer) == (version == b"1.1")


@pytest.mark.parametrize("data", [DATA, STREAM])
async def test_client_that_closes_before_the_reply_stops_the_call(data: bytes) -> None:
    forever = asyncio.Event()
    model = Listed(lambda request: [forever], repeat=True)
    async with serving(app(model)) as url:
        _, writer = await _connect(url)
        writer.write(call(data))
        async with asyncio.timeout(5):
            while not model.running:
                await asyncio.sleep(0.01)
            writer.close()
            while model.running:
                await asyncio.sleep(0.01)


async def test_http_1_0_client_gets_no_chunked_encoding() -> None:
    async with serving(app()) as url:
        for data in (DATA, STREAM):
            answer = await raw(url, call(data).replace(b"HTTP/1.1", b"HTTP/1.0"))
            head, _, body = answer.partition(b"\r\n\r\n")
            assert b"connection: close" in head
            assert b"transfer-encoding" not in head
            if data is STREAM:
                assert body.startswith(b"data: {")
                assert body.endswith(b"data: [DONE]\n\n")
            else:
                assert json.loads(body)["choices"][0]["message"]["content"] == "Hello"
        assert (await raw(url, b"GET /health HTTP/1.0\r\n\r\n")).endswith(b'{"status":"ok"}')


async def test_extra_slash_in_the_path_causes_no_redirect() -> None:
    async with serving(app()) as url:
        sent = call(
            head=POST.replace(b"completions ", b"completions/ ").replace(
                b"localhost", b"evil.test"
            )
        )
        answer = await raw(url, sent + GET[:-2] + b"connection: close\r\n\r\n")
        assert statuses(answer) == [404, 200]
        assert b"evil.test" not in answer


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))


async def test_request_bodies_in_flight_share_a_memory_budget() -> None:
    made = app(body_bytes=100_000, bodies_bytes=250_000, body_seconds=20)
    service = made.state.service
    head = POST + b"connection: close\r\n"
    half = POST + OURS + b"content-length: 90000\r\n\r\n" + b" " * 80_000
    async with serving(made) as url:
        held = [await _connect(url) for _ in range(3)]
        for _, writer in held:
            writer.write(half)
        async with asyncio.timeout(10):
            while service.held_bytes < 240_000:
                await asyncio.sleep(0.01)
        refused = await raw(url, call(DATA + b" " * 20_000, head))
        assert statuses(refused) == [503]
        assert b"retry-after: 1" in refused
        assert statuses(await raw(url, call(head=head))) == [200], "a small request still fits"
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(10):
            while service.held_bytes:
                await asyncio.sleep(0.01)
        assert statuses(await raw(url, call(DATA + b" " * 20_000, head))) == [200]


async def test_request_body_counts_towards_the_memory_budget_until_it_is_decoded() -> None:
    seen: list[int] = []

    def answer(request: Any) -> str:
        seen.append(made.state.service.held_bytes)
        return "Hello"

    made = app(Listed(answer, repeat=True), bodies_bytes=10, body_bytes=100_000)
    head = POST + b"connection: close\r\n"
    async with serving(made) as url:
        assert statuses(await raw(url, call(head=head))) == [200], (
            "one body of legal size always fits"
        )
        assert statuses(await raw(url, call(b"{" * 50_000, head=head))) == [400]
        assert made.state.service.held_bytes == 0
    assert seen == [0]
