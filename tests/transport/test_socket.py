"""Test requests over a WebSocket, against the server of the library ``websockets``."""

import asyncio
import contextlib
import gc
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

import dragoman as d
from dragoman.transport import FixtureTransport
from dragoman.transport import socket as client
from dragoman.transport.frames import MAX_FRAMES

from ..waiting import arrival, settle, until
from .certificates import Authority, server_context
from .raw import listen, read_request

pytestmark = pytest.mark.usefixtures("virtual_time")

Refuse = Callable[[ServerConnection, Request], Any]
Script = Callable[["Server", ServerConnection, Any], Awaitable[None]]
KEY = "secret-key-1234"


class Server:
    """A running server: the handshakes, requests and ends that it has seen."""

    def __init__(self) -> None:
        self.url = ""
        self.handshakes: list[Request] = []
        self.asked: list[Any] = []
        self.codes: list[int | None] = []  # with which connections ended


def events(text: str) -> list[dict[str, Any]]:
    """Return the events of a reply with one text."""
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    response = {"id": "resp_1", "object": "response", "model": "m", "status": "completed"}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return [
        {"type": "response.created", "response": {**response, "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.output_text.delta", **at, "delta": text},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {
            "type": "response.completed",
            "response": {**response, "output": [item], "usage": usage},
        },
    ]


async def answer(server: Server, link: ServerConnection, asked: Any) -> None:
    for event in events(f"reply {len(server.asked)}"):
        await link.send(json.dumps(event))


@contextlib.asynccontextmanager
async def serving(
    script: Script = answer, refuse: Refuse | None = None, **settings: Any
) -> AsyncIterator[Server]:
    server = Server()

    async def handle(link: ServerConnection) -> None:
        try:
            async for message in link:
                asked = json.loads(message)
                server.asked.append(asked)
                await script(server, link, asked)
        except ConnectionClosed:
            pass
        finally:
            await link.wait_closed()
            server.codes.append(link.close_code)

    def greet(link: ServerConnection, request: Request) -> Any:
        server.handshakes.append(request)
        return None if refuse is None else refuse(link, request)

    options = {"ping_interval": None, "close_timeout": 1, **settings}
    async with serve(handle, "127.0.0.1", 0, process_request=greet, **options) as listener:
        port = next(iter(listener.sockets)).getsockname()[1]
        scheme = "https" if "ssl" in settings else "http"
        server.url = f"{scheme}://127.0.0.1:{port}/v1"
        yield server


def connect(url: str, **settings: Any) -> d.Provider:
    options = {"wire": "responses", "quirks": {"socket": True}, "api_key": KEY, **settings}
    return d.connect("m", base_url=url, **options)


async def collect(model: d.Provider) -> d.Response:
    """Stream a reply and return the response, or raise the error."""
    stream = model.stream("Hi")
    async for _ in stream:
        pass
    assert stream.response is not None
    return stream.response


async def test_requests_are_messages_on_one_connection() -> None:
    async with serving() as server, connect(server.url, headers={"X-Team": "red"}) as model:
        whole = await model.complete("Hi", max_tokens=50)
        stream = model.stream("Hi", max_tokens=50)
        seen = [event async for event in stream]
        d.check_events(seen)
        assert stream.response is not None
        assert whole.text == "reply 1"
        assert stream.response.text == "reply 2"
        assert whole.usage.input_tokens == 3
        assert whole.finish_reason == "stop"
    first, second = server.asked
    assert first == second
    assert first["type"] == "response.create"
    assert first["model"] == "m"
    assert first["max_output_tokens"] == 50
    assert first["store"] is False
    assert not {"stream", "background", "stream_options"} & first.keys()
    (handshake,) = server.handshakes
    assert handshake.path == "/v1/responses"
    sent = {name.lower(): text for name, text in handshake.headers.raw_items()}
    assert sent["authorization"] == f"Bearer {KEY}"
    assert sent["x-team"] == "red"
    assert "content-type" not in sent
    await until(lambda: server.codes, "the end of the connection")
    assert server.codes == [1000]


async def test_events_are_those_of_a_stream_over_http() -> None:
    said = events("Hello")
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in said)
    posted = FixtureTransport((200, {}, [body]))
    over_http = d.connect("m", base_url="http://x/v1", wire="responses", transport=posted)
    expected = await collect(over_http)

    async def indented(server: Server, link: ServerConnection, asked: Any) -> None:
        for event in said:
            text = json.dumps(event, indent=1)
            await link.send([text[:7], text[7:]])  # in two frames

    async with serving(indented) as server, connect(server.url) as model:
        reply = await collect(model)
    assert reply.message.content == expected.message.content
    assert reply.usage == expected.usage
    assert reply.raw == expected.raw


