"""Test that many calls with faults in every phase leak no sockets, tasks, timers or memory.

``make test`` makes three hundred calls; ``make test-exhaustive`` makes four million, about an hour
of work for one core, or as many as ``DRAGOMAN_SOAK_CALLS`` states.
"""

import asyncio
import contextlib
import gc
import os
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from dragoman import HttpTransport, ProviderError, Timeouts
from dragoman.transport import Transport
from dragoman.wire import HttpRequest

from ..waiting import until
from .raw import PATIENT, RawServer, listen

WHOLE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))
CALLS = int(os.environ.get("DRAGOMAN_SOAK_CALLS", "4000000")) if WHOLE else 300
WINDOW = 5_000 if WHOLE else 50  # calls between two measurements
AT_ONCE = 50
BODY = b'{"choices": []}' * 20
WHOLE_REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKS = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"5\r\nhello\r\n" * 20
    + b"0\r\n\r\n"
)

# Behaviour of the server by name: the bytes that it writes, and whether it then closes, waits or
# serves the next request.
SERVER: dict[str, tuple[bytes, str]] = {
    "whole": (WHOLE_REPLY, "on"),
    "chunks": (CHUNKS, "on"),
    "error": (b"HTTP/1.1 500 X\r\ncontent-length: 2\r\n\r\nno", "on"),
    "close": (WHOLE_REPLY.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1), "close"),
    "lying keep-alive": (WHOLE_REPLY, "close"),
    "nothing": (b"", "close"),
    "half a head": (WHOLE_REPLY[:20], "close"),
    "half a body": (WHOLE_REPLY[:-5], "close"),
    "half a chunk": (CHUNKS[:-30], "close"),
    "reset": (CHUNKS[:60], "abort"),
    "not HTTP": (b"nonsense\r\n\r\n", "wait"),
    "bad chunk": (CHUNKS[:60] + b"\r\nzz\r\n", "wait"),
    "more than asked": (WHOLE_REPLY + b"HTTP/1.1 200", "wait"),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\n" + BODY, "close"),
    "mute": (b"", "wait"),
    "stuck in the head": (WHOLE_REPLY[:30], "wait"),
    "stuck in the body": (CHUNKS[:70], "wait"),
}
CLIENT = ["read", "read", "read", "leave", "cancel", "drop"]


