"""Every cancel: a stream cancelled at each of its events, over a real socket, ends well and leaves nothing."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec
import pytest

import dragoman
from dragoman import MessageComplete, ProviderError, Request, ToolUseEnd, ToolUseStart, check_events, connect
from dragoman.wire import CODECS

from .server import Connection, serve
from .wire.cases import Case, find_cases, open_decoder

STREAMS = [case for wire in CODECS for case in find_cases(wire, "reply.sse")]
WHOLE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))


def said_by(case: Case) -> int:
    """How many events a stream has that is not over yet, and one for before the first."""
    decoder = open_decoder(case.codec(), msgspec.structs.replace(case.request, stream=True))
    events = decoder.feed(case.reply or b"")
    return 1 + sum(not isinstance(event, MessageComplete) for event in events)


async def held(connection: Connection, frames: bytes) -> None:
    """Say everything, and then keep the stream open."""
    connection.begin_stream()
    connection.chunk(frames)
    await connection.writer.drain()
    await asyncio.Event().wait()


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", STREAMS, ids=str)
async def test_cancel_at_every_event(case: Case) -> None:
    frames = case.reply or b""

    async def handler(connection: Connection) -> None:
        await held(connection, frames)

    async with serve(handler) as server:
        settings: dict[str, Any] = {"wire": case.wire, "base_url": server.url, "quirks": case.options.quirks}
        async with connect("m", timeouts={"idle": 5.0, "total": 20.0}, **settings) as model:
            request = msgspec.structs.replace(case.request, stream=True)
            tasks = asyncio.all_tasks()
            for at in range(said_by(case)):
                events, ended = await _cancel_at(model, request, at, server)
                check_events(events)
                if ended:
                    break
                assert [type(event) for event in events].count(MessageComplete) == 1
                assert events[-1].finish_reason == "cancelled"
                starts = sum(isinstance(event, ToolUseStart) for event in events)
                ends = [event for event in events if isinstance(event, ToolUseEnd)]
                assert len(ends) == starts
                if not WHOLE and at >= 8:
                    break
            # The server of the test runs in the same loop; its tasks are its own.
            assert [task for task in asyncio.all_tasks() - tasks if "/tests/" not in repr(task)] == []


async def _cancel_at(model: dragoman.Provider, request: Request, at: int, server: Any) -> tuple[list[Any], bool]:
    """Read ``at`` events, cancel from another task if the next one is awaited, and read to the end."""
    server.closed.clear()
    stream = dragoman.EventStream(model, msgspec.structs.replace(request, request_id=f"r{at}"))
    events: list[Any] = []
    async with asyncio.TaskGroup() as group:
        if at == 0:
            group.create_task(_cancel_soon(stream))
        ended = await _read(stream, events, at)
    if ended or events[-1].finish_reason != "cancelled":
        return events, True
    # 0.1 s is what is promised, and what an idle machine keeps by far.
    await asyncio.wait_for(server.closed.wait(), 1.0)
    assert server.open == 0
    return events, False


async def _cancel_soon(stream: dragoman.EventStream) -> None:
    await asyncio.sleep(0.001)
    await stream.cancel()


async def _read(stream: dragoman.EventStream, events: list[Any], at: int) -> bool:
    """Read to the end, cancelling after ``at`` events; tell whether the stream had ended by itself."""
    try:
        async for event in stream:
            events.append(event)
            if len(events) == at and (isinstance(event, MessageComplete) or not await stream.cancel()):
                return True
    except ProviderError:
        return True
    return False


def test_there_are_streams_to_cancel(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{len(STREAMS)} streamed cases, each cancelled at {'every' if WHOLE else 'up to 8'} event(s)")
    assert STREAMS
