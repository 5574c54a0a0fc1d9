"""Test how the HTTP server runs an ASGI application: requests, replies, errors, flow control."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from dragoman.gateway.access import Bounds
from dragoman.gateway.http_protocol import BoundedHttpProtocol

from .serving import raw, serving

App = Callable[[Any, Any, Any], Awaitable[None]]
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
START = {"type": "http.response.start", "status": 200}


@pytest.fixture(autouse=True)
def _log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Capture the server's log, even if another test has configured uvicorn's logging."""
    caplog.set_level(logging.INFO, "uvicorn.error")
    for name in ("uvicorn", "uvicorn.error"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)


def hosted(app: App, **bounds: Any) -> App:
    """Return an application that answers the lifespan messages and has these limits."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)
            return
        scope["state"]["bounds"] = Bounds(**bounds)
        for name in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{name}.complete"})

    return run


async def read_body(receive: Any) -> bytes:
    pieces = []
    while True:
        message = await receive()
        assert message["type"] == "http.request"
        pieces.append(message["body"])
        if not message["more_body"]:
            return b"".join(pieces)


async def reply(send: Any, *parts: bytes, headers: Any = (), status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body = await read_body(receive)
    await reply(send, scope["method"].encode(), b" ", scope["raw_path"], b" ", body)


def split(answer: bytes) -> tuple[bytes, bytes]:
    """Return the status line with the headers, and the body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


def unchunked(body: bytes) -> bytes:
    pieces = []
    while True:
        size, _, body = body.partition(b"\r\n")
        if size == b"0":
            assert body == b"\r\n"
            return b"".join(pieces)
        pieces.append(body[: int(size, 16)])
        assert body[int(size, 16) :].startswith(b"\r\n")
        body = body[int(size, 16) + 2 :]


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        async with asyncio.timeout(5):
            yield reader, writer
    finally:
        writer.transport.abort()


# --- requests


async def test_request_reaches_the_application_with_all_its_parts() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, await read_body(receive), "mine" in scope["state"]))
        scope["state"]["mine"] = True
        await reply(send)

    sent = (
        b"POST /a%20b?c=d%20e&f#g HTTP/1.1\r\nHost: x\r\nX-Twice: 1\r\nx-twice: 2\r\n"
        b"content-length: 3\r\n\r\nabc"
    )
    async with serving(hosted(app)) as url:
        assert (await raw(url, sent + LAST)).count(b"HTTP/1.1 200 OK") == 2
    (scope, body, _), (_, _, is_shared) = seen
    assert (scope["type"], scope["method"], scope["http_version"]) == ("http", "POST", "1.1")
    assert (scope["path"], scope["raw_path"]) == ("/a b", b"/a%20b")
    assert (scope["query_string"], scope["root_path"]) == (b"c=d%20e&f", "")
    assert (scope["scheme"], scope["asgi"]["version"]) == ("http", "3.0")
    assert scope["server"] == ("127.0.0.1", int(url.rpartition(":")[2]))
    assert scope["client"][0] == "127.0.0.1"
    assert scope["headers"] == [
        (b"host", b"x"), (b"x-twice", b"1"), (b"x-twice", b"2"), (b"content-length", b"3")
    ]  # fmt: skip
    assert body == b"abc"
    assert isinstance(scope["state"]["bounds"], Bounds)
    assert not is_shared, "each request has its own copy of the state"


REQUESTS = (
    b"POST /first HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
    b"POST /second HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n"
    b"\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\ntrailer: t\r\n\r\n"
    b"DELETE /third HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
)


async def test_reply_does_not_depend_on_how_the_bytes_of_requests_are_cut() -> None:
    """The pipelined requests are answered in order, whatever the pieces in which they arrive."""
    bodies = [b"POST /first hello", b"POST /second abcde", b"DELETE /third "]

    async def ask(url: str, *pieces: bytes) -> list[bytes]:
        async with connected(url) as (reader, writer):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.002)
            answer = await reader.read()
        parts = answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").split(b"HTTP/1.1 200 OK")
        return [unchunked(split(part)[1]) for part in parts[1:]]

    async with serving(hosted(echo)) as url:
        found = await asyncio.gather(
            *[ask(url, REQUESTS[:at], REQUESTS[at:]) for at in range(0, len(REQUESTS), 4)],
            ask(url, *[REQUESTS[at : at + 1] for at in range(len(REQUESTS))]),
        )
    assert found == [bodies] * len(found)


