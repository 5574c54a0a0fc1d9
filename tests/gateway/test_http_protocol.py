"""Test the gateway's HTTP server: hostile requests, limits, deadlines, and how connections end.

Deadlines are tested with a clock that the test moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ClassVar

import pytest

from dragoman.gateway.access import Bounds
from dragoman.gateway.app import create_app
from dragoman.gateway.http_protocol import BoundedHttpProtocol, _network_of
from dragoman.gateway.keys import Key, KeyRing, hash_key
from tests.listed import Listed, reply
from tests.waiting import arrival, settle

from .hostile_requests import NEXT, PIPELINED, REQUESTS, Echo, Row, ask
from .serving import raw, serving

KEY = "dg-ann"
KEYS = KeyRing([Key("ann", hash_key(KEY))])
ASKED = {"model": "fast", "messages": [{"role": "user", "content": "Hi"}]}
DATA = json.dumps(ASKED).encode()
STREAM = json.dumps({**ASKED, "stream": True}).encode()
POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
)
OURS = b"authorization: Bearer " + KEY.encode() + b"\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST = GET[:-2] + b"connection: close\r\n\r\n"
START = {"type": "http.response.start", "status": 200}
DONE = b"data: [DONE]\n\n\r\n0\r\n\r\n"


def call(data: bytes = DATA, head: bytes = POST) -> bytes:
    return head + OURS + b"content-length: %d\r\n\r\n" % len(data) + data


def app(model: Any = None, **bounds: Any) -> Any:
    return create_app(
        {"fast": model or Listed("Hello", repeat=True)}, keys=KEYS, bounds=Bounds(**bounds)
    )


def statuses(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


class Watched(BoundedHttpProtocol):
    """The gateway's protocol, with counters for tests."""

    opened: ClassVar[list[Watched]] = []
    received = 0
    is_writing_paused = False

    def connection_made(self, transport: Any) -> None:
        Watched.opened.append(self)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        super().data_received(data)

    def pause_writing(self) -> None:
        self.is_writing_paused = True
        super().pause_writing()

    @property
    def is_open(self) -> bool:
        return self in self.connections


@pytest.fixture(autouse=True)
def _forget() -> None:
    Watched.opened.clear()


class Clock:
    """The clock of the event loop, which only ``advance`` moves."""

    def __init__(self, now: float) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    async def advance(self, seconds: float) -> None:
        self._now += seconds
        for _ in range(100):  # run what is due, and what follows from it
            await asyncio.sleep(0)


@contextlib.contextmanager
def stopped_clock() -> Iterator[Clock]:
    loop = asyncio.get_running_loop()
    clock = Clock(loop.time())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", clock)
        yield clock


async def until(is_true: Callable[[], object]) -> None:
    while not is_true():
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def not_reading(application: Any, sent: bytes) -> AsyncIterator[socket.socket]:
    """Send bytes from a client with a small buffer, until the server cannot send more to it."""
    async with serving(application, http=Watched) as url:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", port_of(url)))
            await loop.sock_sendall(client, sent)
            await until(lambda: Watched.opened and Watched.opened[0].is_writing_paused)
            yield client


async def rest(client: socket.socket) -> bytes:
    """Return the bytes that can still be read from a connection."""
    pieces: list[bytes] = []
    with contextlib.suppress(ConnectionResetError):
        while piece := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
            pieces.append(piece)
    return b"".join(pieces)


# --- hostile requests


@pytest.mark.parametrize("row", [*REQUESTS, *PIPELINED], ids=lambda row: row[0])
async def test_hostile_request_is_answered_as_the_table_says(row: Row) -> None:
    _, sent, expected = row
    echo = Echo()
    async with serving(echo) as url:
        found, wanted = await ask(port_of(url), [sent], expected)
    assert found == wanted
    assert echo.seen == [each for each in wanted if " " in each], "only what was answered was run"