async def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    going_on = asyncio.Event()

    async def wait(server: Server, link: ServerConnection, asked: Any) -> None:
        await going_on.wait()
        await answer(server, link, asked)

    async with serving(wait) as server, connect(server.url) as model:
        calls = [asyncio.ensure_future(model.complete("Hi")) for _ in range(3)]
        await until(lambda: len(server.asked) == 3, "three requests")
        going_on.set()
        await arrival(asyncio.gather(*calls), "the replies")
        await model.complete("Hi")
        assert len(server.handshakes) == 3


ERRORS = [
    (401, {"message": f"the key {KEY} is wrong"}, d.AuthenticationError),
    (404, {"message": "no model", "code": "model_not_found"}, d.InvalidModelError),
    (400, {"message": "too long", "code": "context_length_exceeded"}, d.ContextOverflowError),
    (429, {"message": "slow down"}, d.RateLimitError),
    (503, {"message": "busy"}, d.UnavailableError),
]


@pytest.mark.parametrize(("status", "error", "kind"), ERRORS)
async def test_error_event_is_the_error_of_http(
    status: int, error: dict[str, Any], kind: type[d.ProviderError]
) -> None:
    async def fail(server: Server, link: ServerConnection, asked: Any) -> None:
        event = {"type": "error", "status": status, "error": error}
        await link.send(json.dumps({**event, "headers": {"Retry-After": "7", "x": 5}}))

    answered = (status, {"retry-after": "7"}, [json.dumps({"error": error}).encode()])
    posted = FixtureTransport(answered)
    over_http = d.connect(
        "m", base_url="http://x/v1", wire="responses", transport=posted, name="s"
    )
    with pytest.raises(kind) as expected:
        await over_http.complete("Hi")
    async with serving(fail) as server, connect(server.url, name="s") as model:
        for _ in range(2):
            with pytest.raises(kind) as caught:
                await model.complete("Hi")
        assert len(server.handshakes) == 2
    assert type(caught.value) is type(expected.value)
    assert caught.value.status == status
    assert caught.value.retry_after == expected.value.retry_after
    assert KEY not in str(caught.value)
    assert caught.value.transient == expected.value.transient


@pytest.mark.parametrize(("status", "error", "kind"), ERRORS)
async def test_refused_handshake_is_the_error_of_http(
    status: int, error: dict[str, Any], kind: type[d.ProviderError]
) -> None:
    def refuse(link: ServerConnection, request: Request) -> Response:
        return link.respond(HTTPStatus(status), json.dumps({"error": error}))

    async with serving(refuse=refuse) as server, connect(server.url) as model:
        for call in (model.complete("Hi"), collect(model)):
            with pytest.raises(kind) as caught:
                await call
            assert caught.value.status == status
            assert KEY not in str(caught.value)


