"""Test models that are called over a WebSocket, with one gateway in front of another."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import (
    AuthenticationError,
    Registry,
    Tool,
    ToolResult,
    User,
    check_events,
    connect,
)
from dragoman.events import Assembler
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.sockets import SocketHandler
from tests.listed import Listed, reply, speak
from tests.waiting import until

from .serving import serving

KEY = "dg-upstream-key"
SOCKET = {"socket": True}
WEATHER = Tool("get_weather", "Get the weather.", {"type": "object", "properties": {}})


def write_models(folder: Path, url: str) -> Path:
    path = folder / "models.yaml"
    path.write_text(
        "adapters:\n"
        f"  up: {{type: responses, base_url: '{url}/v1', api_key: {KEY},"
        " quirks: {socket: true}, max_retries: 0}\n"
        "models:\n  up:m: {aliases: [m]}\n"
    )
    return path


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the WebSockets that gateways serve from now on."""
    paths: list[str] = []
    serve = SocketHandler.__call__

    async def count(self: SocketHandler, scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope["path"])
        await serve(self, scope, receive, send)

    monkeypatch.setattr(SocketHandler, "__call__", count)
    return paths


@contextlib.asynccontextmanager
async def chained(folder: Path, model: Listed) -> AsyncIterator[str]:
    """Serve a gateway whose model is that of another one; yield its address."""
    keys = KeyRing([Key("k1", hash_key(KEY))])
    async with (
        serving(create_app({"m": model}, keys=keys)) as behind,
        serving(create_app(Registry.load(write_models(folder, behind)))) as url,
    ):
        yield url


def weather(out: Assembler) -> None:
    out.tool_start("c", "c1", "get_weather")
    out.tool_input("c", '{"city": "Paris"}')
    out.block_end("c")


async def test_gateway_sends_the_requests_of_all_its_clients_over_one_connection(
    tmp_path: Path, dialled: list[str]
) -> None:
    model = Listed(speak(weather, finish="tool_calls"), "Sunny.", "Bye.")
    async with chained(tmp_path, model) as url:
        async with connect("m", base_url=url, wire="anthropic", max_tokens=100) as client:
            stream = client.stream("Weather?", tools=[WEATHER])
            check_events([event async for event in stream])
            assert stream.response is not None
            (call,) = stream.response.tool_calls
            assert call.name == "get_weather"
            assert call.arguments == {"city": "Paris"}
            turns = [User("Weather?"), stream.response.message, ToolResult(call.id, "22 C")]
            assert (await client.complete(turns, tools=[WEATHER])).text == "Sunny."
        async with connect("m", base_url=url, wire="openai") as client:
            assert (await client.complete("Bye!")).text == "Bye."
    assert dialled == ["/v1/responses"]
    assert len(model.requests[1].messages) == 3


async def test_socket_in_front_and_behind(tmp_path: Path, dialled: list[str]) -> None:
    model = Listed("One.", "Two.")
    async with (
        chained(tmp_path, model) as url,
        connect("m", base_url=url, wire="responses", quirks=SOCKET) as client,
    ):
        assert (await client.complete("Hi")).text == "One."
        assert (await client.complete("Hi")).text == "Two."
    assert len(dialled) == 2


@pytest.mark.parametrize("quirks", [SOCKET, {}])
async def test_wrong_key_is_refused_as_over_http(quirks: dict[str, Any]) -> None:
    keys = KeyRing([Key("k", hash_key("another-key"))])
    options = {"wire": "responses", "quirks": quirks, "api_key": KEY}
    async with (
        serving(create_app({"m": Listed()}, keys=keys)) as url,
        connect("m", base_url=url, **options) as client,
    ):
        with pytest.raises(AuthenticationError, match="the key is missing or unknown") as caught:
            await client.complete("Hi")
    assert caught.value.status == 401
    assert KEY not in str(caught.value)


async def test_client_that_leaves_ends_the_call_of_the_second_gateway(tmp_path: Path) -> None:
    forever = asyncio.Event()
    model = Listed(lambda request: [*reply("Hello")(request)[:2], forever], repeat=True)
    async with chained(tmp_path, model) as url:
        async with connect("m", base_url=url, wire="openai") as client:
            async for event in client.stream("Hi"):
                if event.type == "text.delta":
                    break
        await until(lambda: not model.running, "the end of the call")