async def test_unusual_targets_are_answered() -> None:
    paths = {b"*": b"*", b"//evil/x": b"//evil/x", b"/x#y": b"/x", b"http://host/x?q": b"/x"}
    async with serving(hosted(echo)) as url:
        for target, path in paths.items():
            answer = await raw(url, LAST.replace(b" / ", b" " + target + b" "))
            assert unchunked(split(answer)[1]) == b"GET " + path + b" "
        for target in (b"/\xc3\xa9", b"http://host", b"x"):
            answer = await raw(url, LAST.replace(b" / ", b" " + target + b" "))
            assert answer.startswith(b"HTTP/1.1 400"), target


async def test_continue_is_sent_when_the_application_reads_the_body() -> None:
    gate = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await gate.wait()
        await echo(scope, receive, send)

    async with serving(hosted(app)) as url, connected(url) as (reader, writer):
        writer.write(HEAD + b"expect: 100-continue\r\ncontent-length: 3\r\n\r\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.05)
        gate.set()
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert unchunked(split(await reader.read())[1]) == b"POST / abc"


async def test_http_1_0_client_gets_no_interim_response() -> None:
    head = b"POST / HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\nabc"
    async with serving(hosted(echo)) as url:
        answer = await raw(url, head)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\nPOST / abc")


async def test_client_is_slowed_down_while_the_application_does_not_read() -> None:
    gate = asyncio.Event()
    size = 30_000_000

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await gate.wait()
        await reply(send, b"%d" % len(await read_body(receive)))

    async with serving(hosted(app)) as url, connected(url) as (reader, writer):
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % size + bytes(size))
        await asyncio.sleep(0.2)
        assert writer.transport.get_write_buffer_size() > size // 2
        gate.set()
        assert unchunked(split(await reader.read())[1]) == b"%d" % size


async def test_application_learns_of_a_disconnection() -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        await send(START)
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        for message in await asyncio.gather(receive(), receive()):
            seen.put_nowait(message["type"])
        seen.put_nowait((await receive())["type"])
        await send({"type": "http.response.body", "body": b"unseen", "more_body": True})
        await send({"type": "http.response.body"})
        seen.put_nowait("end")

    async with serving(hosted(app)) as url, connected(url) as (reader, writer):
        writer.write(GET)
        await reader.readuntil(b"x")
        assert seen.empty()
        writer.transport.abort()
        found = [await seen.get() for _ in range(4)]
    assert found == ["http.disconnect"] * 3 + ["end"]


async def test_receive_reports_a_disconnection_after_the_reply() -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        waiting = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        await reply(send)
        seen.put_nowait((await waiting)["type"])
        seen.put_nowait((await receive())["type"])

    async with serving(hosted(app)) as url:
        await raw(url, LAST)
        assert [await seen.get(), await seen.get()] == ["http.disconnect"] * 2


async def test_address_of_the_client_is_taken_from_a_trusted_proxy() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, f"{scope['client'][0]} {scope['scheme']}".encode())

    sent = LAST[:-2] + b"X-Forwarded-For: 10.1.2.3\r\nx-forwarded-proto: https\r\n\r\n"
    for trusted, found in (("127.0.0.1", b"10.1.2.3 https"), ("10.9.9.9", b"127.0.0.1 http")):
        async with serving(hosted(app), forwarded_allow_ips=trusted) as url:
            assert unchunked(split(await raw(url, sent))[1]) == found
            assert unchunked(split(await raw(url, LAST))[1]) == b"127.0.0.1 http"


# --- replies