async def test_server_without_websockets_is_reported() -> None:
    def page(link: ServerConnection, request: Request) -> Response:
        return link.respond(HTTPStatus.OK, "<html>Welcome</html>")

    async with serving(refuse=page) as server, connect(server.url) as model:
        with pytest.raises(d.InvalidResponseError, match="status 200 where a WebSocket was asked"):
            await model.complete("Hi")

    def missing(link: ServerConnection, request: Request) -> Response:
        return link.respond(HTTPStatus.NOT_FOUND, "")

    async with serving(refuse=missing) as server, connect(server.url) as model:
        with pytest.raises(d.ProviderError, match="no WebSocket there") as caught:
            await model.complete("Hi")
        assert caught.value.status == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_connection_that_ends_in_the_middle_is_an_interrupted_stream(stream: bool) -> None:
    async def leave(server: Server, link: ServerConnection, asked: Any) -> None:
        for event in events("Hel")[:3]:
            await link.send(json.dumps(event))
        await link.close(1011)

    async with serving(leave) as server, connect(server.url) as model:
        with pytest.raises(d.StreamInterruptedError, match="middle of the reply") as caught:
            await (collect(model) if stream else model.complete("Hi"))
        assert caught.value.transient
        assert caught.value.response is not None
        assert caught.value.response.text == "Hel"


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (1011, d.NetworkError, "before the reply, with code 1011"),
        (1009, d.InvalidRequestError, "HTTP 413"),
        (None, d.NetworkError, "before the reply"),
    ],
)
async def test_connection_that_ends_before_the_reply(
    code: int | None, kind: type[d.ProviderError], words: str
) -> None:
    async def leave(server: Server, link: ServerConnection, asked: Any) -> None:
        if code is None:
            link.transport.abort()
        else:
            await link.close(code)

    async with serving(leave) as server, connect(server.url) as model:
        with pytest.raises(kind, match=words):
            await model.complete("Hi")


@pytest.mark.parametrize(
    ("timeouts", "which", "sent"),
    [
        ({"first_event": 15}, "first_event", 0),
        ({"idle": 15}, "idle", 3),
        ({"total": 50}, "total", 3),
        ({"total": 50, "first_event": 60}, "total", 0),
    ],
)
async def test_stream_ends_at_each_of_its_timeouts(
    timeouts: dict[str, float], which: str, sent: int
) -> None:
    async def stop(server: Server, link: ServerConnection, asked: Any) -> None:
        for event in events("Hel")[:sent]:
            await link.send(json.dumps(event))

    async with serving(stop) as server, connect(server.url, timeouts=timeouts) as model:
        began = asyncio.get_running_loop().time()
        with pytest.raises(d.TimedOutError) as caught:
            await arrival(collect(model), "the timeout")
        passed = asyncio.get_running_loop().time() - began
        assert caught.value.which == which
        assert passed == pytest.approx(timeouts[which], abs=0.1)
        await until(lambda: server.codes, "the end of the connection")


async def test_handshake_ends_at_the_timeouts() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await reader.read()

    async with listen(silent) as server:
        for timeouts, which in (({"first_event": 5}, "first_event"), ({"total": 5}, "total")):
            async with connect(f"{server.url}/v1", timeouts=timeouts) as model:
                with pytest.raises(d.TimedOutError) as caught:
                    await arrival(collect(model), "the timeout")
                assert caught.value.which == which
        await until(lambda: not server.open, "the end of the connections")


@pytest.mark.parametrize("how", ["cancel", "close", "drop"])
async def test_call_that_ends_early_closes_its_connection(how: str) -> None:
    async def stop(server: Server, link: ServerConnection, asked: Any) -> None:
        for event in events("Hel")[:3]:
            await link.send(json.dumps(event))

    async with serving(stop) as server, connect(server.url) as model:
        if how == "cancel":
            call = asyncio.ensure_future(model.complete("Hi"))
            await until(lambda: server.asked, "the request")
            await settle()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        else:
            stream = model.stream("Hi")
            async for event in stream:
                if event.type == "text.delta":
                    break
            if how == "close":
                await stream.aclose()
            del stream, event
            gc.collect()
        await until(lambda: server.codes, "the end of the connection")
        assert server.codes == [1000]


async def test_connection_is_closed_after_a_reply_that_failed() -> None:
    async def fail(server: Server, link: ServerConnection, asked: Any) -> None:
        failed = {"status": "failed", "error": {"code": "server_error", "message": "no"}}
        await link.send(json.dumps({"type": "response.failed", "response": failed}))

    async with serving(fail) as server, connect(server.url) as model:
        for _ in range(2):
            with pytest.raises(d.ProviderError, match="no"):
                await model.complete("Hi")
        assert len(server.handshakes) == 2