async def test_answer_does_not_depend_on_how_the_bytes_of_a_request_are_cut() -> None:
    async with serving(Echo()) as url:
        for name, sent, expected in REQUESTS:
            if len(sent) < 2000:
                pieces = [sent[at : at + 1] for at in range(len(sent))]
                found, wanted = await ask(port_of(url), pieces, expected)
                assert found == wanted, name


async def test_rejection_is_json_and_closes_the_connection() -> None:
    async with serving(app()) as url:
        answer = await raw(url, b"GET / HTTP/1.1\r\n" + b"h: v\r\n" * 101 + b"\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    assert json.loads(body)["error"]["message"] == "the request has more than 100 headers"


async def test_websocket_is_refused_with_the_protocol_that_is_served() -> None:
    """RFC 9110, 15.5.22; a client of WebSockets then turns to HTTP."""
    ask = b"GET /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    async with serving(app()) as url:
        head, _, body = (await raw(url, ask + b"\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
    assert b"\r\nconnection: upgrade, close" in head
    assert b"\r\nupgrade: HTTP/1.1" in head
    assert "over HTTP" in json.loads(body)["error"]["message"]


async def test_key_in_a_request_trailer_is_not_accepted() -> None:
    chunks = b"%x\r\n" % len(DATA) + DATA + b"\r\n0\r\n" + OURS + b"\r\n"
    async with serving(app()) as url:
        head = b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        assert statuses(await raw(url, POST + head + chunks)) == [401]
        assert statuses(await raw(url, POST + OURS + head + chunks)) == [200]


@pytest.mark.parametrize("garbage", [b"\0\0\0", b"x" * 100_000, b"GET /" + b"a" * 100_000])
async def test_data_sent_after_a_request_does_not_break_its_reply(garbage: bytes) -> None:
    async with serving(app()) as url:
        answer = await raw(url, call(STREAM) + garbage)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(DONE)


async def test_nothing_follows_the_rejection_of_a_body() -> None:
    gate = asyncio.Event()

    async def late(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await Echo()(scope, receive, send)
            return
        await gate.wait()
        await send({**START, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async with serving(late) as url, connected(url) as (reader, writer):
        writer.write(POST + b"transfer-encoding: chunked\r\n\r\nx\r\n")
        answer = await reader.readuntil(b"}}")
        gate.set()
        assert await reader.read() == b""
        assert statuses(answer) == [400]


# --- limits of connections and bodies


@pytest.mark.parametrize("bounds", [{"connections": 3}, {"connections_per_peer": 3}])
async def test_number_of_connections_is_limited(bounds: dict[str, int]) -> None:
    async with serving(app(**bounds), http=Watched) as url:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(connected(url))
            for sent in (b"", GET):
                answer = await raw(url, sent)
                assert statuses(answer) == [503]
                assert b"retry-after: 1" in answer
        await until(lambda: not Watched.opened[0].connections)
        for _ in range(4):  # closed connections do not count
            assert statuses(await raw(url, LAST)) == [200]


def test_ipv6_clients_are_counted_by_network() -> None:
    assert _network_of("10.0.0.1") == "10.0.0.1"
    assert _network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert (
        _network_of("2001:db8::1")
        == _network_of("2001:db8::ffff:2")
        != _network_of("2001:db8:0:1::1")
    )
    assert _network_of("fe80::1%eth0") == _network_of("fe80::2")


async def test_request_bodies_in_flight_share_a_memory_budget() -> None:
    made = app(body_bytes=100_000, bodies_bytes=250_000)
    service = made.state.service
    head = POST + b"connection: close\r\n"
    half = POST + OURS + b"content-length: 90000\r\n\r\n" + b" " * 80_000
    async with serving(made) as url:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                _, writer = await stack.enter_async_context(connected(url))
                writer.write(half)
            await until(lambda: service.held_bytes >= 240_000)
            refused = await raw(url, call(DATA + b" " * 20_000, head))
            assert statuses(refused) == [503]
            assert b"retry-after: 1" in refused
            assert statuses(await raw(url, call(head=head))) == [200], "a small request still fits"
        await until(lambda: not service.held_bytes)
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


# --- deadlines

LENGTH = b"content-length: 1000\r\n\r\n"
# name, first bytes, a byte sent every second, statuses, seconds until the connection is closed
HOLDS: list[tuple[str, bytes, bytes, list[int], int]] = [
    ("nothing", b"", b"", [], 15),
    ("empty lines", b"\r\n", b"\r\n", [], 15),
    ("half a head", b"GET /hea", b"", [408], 15 + 5),
    ("a head by the byte", b"GET /hea", b"a", [408], 15 + 5),
    ("nothing after a reply", GET, b"", [200], 5),
    ("empty lines after a reply", GET, b"\r\n", [200], 5),
    ("half a head after a reply", GET + b"GE", b"", [200, 408], 15 + 5),
    ("401, then one byte", POST + LENGTH, b"x", [401], 5),
    ("401, then half a chunk", POST + b"transfer-encoding: chunked\r\n\r\n", b"5", [401], 5),
    ("401 with an expectation", POST + b"expect: 100-continue\r\n" + LENGTH, b"x", [401], 5),
    ("404, then one byte", POST.replace(b"/v1", b"/no", 1) + LENGTH, b"x", [404], 5),
    ("a page with a body", GET[:-2] + LENGTH, b"x", [200], 5),
    ("413, then one byte", POST + OURS + b"content-length: 9999999\r\n\r\n", b"x", [413], 5),
    ("a body by the byte", POST + OURS + LENGTH, b"x", [408], 30 + 5),
    ("a tunnel", b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", b"x", [400], 5),
]  # fmt: skip


@pytest.mark.parametrize("row", HOLDS, ids=lambda row: row[0])
async def test_connection_without_a_complete_request_is_closed_in_time(row: Any) -> None:
    _, first, drip, expected, seconds = row
    async with serving(app(), http=Watched) as url:
        with stopped_clock() as clock:
            answer, elapsed = await hold(url, first, drip, expected, clock)
    assert statuses(answer) == expected
    assert elapsed == seconds
    is_body_unread = b"content-length" in first or b"chunked" in first
    assert not is_body_unread or b"connection: close\r\n" in answer


async def hold(
    url: str, first: bytes, drip: bytes, expected: list[int], clock: Clock
) -> tuple[bytes, int]:
    """Send bytes, then one a second; return what was received, and the seconds until the end."""
    answer = bytearray()

    async def read() -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                answer.extend(piece)

    async with connected(url) as (reader, writer):
        reading = asyncio.ensure_future(read())
        writer.write(first)
        await until(lambda: Watched.opened and Watched.opened[0].received == len(first))
        early = [status for status in expected if status != 408]
        await until(lambda: statuses(bytes(answer)) == early)
        await clock.advance(0)
        elapsed = 0
        while Watched.opened[0].is_open and elapsed < 100:
            writer.write(drip)
            await clock.advance(1)
            elapsed += 1
        writer.transport.abort()
        await reading
    return bytes(answer), elapsed


async def test_time_of_a_reply_does_not_count_for_the_next_head() -> None:
    gate = asyncio.Event()
    model = Listed(lambda request: [gate, *reply("Hello")(request)], repeat=True)
    async with serving(app(model), http=Watched) as url, connected(url) as (reader, writer):
        with stopped_clock() as clock:
            writer.write(call() + GET[:10])
            await until(lambda: model.running)
            await clock.advance(40)
            gate.set()
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.write(GET[10:])
            await reader.readuntil(b'{"status":"ok"}')


async def test_client_that_does_not_read_its_reply_is_disconnected() -> None:
    model = Listed(lambda request: reply("x" * 200_000)(request) * 100, repeat=True)
    async with not_reading(app(model), call(STREAM)) as client:
        with stopped_clock() as clock:
            await clock.advance(19)
            assert model.running
            await clock.advance(1)
            assert not model.running
            assert not Watched.opened[0].is_open
        assert not (await rest(client)).endswith(DONE)


async def test_client_that_reads_slowly_keeps_its_connection() -> None:
    """The client reads 100 kB of a long reply every 19 seconds."""
    long = app(Listed("x" * 5_000_000, repeat=True))
    async with not_reading(long, call(head=POST + b"connection: close\r\n")) as client:
        loop = asyncio.get_running_loop()
        connection = Watched.opened[0]
        size = 0
        with stopped_clock() as clock:
            for _ in range(10):
                before = connection.inner.get_write_buffer_size()
                while before - connection.inner.get_write_buffer_size() < 100_000:
                    size += len(await loop.sock_recv(client, 10_000))
                    await asyncio.sleep(0)
                await clock.advance(19)
            assert connection.is_open
        assert size + len(await rest(client)) > 5_000_000


@pytest.mark.parametrize("head", [POST, POST + b"connection: close\r\n"], ids=["kept", "closed"])
async def test_unread_reply_does_not_keep_a_connection_open(head: bytes) -> None:
    long = app(Listed("x" * 10_000_000, repeat=True))
    async with not_reading(long, call(head=head)) as client:
        with stopped_clock() as clock:
            for _ in range(26):  # the deadline begins again when the idle connection is closed
                await clock.advance(1)
            assert not Watched.opened[0].is_open
        assert len(await rest(client)) < 10_000_000


async def test_long_reply_is_sent_completely_before_the_connection_closes() -> None:
    """Invalid bytes after the request make the server close the connection after the reply, which
    the client begins to read after the lingering close.
    """
    long = app(Listed("x" * 5_000_000, repeat=True))
    async with not_reading(long, call() + b"\0\0") as client:
        await until(lambda: Watched.opened[0].is_closing)
        with stopped_clock() as clock:
            await clock.advance(6)
        answer = await rest(client)
    assert b"connection: close" in answer[:500]
    assert len(answer) > 5_000_000


# --- clients that disconnect or send too early


@pytest.mark.parametrize("size", [100_000, 3_000_000])
async def test_early_rejection_reaches_a_client_that_is_still_sending(size: int) -> None:
    sent = POST + b"content-length: %d\r\n\r\n" % size + b"x" * size

    def send(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), 60) as client:
            client.sendall(sent)
            return client.recv(65536)

    async with serving(app()) as url:
        for _ in range(3):
            assert statuses(await asyncio.to_thread(send, port_of(url))) == [401]


async def test_slow_reader_slows_the_application_down() -> None:
    sent = 0

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        if scope["type"] == "lifespan":
            await Echo()(scope, receive, send)
            return
        await send(START)
        while sent < 300:
            await send({"type": "http.response.body", "body": bytes(60_000), "more_body": True})
            sent += 1
        await send({"type": "http.response.body"})

    async with not_reading(endless, LAST) as client:
        assert sent < 12, "the kernel and the server buffer little"
        assert len(await rest(client)) > 300 * 60_000


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("data", [DATA, STREAM], ids=["complete", "stream"])
async def test_a_half_closed_request_is_answered(version: bytes, data: bytes) -> None:
    gate = asyncio.Event()
    model = Listed(lambda request: [gate, *reply("Hello")(request)], repeat=True)
    async with serving(app(model), http=Watched) as url, connected(url) as (reader, writer):
        writer.write(call(data).replace(b"HTTP/1.1", b"HTTP/" + version))
        await until(lambda: model.running)
        writer.write_eof()
        if version == b"1.1":
            interim = b"HTTP/1.1 100 Continue\r\n\r\n"
            assert await reader.readexactly(2 * len(interim)) == interim * 2
        gate.set()
        answer = await reader.read()
        assert statuses(answer)[-1] == 200
        assert b"llo" in answer


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


async def test_head_of_a_reply_is_written_together_with_its_body() -> None:
    written: list[bytes] = []

    class Recorded(BoundedHttpProtocol):
        def connection_made(self, transport: Any) -> None:
            write = transport.write
            transport.write = lambda data: (written.append(bytes(data)), write(data))
            super().connection_made(transport)

    async with serving(app(), http=Recorded) as url:
        answer = await raw(url, call() + LAST)
    assert statuses(answer) == [200, 200]
    assert [each.partition(b"\r\n\r\n")[2][-1:] for each in written] == [b"}", b"}"]


async def test_reply_to_head_is_sent_although_it_has_no_body() -> None:
    async with serving(app()) as url, connected(url) as (reader, writer):
        writer.write(GET.replace(b"GET", b"HEAD"))
        await arrival(reader.readuntil(b"\r\n\r\n"), "the head")
        writer.write(LAST)  # the connection is still open
        assert statuses(await arrival(reader.read(), "the next reply")) == [200]


async def test_client_that_waits_for_an_interim_response_gets_it_at_once() -> None:
    head, _, body = call().partition(b"\r\n\r\n")
    async with serving(app()) as url, connected(url) as (reader, writer):
        writer.write(head + b"\r\nexpect: 100-continue\r\n\r\n")
        assert b" 100 " in await arrival(reader.readuntil(b"\r\n\r\n"), "the interim response")
        writer.write(body)
        assert b" 200 " in await arrival(reader.readuntil(b"\r\n\r\n"), "the reply")


async def test_closed_connection_is_freed_without_the_garbage_collector() -> None:
    alive: weakref.WeakSet[BoundedHttpProtocol] = weakref.WeakSet()

    class Recorded(BoundedHttpProtocol):
        def connection_made(self, transport: Any) -> None:
            alive.add(self)
            super().connection_made(transport)

    gc.disable()
    try:
        async with serving(app(), http=Recorded) as url:
            assert statuses(await raw(url, call() + LAST)) == [200, 200]
            await settle()
            assert not list(alive)
    finally:
        gc.enable()


async def test_extra_slash_in_the_path_causes_no_redirect() -> None:
    async with serving(app()) as url:
        head = POST.replace(b"completions ", b"completions/ ").replace(b"localhost", b"evil.test")
        answer = await raw(url, call(head=head) + LAST)
        assert statuses(answer) == [404, 200]
        assert b"evil.test" not in answer


async def test_header_that_would_add_lines_to_a_reply_is_not_sent() -> None:
    async def split(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await Echo()(scope, receive, send)
            return
        await send({**START, "headers": [(b"x", b"a\r\nset-cookie: b")]})
        await send({"type": "http.response.body"})

    async with serving(split) as url:
        assert b"set-cookie" not in await raw(url, NEXT)


# --- shutdown


async def test_shutdown_does_not_wait_for_a_client_that_is_still_sending() -> None:
    async with serving(app(), http=Watched) as url, connected(url) as (reader, writer):
        writer.write(POST + LENGTH)
        assert statuses(await reader.read()) == [401]
        assert Watched.opened[0].is_open
        Watched.opened[0].shutdown()
        await until(lambda: not Watched.opened[0].is_open)


async def test_shutdown_closes_idle_connections_and_finishes_replies() -> None:
    gate = asyncio.Event()
    model = Listed(lambda request: [gate, *reply("Hello")(request)], repeat=True)
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(contextlib.AsyncExitStack())
        url = await server.enter_async_context(serving(app(model)))
        idle, first = await stack.enter_async_context(connected(url))
        busy, second = await stack.enter_async_context(connected(url))
        first.write(GET)
        await idle.readuntil(b'{"status":"ok"}')
        second.write(call() + GET)
        await until(lambda: model.running)
        ending = asyncio.ensure_future(server.aclose())
        assert await idle.read() == b""
        assert not ending.done()
        gate.set()
        answer = await busy.read()
        assert statuses(answer) == [200, 200]
        assert answer.count(b"connection: close") == 1
        await ending