async def test_reply_has_the_headers_of_the_application_and_the_date() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({**START, "headers": [(b"X-Name", b"\xe9 v"), (b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async with serving(hosted(app), server_header=False) as url:
        head, body = split(await raw(url, GET + LAST))
    assert body.startswith(b"okHTTP/1.1 200 OK\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert lines[1].startswith(b"date: ")
    assert lines[2:] == [b"x-name: \xe9 v", b"content-length: 2"]


async def test_replies_without_a_body_have_none() -> None:
    """The reply to HEAD, and a reply with status 204 or 304, ends with its head."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        status = int(scope["path"][1:])
        headers = [(b"content-length", b"5")] if scope["query_string"] else []
        await send({**START, "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello" if status == 200 else b""})

    async with serving(hosted(app)) as url:
        for case in (b"HEAD /200", b"HEAD /200?length", b"GET /204", b"GET /304", b"HEAD /304?x"):
            answer = await raw(url, (GET + LAST).replace(b"GET /", case))
            assert answer.count(b"HTTP/1.1 %b" % case.split(b"/")[1][:3]) == 2, case
            assert b"hello" not in answer, case
            assert b"chunked" not in answer, case
            assert answer.endswith(b"\r\n\r\n"), case
            assert answer.count(b"content-length: 5") == 2 * (b"?" in case), case


async def test_application_can_close_the_connection() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, b"x", headers=[(b"Connection", b"Close")])

    async with serving(hosted(app)) as url:
        answer = await raw(url, GET * 3)
    assert answer.count(b"HTTP/1.1 200") == 1
    assert answer.lower().count(b"connection: close") == 1


async def test_application_can_choose_the_chunked_encoding() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, b"x", b"", b"yz", headers=[(b"transfer-encoding", b"chunked")])

    async with serving(hosted(app)) as url:
        head, body = split(await raw(url, LAST))
    assert head.count(b"transfer-encoding: chunked") == 1
    assert unchunked(body) == b"xyz"


INJECTED = [
    (b"x", b"a\r\nset-cookie: b"), (b"x", b"a\nb"), (b"x", b"a\rb"), (b"x", b"a\0b"),
    (b"x", b"a\r\n\r\n<html>"), (b"x\r\ny", b"a"), (b"x y", b"a"), (b"x:", b"a"), (b"", b"a"),
]  # fmt: skip


async def test_header_that_would_add_lines_is_not_sent() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        header = INJECTED[int(scope["path"][1:])]
        await reply(send, b"body", headers=[(b"x-first", b"1"), header])

    async with serving(hosted(app)) as url:
        for at, header in enumerate(INJECTED):
            head, body = split(await raw(url, GET.replace(b"/", b"/%d" % at, 1)))
            assert head.startswith(b"HTTP/1.1 500"), header
            assert b"x-first" not in head, header
            assert body == b"Internal Server Error", header


BODY = {"type": "http.response.body", "body": b"hello"}
LENGTH = {**START, "headers": [(b"content-length", b"5")]}
WRONG: list[tuple[str, list[dict[str, Any]], bytes | None]] = [
    ("no reply", [], None),
    ("no body", [LENGTH], None),
    ("a body first", [BODY], None),
    ("two starts", [LENGTH, LENGTH], None),
    ("too much", [LENGTH, {**BODY, "body": b"hello!"}], None),
    ("too little", [LENGTH, {**BODY, "body": b"hell"}], None),
    ("an unknown message", [{"type": "x"}], None),
    ("an unknown status", [{**START, "status": 99}], None),
    ("too much, later", [LENGTH, {**BODY, "more_body": True}, BODY], b"hello"),
    ("too little, later", [LENGTH, {**BODY, "body": b"he", "more_body": True}], b"he"),
    ("no end", [START, {**BODY, "more_body": True}], b"5\r\nhello\r\n"),
    ("a message after the end", [LENGTH, BODY, BODY], b"hello"),
    ("a chunk after the end", [START, BODY, BODY], b"5\r\nhello\r\n0\r\n\r\n"),
    ("too much without content", [{**START, "status": 204}, BODY], None),
]


async def test_application_that_fails_gives_no_complete_reply(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client gets status 500; if a part of the reply was sent, the connection is closed."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        _, messages, _ = WRONG[int(scope["path"][1:])]
        for message in messages:
            await send(message)
        if scope["query_string"]:
            raise ZeroDivisionError

    async with serving(hosted(app)) as url:
        for at, (name, _, found) in enumerate(WRONG):
            for path in (b"/%d" % at, b"/%d?raise" % at):
                caplog.clear()
                sent = LAST if name.endswith("after the end") else GET
                head, body = split(await raw(url, sent.replace(b"/", path, 1)))
                if found is None:
                    assert head.startswith(b"HTTP/1.1 500 Internal Server Error\r\n"), name
                    assert b"connection: close" in head
                    assert body == b"Internal Server Error"
                else:
                    assert head.startswith(b"HTTP/1.1 200 OK\r\n"), name
                    assert body == found
                assert "ASGI" in caplog.text, name


async def test_error_after_the_reply_keeps_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, b"x")
        raise ZeroDivisionError

    async with serving(hosted(app)) as url:
        assert (await raw(url, GET + LAST)).count(b"HTTP/1.1 200") == 2
    assert caplog.text.count("Exception in ASGI application") == 2


async def test_slow_reader_slows_the_application_down() -> None:
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send(START)
        for _ in range(300):
            await send({"type": "http.response.body", "body": bytes(60_000), "more_body": True})
            sent += 1
        await send({"type": "http.response.body"})

    async with serving(hosted(app)) as url:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", int(url.rpartition(":")[2])))
            await loop.sock_sendall(client, LAST)
            await asyncio.sleep(0.15)
            assert 0 < sent < 12, "the kernel and the server buffer little"
            size = 0
            while piece := await loop.sock_recv(client, 1 << 20):
                size += len(piece)
    assert sent == 300
    assert size > 300 * 60_000


# --- the connection


async def test_idle_connection_is_closed_after_a_time() -> None:
    async with serving(hosted(echo), timeout_keep_alive=0.1) as url:
        answer = await raw(url, GET)
        assert b"connection: close" not in answer
        assert answer.count(b"HTTP/1.1 200") == 1


async def test_next_head_on_a_connection_has_its_own_time_limit() -> None:
    async with serving(hosted(echo, head_seconds=0.2), timeout_keep_alive=60) as url:
        for pieces in ([GET + b"GE"], [GET, b"GE"]):
            async with connected(url) as (reader, writer):
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0.02)
                answer = await reader.read()
            assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"408"]


async def test_time_of_a_reply_does_not_count_for_the_next_head() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await asyncio.sleep(0.4)
        await reply(send, b"x")

    async with (
        serving(hosted(app, head_seconds=0.2)) as url,
        connected(url) as (reader, writer),
    ):
        writer.write(GET.replace(b"/ ", b"/slow ", 1) + GET[:10])
        assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(GET[10:])
        assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_connection_reads_on_after_pipelined_requests() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, b"x")

    async with serving(hosted(app)) as url, connected(url) as (reader, writer):
        writer.write(GET * 2)
        for _ in range(2):
            await reader.readuntil(b"0\r\n\r\n")
        writer.write(LAST)
        assert (await reader.read()).startswith(b"HTTP/1.1 200")


async def test_shutdown_does_not_wait_for_a_client_that_is_still_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.gateway.http_connection._LINGER_SECONDS", 1000)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, b"x")

    async with counted(app) as (url, state), connected(url) as (reader, writer):
        writer.write(HEAD + b"content-length: 3\r\n\r\n")
        assert (await reader.read()).endswith(b"0\r\n\r\n")
        assert len(state.connections) == 1
        for connection in list(state.connections):
            connection.shutdown()
        while state.connections:
            await asyncio.sleep(0.01)


async def test_connection_ends_with_a_reply_that_began_before_the_body_arrived() -> None:
    read = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await read_body(receive)
        read.set()
        await send({"type": "http.response.body"})

    async with serving(hosted(app)) as url, connected(url) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n")
        assert b"connection: close\r\n" in await reader.readuntil(b"x\r\n")
        writer.write(b"abc")
        await read.wait()
        assert await reader.read() == b"0\r\n\r\n"


async def test_connection_is_kept_while_requests_arrive() -> None:
    async with (
        serving(hosted(echo), timeout_keep_alive=0.2) as url,
        connected(url) as (reader, writer),
    ):
        for _ in range(8):
            writer.write(GET)
            assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.05)


async def test_shutdown_closes_idle_connections_and_finishes_replies() -> None:
    gate = asyncio.Event()
    begun = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            begun.set()
            await gate.wait()
        await reply(send, b"x")

    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(contextlib.AsyncExitStack())
        url = await server.enter_async_context(serving(hosted(app)))
        idle, first = await stack.enter_async_context(connected(url))
        busy, second = await stack.enter_async_context(connected(url))
        first.write(GET)
        await idle.readuntil(b"0\r\n\r\n")
        second.write(GET.replace(b"/ ", b"/slow ", 1) + GET)
        await begun.wait()
        ending = asyncio.ensure_future(server.aclose())
        assert await idle.read() == b""
        assert not ending.done()
        gate.set()
        answer = await busy.read()
        assert answer.count(b"HTTP/1.1 200") == 2
        assert answer.count(b"connection: close") == 1
        await ending


@contextlib.asynccontextmanager
async def counted(app: App, **bounds: Any) -> AsyncIterator[tuple[str, Any]]:
    """Serve an application without uvicorn's server; yield its address and the server's state."""
    state = uvicorn.server.ServerState()
    config = uvicorn.Config(app, log_config=None)
    server = await asyncio.get_running_loop().create_server(
        lambda: BoundedHttpProtocol(config, state, {"bounds": Bounds(**bounds)}), "127.0.0.1", 0
    )
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", state
    server.close()
    async with asyncio.timeout(5):
        while state.connections or state.tasks:
            await asyncio.sleep(0.01)


async def test_server_counts_its_requests_and_tasks() -> None:
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(len(state.tasks))
        await reply(send, b"x")

    async with counted(app) as (url, state), connected(url) as (reader, writer):
        writer.write(GET)
        await reader.readuntil(b"0\r\n\r\n")
        assert len(state.connections) == 1
        writer.write(LAST)
        await reader.read()
    assert seen == [1, 1]
    assert state.total_requests == 2


async def test_closed_connections_do_not_count() -> None:
    async with counted(echo, connections=1, connections_per_peer=1) as (url, _):
        for _ in range(3):
            assert (await raw(url, LAST)).startswith(b"HTTP/1.1 200")


async def test_closed_connection_does_not_wait_for_the_rest_of_its_reply() -> None:
    """A client that does not read the last part of its reply does not keep the connection open."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": bytes(int(scope["path"][1:]))})

    sizes = range(100_000, 300_000, 20_000)
    async with (
        counted(app, write_seconds=0.2) as (url, state),
        contextlib.AsyncExitStack() as held,
    ):
        for size in sizes:
            client = held.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", int(url.rpartition(":")[2])))
            client.sendall(LAST.replace(b"/", b"/%d" % size, 1))
        async with asyncio.timeout(5):
            while state.total_requests < len(sizes) or state.connections:
                await asyncio.sleep(0.01)


async def test_reply_that_waits_for_its_client_ends_with_the_connection() -> None:
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        for _ in range(1000):
            await send({"type": "http.response.body", "body": bytes(60_000), "more_body": True})
        ended.set()

    async with counted(app) as (url, _), connected(url) as (_, writer):
        writer.transport.pause_reading()
        writer.write(GET)
        await asyncio.sleep(0.1)
        assert not ended.is_set()
        writer.transport.abort()
        await ended.wait()


async def test_nothing_follows_the_rejection_of_a_body(caplog: pytest.LogCaptureFixture) -> None:
    gate = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await gate.wait()
        await reply(send, b"too late")

    async with counted(app) as (url, _), connected(url) as (reader, writer):
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\nx\r\n")
        answer = await reader.readuntil(b"}}")
        gate.set()
        assert await reader.read() == b""
        assert answer.startswith(b"HTTP/1.1 400")
    assert caplog.text == ""