async def test_connection_that_the_server_has_closed_is_not_used_again() -> None:
    async def once(server: Server, link: ServerConnection, asked: Any) -> None:
        await answer(server, link, asked)
        await link.close(1001)

    async with serving(once) as server, connect(server.url) as model:
        for _ in range(3):
            await model.complete("Hi")
            await until(lambda: len(server.codes) == len(server.handshakes), "the end")
            await settle()
        assert len(server.handshakes) == 3


async def test_message_that_nobody_asked_for_is_not_taken_for_a_reply() -> None:
    async def more(server: Server, link: ServerConnection, asked: Any) -> None:
        await answer(server, link, asked)
        for event in events("stale"):
            await link.send(json.dumps(event))

    async with serving(more) as server, connect(server.url) as model:
        for turn in (1, 2):
            assert (await model.complete("Hi")).text == f"reply {turn}"
            await settle()
        assert len(server.handshakes) == 2


async def test_old_connection_is_replaced_before_the_server_ends_it() -> None:
    async with serving() as server, connect(server.url) as model:
        for _ in range(3600 // 200):
            assert len(server.handshakes) <= 1
            await model.complete("Hi")
            await asyncio.sleep(200)
        assert len(server.handshakes) == 2


async def test_idle_connection_is_kept_for_minutes_and_then_closed() -> None:
    async with serving() as server, connect(server.url) as model:
        await model.complete("Hi")
        await asyncio.sleep(290)
        await model.complete("Hi")
        await asyncio.sleep(290)
        assert not server.codes
        await asyncio.sleep(20)
        await until(lambda: server.codes, "the end of the connection")
        await model.complete("Hi")
        assert len(server.handshakes) == 2


async def test_idle_connection_answers_pings() -> None:
    beating = {"ping_interval": 20, "ping_timeout": 20}
    async with serving(**beating) as server, connect(server.url) as model:
        await model.complete("Hi")
        await asyncio.sleep(200)
        await model.complete("Hi")
        assert len(server.handshakes) == 1


async def test_connection_serves_only_the_key_and_headers_that_opened_it() -> None:
    keys = iter(["one-111111", "two-222222", "two-222222"])
    async with serving() as server, connect(server.url, api_key=lambda: next(keys)) as model:
        for _ in range(3):
            await model.complete("Hi")
        sent = [each.headers["authorization"] for each in server.handshakes]
        assert sent == ["Bearer one-111111", "Bearer two-222222"]


async def test_shared_transport_keeps_the_connections_of_keys_and_addresses_apart() -> None:
    transport = d.HttpTransport()
    async with serving() as server, serving() as other:
        for url, key in ((server.url, "a-111111"), (server.url, "b-222222"), (other.url, None)):
            model = connect(url, api_key=key, transport=transport)
            await model.complete("Hi")
        assert [each.headers["authorization"] for each in server.handshakes] == [
            "Bearer a-111111",
            "Bearer b-222222",
        ]
        assert "authorization" not in other.handshakes[0].headers
        await transport.close()


async def test_long_reply_waits_for_a_slow_reader() -> None:
    pieces = 200
    part = "x" * 40_000

    async def much(server: Server, link: ServerConnection, asked: Any) -> None:
        first, added, delta, _, last = events(part)
        for event in (first, added, *[delta] * pieces):
            await link.send(json.dumps(event))
            server.codes.append(None)  # counts what was sent
        await link.send(json.dumps(last))

    async with serving(much, write_limit=1024) as server, connect(server.url) as model:
        stream = model.stream("Hi")
        size = 0
        async for event in stream:
            if event.type == "text.delta":
                if not size:
                    await settle()
                    assert len(server.codes) < pieces
                size += len(event.text)
    assert size == pieces * len(part)


async def test_message_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_EVENT", 300)

    async def long(server: Server, link: ServerConnection, asked: Any) -> None:
        for event in events("x" * 1000):
            await link.send(json.dumps(event))

    async with serving(long) as server, connect(server.url) as model:
        with pytest.raises(d.InvalidResponseError, match="not a valid WebSocket"):
            await model.complete("Hi")
        await until(lambda: server.codes, "the end of the connection")
        assert server.codes == [1009]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "handshake of the WebSocket is not valid"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nsec-websocket-accept: ACCEPT\r\n\r\n\xff\xff",
            "not a valid WebSocket",
        ),
        (b"HTTP/1.1 nonsense\r\n\r\n", "not valid HTTP"),
    ],
)
async def test_server_that_breaks_the_protocol_is_reported(reply: bytes, words: str) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from websockets.utils import accept_key

        head, _ = await read_request(reader)
        key = re.search(rb"sec-websocket-key: (\S+)", head)
        assert key is not None
        writer.write(reply.replace(b"ACCEPT", accept_key(key[1].decode()).encode()))
        await writer.drain()
        await reader.read()

    async with listen(handler) as server, connect(f"{server.url}/v1") as model:
        with pytest.raises(d.InvalidResponseError, match=words):
            await model.complete("Hi")


