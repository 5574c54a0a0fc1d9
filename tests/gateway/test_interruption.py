"""Test that a client that disconnects ends its request, on the gateway's own server and others."""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn

from dragoman.gateway.app import create_app
from dragoman.gateway.http_protocol import BoundedHttpProtocol
from dragoman.gateway.interruption import Interruption
from tests.listed import Listed, reply
from tests.waiting import until

from .serving import serving

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).encode()
ASKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


class Wrapped:
    """An ASGI middleware that replaces ``receive``, as many do."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def receive_too() -> Any:
            return await receive()

        await self._app(scope, receive_too, send)


@pytest.mark.parametrize(
    ("server", "requests"),
    [
        ("own server", 1),
        ("own server", 2),  # the second request waits for the reply to the first one
        ("middleware", 1),
        ("middleware", 2),
        # uvicorn does not notice that the client of the first of two requests has disconnected
        ("uvicorn's server", 1),
    ],
)
async def test_request_ends_when_its_client_disconnects(server: str, requests: int) -> None:
    forever = asyncio.Event()
    model = Listed(lambda request: [*reply("Hello")(request)[:2], forever], repeat=True)
    app = create_app({"m": model})
    if server == "middleware":
        app.add_middleware(Wrapped)
    http = "httptools" if server == "uvicorn's server" else BoundedHttpProtocol
    async with serving(app, http=http) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as link:
            link.sendall(ASKED * requests)
            await until(lambda: model.running, "the call")
        await until(lambda: not model.running, "the end of the call")
        assert len(model.requests) == 1
        counted = app.state.service.metrics.text()
    assert 'dragoman_requests_total{wire="openai",model="m",status="499"} 1' in counted


async def test_disconnection_before_the_call_is_reported_too() -> None:
    """Later, the function is called in the next iteration of the event loop."""
    called: list[str] = []
    connection, lose = await running_request()
    connection.call_on_disconnect(lambda: called.append("first"))
    connection.call_on_disconnect(None)
    lose()
    connection.call_on_disconnect(lambda: called.append("second"))
    assert called == []
    await asyncio.sleep(0)
    assert called == ["second"]


async def test_connection_is_read_while_its_disconnection_matters() -> None:
    """The event loop does not notice a disconnection while reading is paused."""
    connection, lose = await running_request()
    connection.flow.pause_reading()
    connection.call_on_disconnect(print)
    assert not connection.flow.read_paused
    connection.call_on_disconnect(None)
    lose()


async def test_disconnection_after_the_reply_does_not_interrupt_its_records() -> None:
    connection, lose = await running_request()
    interruption = Interruption(connection.scope, connection.cycle.receive)
    interruption.watch(60)
    interruption.stop()
    lose()
    await asyncio.sleep(0)
    assert not interruption.undo()


async def running_request() -> tuple[BoundedHttpProtocol, Callable[[], None]]:
    """Return a connection with a request that is not answered, and a function that ends it."""

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    config = uvicorn.Config(wait, log_config=None, proxy_headers=False)
    connection = BoundedHttpProtocol(config, uvicorn.server.ServerState(), {})
    transport = Mock(asyncio.Transport)
    transport.get_extra_info = {"socket": Mock(socket.socket)}.get
    transport.is_closing.return_value = False
    connection.connection_made(transport)
    connection.data_received(ASKED)
    await asyncio.sleep(0)
    return connection, lambda: connection.connection_lost(None)
