"""Every cancel: a stream cancelled at each of its events, over a real socket, ends well and leaves nothing."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dragoman
from dragoman import MessageComplete, ProviderError, Request, ToolUseEnd, ToolUseStart, User, check_events, connect
from dragoman.wire import CODECS

from .server import Connection, serve

CASES = Path(dragoman.__file__).parent / "conformance" / "cases"
STREAMS = sorted(path for wire in CODECS for path in (CASES / wire).glob("*.reply.sse"))
WHOLE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))


def request_of(path: Path) -> tuple[Request, dict[str, Any]]:
    stem = path.name.removesuffix(".reply.sse")
    asked, options = path.with_name(f"{stem}.request.json"), path.with_name(f"{stem}.options.json")
    request = msgspec.json.decode(asked.read_bytes(), type=Request) if asked.exists() else Request([User("Hi")])
    return request, msgspec.json.decode(options.read_bytes()) if options.exists() else {}


async def held(connection: Connection, frames: bytes) -> None:
    """Say everything, and then keep the stream open."""
    connection.begin_stream()
    connection.chunk(frames)
    await connection.writer.drain()
    await asyncio.Event().wait()


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", STREAMS, ids=lambda path: f"{path.parent.name}/{path.name.split('.')[0]}")
async def test_cancel_at_every_event(path: Path) -> None:
    request, options = request_of(path)
    frames = path.read_bytes()

    async def handler(connection: Connection) -> None:
        await held(connection, frames)

    wire = path.parent.name
    async with serve(handler) as server:
        settings = {"wire": wire, "base_url": server.url, "quirks": options.get("quirks")}
        async with connect("m", timeouts={"idle": 5.0, "total": 20.0}, **settings) as model:
            request = msgspec.structs.replace(request, stream=True)
            tasks = asyncio.all_tasks()
            for at in itertools.count():
                events, ended = await _cancel_at(model, request, at, server)
                check_events(events)
                if ended:
                    break
                assert [type(event) for event in events].count(MessageComplete) == 1
                assert events[-1].finish_reason == "cancelled"
                starts = sum(isinstance(event, ToolUseStart) for event in events)
                ends = [event for event in events if isinstance(event, ToolUseEnd)]
                assert len(ends) == starts
                if not WHOLE and at >= 12:
                    break
            left = {task for task in asyncio.all_tasks() - tasks if "connected" not in repr(task)}
            assert left <= {asyncio.current_task()}


async def _cancel_at(model: dragoman.Provider, request: Request, at: int, server: Any) -> tuple[list[Any], bool]:
    """Read ``at`` events, cancel from another task if the next one is awaited, and read to the end."""
    server.closed.clear()
    stream = dragoman.EventStream(model, msgspec.structs.replace(request, request_id=f"r{at}"))
    events: list[Any] = []
    try:
        if at == 0:
            asyncio.get_running_loop().call_later(0.001, lambda: asyncio.ensure_future(stream.cancel()))
        async for event in stream:
            events.append(event)
            if len(events) == at and (isinstance(event, MessageComplete) or not await stream.cancel()):
                return events, True
    except ProviderError:
        return events, True
    if events[-1].finish_reason != "cancelled":
        return events, True
    await asyncio.wait_for(server.closed.wait(), 0.1)
    assert server.open == 0
    return events, False


def test_there_are_streams_to_cancel(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{len(STREAMS)} streamed cases, each cancelled at {'every' if WHOLE else 'up to 12'} event(s)")
    assert STREAMS
