"""Test WebSockets at the Responses wire: the SDK of OpenAI, the state of a connection, and limits."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from dragoman.errors import UnavailableError
from dragoman.gateway.access import RECENT_BYTES, Bounds
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.recent_responses import RecentResponses
from dragoman.transport.frames import MAX_FRAMES
from dragoman.wire.responses.socket import ResponsesSocket
from tests.listed import Listed, reply
from tests.waiting import arrival, until

from .serving import serving

LAST = ("response.completed", "response.failed", "error")


@contextlib.asynccontextmanager
async def opened(app: Any, **headers: str) -> AsyncIterator[ClientConnection]:
    async with serving(app) as url, dial(url, **headers) as link:
        yield link


def dial(url: str, **headers: str) -> connect:
    return connect(f"{url.replace('http', 'ws')}/v1/responses", additional_headers=headers)


async def receive(link: ClientConnection) -> Any:
    return json.loads(await arrival(link.recv(), "a message"))


async def ask(link: ClientConnection, **fields: Any) -> Any:
    """Send a request and return the last event of its reply."""
    body = {"type": "response.create", "model": "m", "input": "Hi", **fields}
    await link.send(json.dumps(body))
    while (event := await receive(link))["type"] not in LAST:
        pass
    return event


def texts(model: Listed, at: int) -> list[str]:
    return [str(getattr(message, "text", "")) for message in model.requests[at].messages]


async def test_sdk_of_openai_continues_a_conversation_that_is_not_stored() -> None:
    model = Listed("One.", "Two.")
    async with (
        serving(create_app({"m": model})) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client,
        client.responses.connect() as connection,
    ):
        seen = []
        previous = None
        for text in ("First?", "Second?"):
            asked: Any = {"model": "m", "input": text, "store": False}
            await connection.response.create(**asked, previous_response_id=previous)
            async for event in connection:
                seen.append(event.type)
                if event.type == "response.completed":
                    previous = event.response.id
                    assert event.response.store is False
                    break
    assert texts(model, 1) == ["First?", "One.", "Second?"]
    assert "response.output_text.delta" in seen
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


async def test_first_message_may_only_prepare_the_conversation() -> None:
    model = Listed("One.")
    async with opened(create_app({"m": model})) as link:
        ready = await ask(link, generate=False, input="Earlier.")
        assert ready["response"]["output"] == []
        assert not model.requests
        named = ready["response"]["id"]
        assert (await ask(link, previous_response_id=named))["type"] == "response.completed"
    assert texts(model, 0) == ["Earlier.", "Hi"]


async def test_state_ends_with_the_connection() -> None:
    model = Listed("One.", "Two.")
    app = create_app({"m": model})
    async with serving(app) as url:
        async with dial(url) as link:
            named = (await ask(link))["response"]["id"]
        async with dial(url) as link:
            event = await ask(link, previous_response_id=named)
            assert event["status"] == 400
            assert event["error"]["code"] == "previous_response_not_found"
        recent = app.state.service.recent
        await until(lambda: not recent.size, "an empty memory")


@pytest.mark.parametrize(
    ("message", "status", "part"),
    [
        ("{", 400, "not JSON"),
        ("[]", 400, "must be an object"),
        ('{"type": "response.cancel"}', 400, "type must be 'response.create'"),
        ('{"type": "response.create", "model": "other", "input": "Hi"}', 404, "no model"),
        ('{"type": "response.create", "model": "m", "stream_id": ""}', 400, "stream_id"),
        ('{"type": "response.create", "model": "m", "generate": 1.5}', 400, "generate"),
    ],
)
async def test_bad_message_gets_an_error_event_and_the_connection_stays(
    message: str, status: int, part: str
) -> None:
    async with opened(create_app({"m": Listed("One.")})) as link:
        await link.send(message)
        event = await receive(link)
        assert event["type"] == "error"
        assert event["status"] == status
        assert part in event["error"]["message"]
        assert (await ask(link))["type"] == "response.completed"


async def test_failed_stream_ends_with_one_event() -> None:
    broken = Listed(lambda request: [*reply("Hel")(request)[:2], UnavailableError("gone")], "Two.")
    async with opened(create_app({"m": broken})) as link:
        assert (await ask(link))["type"] == "response.failed"
        assert (await ask(link))["type"] == "response.completed"


async def test_lanes_are_answered_at_the_same_time_and_a_lane_in_order() -> None:
    gate = asyncio.Event()
    model = Listed(lambda request: [gate, *reply("One.")(request)], "Two.", "Three.")
    async with opened(create_app({"m": model})) as link:
        body = {"type": "response.create", "model": "m", "input": "Hi"}
        await link.send(json.dumps({**body, "stream_id": "a"}))
        await until(lambda: model.running, "the first call")
        await link.send(json.dumps({**body, "stream_id": "a"}))
        done = await ask(link, stream_id="b")
        assert done["stream_id"] == "b"
        assert len(model.requests) == 2
        gate.set()
        ended = []
        while len(ended) < 2:
            event = await receive(link)
            assert event["stream_id"] == "a"
            ended += [event["response"]["output"]] if event["type"] in LAST else []
    assert [each[0]["content"][0]["text"] for each in ended] == ["One.", "Three."]


async def test_too_many_waiting_requests_are_refused() -> None:
    gate = asyncio.Event()
    model = Listed(lambda request: [gate, *reply("One.")(request)], "Two.")
    async with opened(create_app({"m": model}, bounds=Bounds(pipelined=1))) as link:
        body = {"type": "response.create", "model": "m", "input": "Hi"}
        await link.send(json.dumps(body))
        await until(lambda: model.running, "the first call")
        await link.send(json.dumps(body))
        await link.send(json.dumps(body))
        while (event := await receive(link))["type"] != "error":
            pass
        assert event["status"] == 429
        gate.set()


async def test_key_is_needed_and_a_revoked_one_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = KeyRing([Key("ann", hash_key("sk-ann"))])
    async with serving(create_app({"m": Listed("One.")}, keys=keys)) as url:
        with pytest.raises(InvalidStatus) as refused:
            await dial(url, authorization="Bearer sk-other").__aenter__()
        assert refused.value.response.status_code == 401
        async with dial(url, authorization="Bearer sk-ann") as link:
            assert (await ask(link))["type"] == "response.completed"
            monkeypatch.setattr(keys, "_keys", ())
            assert (await ask(link))["status"] == 401
            with pytest.raises(ConnectionClosed) as closed:
                await arrival(link.recv(), "the end")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


async def test_web_page_opens_no_socket_of_a_gateway_without_keys() -> None:
    async with serving(create_app({"m": Listed()})) as url:
        with pytest.raises(InvalidStatus) as refused:
            await dial(url, origin="https://page.example").__aenter__()
    assert refused.value.response.status_code == 403


async def test_message_beyond_the_limit_of_a_body_closes_the_connection() -> None:
    async with opened(create_app({"m": Listed()}, bounds=Bounds(body_bytes=1000))) as link:
        await link.send("x" * 1001)
        with pytest.raises(ConnectionClosed) as closed:
            await arrival(link.recv(), "the end")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


@pytest.mark.parametrize("frames", ["pings", "fragments"])
async def test_frames_without_a_message_close_the_connection(frames: str) -> None:
    async def send_frames(link: ClientConnection) -> None:
        if frames == "fragments":
            await link.send(["{"] * (MAX_FRAMES + 2))
        for _ in range(MAX_FRAMES + 2):
            await link.ping()
        await arrival(link.recv(), "the end")

    async with opened(create_app({"m": Listed()})) as link:
        with pytest.raises(ConnectionClosed) as closed:
            await send_frames(link)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1002
    assert closed.value.rcvd.reason == f"more than {MAX_FRAMES} frames without a message"


async def test_message_in_many_fragments_is_a_request() -> None:
    body = json.dumps({"type": "response.create", "model": "m", "input": "Hi" * 1000})
    async with opened(create_app({"m": Listed("One.")})) as link:
        await link.send(iter(body))
        assert (await receive(link))["type"] == "response.created"


async def test_text_that_is_not_utf_8_gets_an_error_event_and_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(create_app({"m": Listed("One.")})) as link:
        await link.send(b'"\xff"', text=True)
        event = await receive(link)
        assert event["type"] == "error"
        assert event["status"] == 400
        assert (await ask(link))["type"] == "response.completed"
    assert "Traceback" not in caplog.text


async def test_other_tasks_run_while_messages_are_refused() -> None:
    app = create_app({"m": Listed()})
    messages = deque(["connect", *["receive"] * 100, "disconnect"])
    runs = 0

    async def tick() -> None:
        nonlocal runs
        while messages:
            await asyncio.sleep(0)
            runs += 1

    async def receive_at_once() -> dict[str, Any]:
        return {"type": f"websocket.{messages.popleft()}", "bytes": b'{"stream_id": 5}'}

    async def send(message: Any) -> None:
        """Take a message of the application."""

    other = asyncio.ensure_future(tick())
    scope = {
        "type": "websocket", "path": "/v1/responses", "raw_path": b"/v1/responses",
        "query_string": b"", "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2), "scheme": "ws", "state": {},
    }  # fmt: skip
    await app(scope, receive_at_once, send)
    await other
    assert runs >= 100


async def test_call_ends_when_the_client_disconnects() -> None:
    forever = asyncio.Event()
    model = Listed(lambda request: [*reply("Hello")(request)[:2], forever], repeat=True)
    async with serving(create_app({"m": model})) as url:
        async with dial(url) as link:
            await link.send('{"type": "response.create", "model": "m", "input": "Hi"}')
            await until(lambda: model.running, "the call")
        await until(lambda: not model.running, "the end of the call")


async def test_old_connection_ends_after_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ResponsesSocket, "max_age", 0.0)
    async with opened(create_app({"m": Listed("One.")})) as link:
        event = await receive(link)
        assert event["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed) as closed:
            await arrival(link.recv(), "the end")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000


async def test_shutdown_waits_for_the_call_and_closes_the_connection() -> None:
    gate = asyncio.Event()
    model = Listed(lambda request: [gate, *reply("One.")(request)])
    async with contextlib.AsyncExitStack() as stack:
        served = serving(create_app({"m": model}))
        link = await stack.enter_async_context(dial(await served.__aenter__()))
        await link.send('{"type": "response.create", "model": "m", "input": "Hi"}')
        await until(lambda: model.running, "the call")
        stopping = asyncio.ensure_future(served.__aexit__(None, None, None))
        asyncio.get_running_loop().call_later(0.2, gate.set)
        while (event := await receive(link))["type"] not in LAST:
            pass
        assert event["type"] == "response.completed"
        with pytest.raises(ConnectionClosed) as closed:
            await arrival(link.recv(), "the end")
        await stopping
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012


def test_oldest_responses_are_dropped_beyond_the_limit() -> None:
    recent = RecentResponses(10)
    recent.keep("first", "", "a", b"12345")
    recent.keep("second", "", "b", b"12345")
    recent.keep("second", "", "c", b"123456")
    assert recent.find("first", "") == ("", b"")
    assert recent.find("second", "") == ("c", b"123456")


async def test_first_event_has_the_headers_of_the_reply() -> None:
    ring = KeyRing([Key("k", hash_key("x"), requests_per_minute=5)])
    app = create_app({"m": Listed("One.")}, keys=ring)
    async with opened(app, Authorization="Bearer x") as link:
        body = {"type": "response.create", "model": "m", "input": "Hi", "max_tool_calls": 3}
        await link.send(json.dumps(body))
        events = [await receive(link)]
        while events[-1]["type"] not in LAST:
            events.append(await receive(link))
    headers = events[0].pop("headers")
    assert headers["x-request-id"]
    assert headers["x-ratelimit-limit-requests"] == "5"
    assert "max_tool_calls_dropped" in headers["x-dragoman-warnings"]
    assert not [event for event in events if "headers" in event]


async def test_messages_are_not_compressed() -> None:
    async with opened(create_app({"m": Listed("One.")})) as link:
        assert link.request is not None
        assert "permessage-deflate" in link.request.headers["sec-websocket-extensions"]
        assert link.response is not None
        assert "sec-websocket-extensions" not in link.response.headers


def test_limits_of_websockets_are_those_of_the_page() -> None:
    assert ResponsesSocket.max_running == 16
    assert ResponsesSocket.max_lanes == 32 + 1
    assert ResponsesSocket.max_age == 60 * 60
    assert Bounds().pipelined == 8
    assert RECENT_BYTES == 256 * 1024 * 1024


async def test_gateway_calls_a_model_once() -> None:
    model = Listed(UnavailableError("gone"), "One.")
    async with opened(create_app({"m": model})) as link:
        assert (await ask(link))["type"] == "error"
        assert len(model.requests) == 1
