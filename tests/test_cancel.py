"""Every cancel: a stream cancelled at each of its events, over a real socket, ends well and leaves nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import dragoman
from dragoman import MessageComplete, Request, ToolUseEnd, ToolUseStart, check_events, connect
from dragoman.wire import CODECS

from .server import Connection, serve
from .wire.cases import Case, find_cases, open_decoder

STREAMS = [case for wire in CODECS for case in find_cases(wire, "reply.sse")]
WHOLE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))


def events_of(case: Case) -> int:
    """How many events a stream has before its last one, as long as it is not over."""
    decoder = open_decoder(case.codec(), msgspec.structs.replace(case.request, stream=True))
    events = decoder.feed(case.reply or b"")
    return sum(not isinstance(event, MessageComplete) for event in events)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", STREAMS, ids=str)
async def test_cancel_at_every_event(case: Case, count: Callable[[str, int], None]) -> None:
    """Cancelled while the first byte is awaited, and after each event; the server never ends the stream itself."""
    silent = asyncio.Event()

    async def handler(connection: Connection) -> None:
        connection.begin_stream()
        if not silent.is_set():
            connection.chunk(case.reply or b"")
        await connection.writer.drain()
        await asyncio.Event().wait()

    async with serve(handler) as server:
        options = case.options
        settings: dict[str, Any] = {"quirks": options.quirks, "capabilities": options.capabilities}
        limits = {"idle": 5.0, "total": 20.0}
        async with connect("m", wire=case.wire, base_url=server.url, timeouts=limits, **settings) as model:
            request = msgspec.structs.replace(case.request, stream=True)
            tasks = asyncio.all_tasks()
            total = events_of(case)
            for at in range(1 + total)[: None if WHOLE else 8]:
                silent.set() if at == 0 else silent.clear()
                server.closed.clear()
                events = await _cancel_at(model, request, at)
                _check(events, at)
                await asyncio.wait_for(server.closed.wait(), 5)
                assert server.open == 0
                count("streams cancelled over a socket", 1)
            # The server of the test runs in the same loop; its tasks are its own.
            assert [task for task in asyncio.all_tasks() - tasks if "/tests/" not in repr(task)] == []


async def _cancel_at(model: dragoman.Provider, request: Request, at: int) -> list[Any]:
    """Read ``at`` events, cancel, and read to the end; at 0 from another task, while this one waits."""
    stream = dragoman.EventStream(model, msgspec.structs.replace(request, request_id=f"r{at}"))
    events: list[Any] = []
    async with asyncio.TaskGroup() as group:
        if at == 0:
            group.create_task(_cancel_soon(stream))
        async for event in stream:
            events.append(event)
            if len(events) == at:
                assert await stream.cancel(), "it had not ended"
                assert not await stream.cancel(), "once is enough"
    return events


async def _cancel_soon(stream: dragoman.EventStream) -> None:
    await asyncio.sleep(0.001)
    assert await stream.cancel()


def _check(events: list[Any], at: int) -> None:
    check_events(events)
    assert [type(event) for event in events].count(MessageComplete) == 1
    assert events[-1].finish_reason == "cancelled"
    starts = sum(isinstance(event, ToolUseStart) for event in events)
    ends = [event for event in events if isinstance(event, ToolUseEnd)]
    assert len(ends) == starts
    assert len(events) <= at + starts + 2, "nothing is said after the cancel but what closes the message"
