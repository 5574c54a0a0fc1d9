"""Virtual time skips waits, in order, and lets sockets and executors finish first."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.server import Connection, serve
from tests.waiting import settle, virtual_time


async def test_virtual_time_passes_timers_in_their_order() -> None:
    order: list[str] = []

    async def rest(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append(name)

    loop = asyncio.get_running_loop()
    began = loop.time()
    with virtual_time():
        await asyncio.gather(rest("day", 86400), rest("minute", 60), rest("hour", 3600))
    assert order == ["minute", "hour", "day"]
    assert loop.time() - began >= 86400
    with virtual_time(), pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await asyncio.Event().wait()


async def test_virtual_time_does_not_overtake_bytes_in_sockets() -> None:
    async def slow(connection: Connection) -> None:
        for _ in range(20):
            await asyncio.sleep(50)
            connection.send(b"x")
        connection.writer.close()

    with virtual_time():
        async with serve(slow) as server:
            host, port = server.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\ncontent-length: 0\r\n\r\n")
            for _ in range(20):
                assert await asyncio.wait_for(reader.readexactly(1), 60) == b"x"
            writer.close()


async def test_virtual_time_waits_for_jobs_of_an_executor() -> None:
    go = threading.Event()
    loop = asyncio.get_running_loop()
    with virtual_time():
        job = loop.run_in_executor(None, go.wait)
        threading.Timer(0.05, go.set).start()
        assert await asyncio.wait_for(job, 3600)


async def test_settle_returns_when_every_task_waits() -> None:
    steps: list[int] = []

    async def work() -> None:
        for step in range(100):
            await asyncio.sleep(0)
            steps.append(step)
        await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await settle()
    assert len(steps) == 100
    task.cancel()