async def serve_by_name(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer in the way that the ``x-do`` header of the request names."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        data, after = SERVER[head.partition(b"x-do: ")[2].partition(b"\r\n")[0].decode()]
        writer.write(data)
        await writer.drain()
        if after == "abort":
            writer.transport.abort()
        elif after == "wait":
            await reader.read()
        if after != "on":
            return


async def cancel_later(scope: asyncio.Timeout, turns: int | None) -> None:
    """Cancel a call after some turns of the event loop, unless it has ended."""
    if turns is None:
        return
    for _ in range(turns):
        await asyncio.sleep(0)
    with contextlib.suppress(RuntimeError):
        scope.reschedule(0)


async def call_once(
    transport: Transport, url: str, dice: random.Random, counted: Counter[str]
) -> None:
    does = dice.choice(list(SERVER))
    way = dice.choice(CLIENT)
    stuck = does in ("mute", "stuck in the head", "stuck in the body")
    seconds = 0.02 if stuck else 20.0
    total = seconds if dice.random() < 0.5 else 20.0
    stream = dice.random() < 0.5
    limits = Timeouts(20.0, seconds, seconds, total if stream or not stuck else seconds)
    request = HttpRequest("POST", f"{url}/v1", {"x-do": does}, b"{}")
    exchange: Any = transport.send(request, {}, limits, stream=stream)
    cut = asyncio.timeout(None)
    turns = dice.randrange(15) if way == "cancel" else None
    cancelling = asyncio.ensure_future(cancel_later(cut, turns))
    try:
        async with cut:
            reply = await exchange.__aenter__()
            while await reply.receive() and way in ("read", "cancel"):
                reply.touch()
            if way == "drop":
                counted["dropped"] += 1
                return
            await exchange.__aexit__(None, None, None)
    except ProviderError as error:
        counted[type(error).__name__] += 1
        await exchange.__aexit__(type(error), error, None)
    except TimeoutError as error:
        counted["cancelled"] += 1
        await exchange.__aexit__(type(error), error, None)
    else:
        counted["answered"] += 1
    finally:
        await cancelling


async def run_calls(
    transport: Transport, server: RawServer, count: int, dice: random.Random
) -> Counter[str]:
    counted: Counter[str] = Counter()
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call_once(transport, server.url, dice, counted)

    await asyncio.gather(*[work() for _ in range(AT_ONCE)])
    return counted


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


class Sample(NamedTuple):
    """What the process holds while no call runs, without what belongs to idle connections."""

    memory: int
    objects: int
    files: int
    tasks: int


# How much the mean of the last third of the samples may exceed that of the first third. Idle
# connections have objects too, and their number varies.
GROWTH = Sample(4_000_000 if WHOLE else 200_000, 3000, 2, 2)


def measure(idle: int) -> Sample:
    """Measure the bytes that Python has allocated; in a long run, which tracing would slow down,
    the memory of the process.
    """
    gc.collect()
    traced = tracemalloc.get_traced_memory()[0]
    memory = int(psutil.Process().memory_info().rss) if WHOLE else traced
    # both ends of a connection are in this process, and the server has a task for each
    files = open_files() - 2 * idle
    tasks = len(asyncio.all_tasks()) - idle
    return Sample(memory, len(gc.get_objects()), files, tasks)


async def soak(
    transport: HttpTransport, server: RawServer, dice: random.Random
) -> tuple[Counter[str], list[Sample]]:
    counted = Counter[str]()
    samples = list[Sample]()
    pool = transport.open_pool()
    for _ in range(max(6, CALLS // WINDOW)):
        counted += await run_calls(transport, server, WINDOW, dice)
        await until(lambda: pool.sizes[0] == pool.sizes[1], "connections that are drained")
        assert pool.sizes[1] <= AT_ONCE
        assert pool.streams == 0
        await until(lambda: server.open <= pool.sizes[1], "connections that are not idle to close")
        samples.append(measure(pool.sizes[1]))
    return counted, samples


@pytest.mark.exhaustive
@pytest.mark.usefixtures("virtual_time")
@pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="counts open files as Linux lists them"
)
async def test_many_calls_leak_no_memory_tasks_or_sockets(
    count: Callable[[str, int], None],
) -> None:
    dice = random.Random(7)
    files = open_files()
    tasks = len(asyncio.all_tasks())
    transport = HttpTransport()
    async with listen(serve_by_name) as server:
        # Warm up, so that everything that is created only once exists.
        await run_calls(transport, server, 10_000 if WHOLE else 200, dice)
        if not WHOLE:
            tracemalloc.start()
        try:
            counted, samples = await soak(transport, server, dice)
        finally:
            tracemalloc.stop()
        third = len(samples) // 3
        first, last = [
            Sample(*[sum(values) / third for values in zip(*part, strict=True)])  # type: ignore[arg-type]
            for part in (samples[:third], samples[-third:])
        ]
        print(f"{sum(counted.values())} calls: {first} -> {last}")
        grown = Sample(*[after - before for before, after in zip(first, last, strict=True)])
        assert all(got <= most for got, most in zip(grown, GROWTH, strict=True)), grown
        await transport.close()
        await until(lambda: not server.open, "every connection to close")
    # All timers of calls must be cancelled. Asyncio has no public list of timers, and removes
    # cancelled ones only when there are many.
    scheduled = [each for each in asyncio.get_running_loop()._scheduled if not each.cancelled()]  # type: ignore[attr-defined]  # noqa: SLF001
    assert [each for each in scheduled if "dragoman" in repr(each)] == []
    assert len(asyncio.all_tasks()) <= tasks
    assert open_files() <= files
    for outcome, number in counted.items():
        count(f"calls of a soak: {outcome}", number)
    assert set(counted) == {
        "answered", "cancelled", "dropped",
        "NetworkError", "StreamInterruptedError", "InvalidResponseError", "TimedOutError",
    }  # fmt: skip
    assert sum(counted.values()) == WINDOW * len(samples)


STREAMS = 5_000 if WHOLE else 400


@pytest.mark.exhaustive
async def test_concurrent_streams_do_not_mix_their_bytes(transport: HttpTransport) -> None:
    """Many streams are open at once, and each receives only its own bytes."""
    everyone = asyncio.Event()
    here = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal here
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        here += 1
        if here == STREAMS:
            everyone.set()
        await everyone.wait()
        name = head.partition(b"x-do: ")[2].partition(b"\r\n")[0]
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(3):
            writer.write(b"%x\r\n%b\r\n" % (len(name), name))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def read(number: int) -> bytes:
        request = HttpRequest("POST", f"{server.url}/v1", {"x-do": f"[{number}]"}, b"{}")
        async with transport.send(request, {}, PATIENT, stream=True) as reply:
            pieces = []
            while piece := await reply.receive():
                pieces.append(piece)
            return b"".join(pieces)

    async with listen(handler, backlog=1000) as server:
        replies = await asyncio.gather(*[read(number) for number in range(STREAMS)])
    assert replies == [f"[{number}]".encode() * 3 for number in range(STREAMS)]