@pytest.mark.parametrize("kind", ["pings", "fragments", "empty messages"])
async def test_server_whose_frames_lead_to_no_message_is_reported(kind: str) -> None:
    async def send_frames(server: Server, link: ServerConnection, asked: Any) -> None:
        if kind == "fragments":
            await link.send(["{"] * (MAX_FRAMES + 2))
        for _ in range(MAX_FRAMES + 2):
            await (link.ping() if kind == "pings" else link.send(""))

    async with serving(send_frames) as server, connect(server.url, retries=0) as model:
        with pytest.raises(d.InvalidResponseError, match="not a valid WebSocket") as caught:
            await model.complete("Hi")
    assert str(MAX_FRAMES) in str(caught.value.__cause__)


async def test_messages_that_arrive_with_the_handshake_are_read() -> None:
    said = b"".join(
        bytes([0x81, 126]) + len(text).to_bytes(2) + text
        for text in (json.dumps(event).encode().ljust(126) for event in events("Early"))
    )

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from websockets.utils import accept_key

        head, _ = await read_request(reader)
        key = re.search(rb"sec-websocket-key: (\S+)", head)
        assert key is not None
        accepted = accept_key(key[1].decode()).encode()
        start = b"HTTP/1.1 101 Switching Protocols\r\nsec-websocket-accept: " + accepted
        writer.write(start + b"\r\n\r\n" + said)
        await writer.drain()
        await reader.read()

    async with listen(handler) as server, connect(f"{server.url}/v1") as model:
        assert (await model.complete("Hi")).text == "Early"


async def test_connection_over_tls_is_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = server_context(authority.issue("127.0.0.1"))
    async with serving(ssl=context) as server:
        trusting = d.HttpTransport(ca=authority.path)
        async with connect(server.url, transport=trusting) as model:
            assert (await model.complete("Hi")).text == "reply 1"
            assert (await model.complete("Hi")).text == "reply 2"
        async with connect(server.url) as model:
            with pytest.raises(d.NetworkError, match="certificate"):
                await model.complete("Hi")
        assert len(server.handshakes) == 1


async def test_unreachable_server_is_reported() -> None:
    async with connect("http://127.0.0.1:9/v1") as model:
        with pytest.raises(d.NetworkError, match="cannot be reached"):
            await model.complete("Hi")


async def test_other_transport_reports_that_it_opens_no_websockets() -> None:
    model = connect("http://x/v1", transport=FixtureTransport())
    with pytest.raises(d.UnsupportedFeatureError, match="FixtureTransport opens no WebSockets"):
        await model.complete("Hi")


async def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "websockets.utils", None)
    async with connect("http://127.0.0.1:9/v1") as model:
        with pytest.raises(ImportError, match=re.escape("pip install 'dragoman[socket]'")):
            await model.complete("Hi")


def test_other_wires_have_no_such_quirk() -> None:
    with pytest.raises(ValueError, match="socket"):
        connect("http://x/v1", wire="openai")
