"""A call ends after the time that its caller has set."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import dragoman as d
from dragoman import connect

from .server import Connection, serve

pytestmark = pytest.mark.usefixtures("virtual_time")

CHUNK = b'data: {"choices": [{"delta": {"content": "The Rhine"}}]}\n\n'
BODY = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}


async def stall(connection: Connection) -> None:
    """Send the start of a stream, and then nothing until the client leaves."""
    connection.begin_stream()
    connection.chunk(CHUNK)
    await connection.writer.drain()
    await connection.writer.wait_closed()


async def read_into(events: list[d.Event], stream: d.EventStream[None]) -> None:
    async with stream:
        async for event in stream:
            events.append(event)


async def fail(connection: Connection) -> None:
    connection.reply(503, b"{}")


async def test_stream_fails_after_its_timeout_with_the_part_that_arrived() -> None:
    async with serve(stall) as server, connect("m", base_url=server.base_url) as model:
        events: list[d.Event] = []
        stream = model.stream("Name a river.", timeout=5)
        with pytest.raises(d.TimedOutError, match="its timeout of 5 s") as caught:
            await read_into(events, stream)
        d.check_events(events)
        await server.closed.wait()
    assert caught.value.which == "total"
    assert caught.value.transient
    partial = caught.value.response
    assert partial is not None
    assert partial.text == "The Rhine"
    assert partial.finish_reason == "error"
    assert partial.usage.estimated
    assert partial.usage.output_tokens


async def test_complete_fails_after_its_timeout() -> None:
    async def wait(connection: Connection) -> None:
        await connection.writer.wait_closed()

    async with serve(wait) as server, connect("m", base_url=server.base_url) as model:
        with pytest.raises(d.TimedOutError):
            await model.complete("Name a river.", timeout=5)


async def test_timeout_includes_the_waits_between_attempts() -> None:
    async with serve(fail) as server, connect("m", base_url=server.base_url) as model:
        robust = d.Retry(model, max_retries=5, backoff=lambda _: 60)
        with pytest.raises(d.TimedOutError):
            await robust.complete("Name a river.", timeout=5)
        assert len(server.requests) == 1


class Silent(d.Provider):
    name = "own"
    model = "m"

    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        await asyncio.Event().wait()
        yield d.MessageStart("", "", model="")

    async def ready(self) -> None: ...
    async def close(self) -> None: ...


async def test_timeout_works_for_every_provider() -> None:
    with pytest.raises(d.TimedOutError):
        await Silent().complete("Hi", timeout=5)


class Slow(Silent):
    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        raise TimeoutError("own")
        yield d.MessageStart("", "", "")


async def test_timeout_error_of_a_provider_is_not_that_of_the_call() -> None:
    with pytest.raises(TimeoutError, match="own"):
        await Slow().complete("Hi", timeout=60)


async def test_call_within_its_timeout_is_unchanged() -> None:
    async def answer(connection: Connection) -> None:
        connection.reply(200, json.dumps(BODY).encode())

    async with serve(answer) as server, connect("m", base_url=server.base_url) as model:
        assert (await model.complete("Hi", timeout=60)).text == "Hi"


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 10**400, "5", True])
async def test_timeout_must_be_a_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be a number of seconds above 0"):
        await connect("m", base_url="http://127.0.0.1:9/v1").complete("Hi", timeout=seconds)


def test_blocking_facade_has_the_timeout() -> None:
    model = d.sync.connect("m", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ValueError, match="timeout must be a number"), model:
        model.complete("Hi", timeout=-1)


async def test_outer_cancellation_is_not_a_timeout() -> None:
    task = asyncio.ensure_future(Silent().complete("Hi", timeout=60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
