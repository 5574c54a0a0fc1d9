"""A client with a key is served while others attack the connection layer of ``dragoman serve``.

The hostile clients, the gateway and the measuring client are separate processes. By default all
kinds run together with a few connections each; ``DRAGOMAN_EXHAUSTIVE=1`` runs each kind with 200
connections. ``pytest -s`` shows the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.gateway.test_serve import KEY, running, write_config, write_keys
from tests.server import DONE, Connection, chunk, completion, serve

from .strangers import kinds

DATA = json.dumps({"model": "fast", "messages": [{"role": "user", "content": "Hi"}]}).encode()
CALL = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: "
    b"application/json\r\nconnection: close\r\nauthorization: Bearer "
    + KEY.encode()
    + b"\r\ncontent-length: %d\r\n\r\n" % len(DATA)
    + DATA
)
MIB = 1024 * 1024
# Each entry: kind of attack, number of connections, seconds, and the measured percentile: the
# median of a short run, the 99th percentile of a long run.
ATTACKS: list[tuple[str, int, float, float]] = (
    [(kind, 200, 10, 0.99) for kind in kinds("")]
    if os.environ.get("DRAGOMAN_EXHAUSTIVE")
    else [("each", 5, 2, 0.5)]
)


async def measure(url: str, seconds: float) -> list[float]:
    """Call the gateway repeatedly for a number of seconds, each time over a new connection; return
    the sorted durations.
    """
    port, took = int(url.rpartition(":")[2]), []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CALL)
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        took.append(time.perf_counter() - began)
    return sorted(took)


@contextlib.asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[tuple[str, psutil.Process]]:
    async def handler(connection: Connection) -> None:
        if b"A long text" not in connection.seen.body:
            connection.reply(200, completion())
            return
        link = connection.writer.get_extra_info("socket")
        # A larger socket buffer would accept all 4 MB at once.
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        connection.begin_stream()
        for _ in range(200):  # send 4 MB as fast as the gateway reads
            connection.chunk(chunk("x" * 20_000))
            await connection.writer.drain()
        connection.chunk(chunk(None, "stop") + DONE)
        connection.end_stream()

    async with serve(handler) as upstream:
        config, keys = write_config(folder, upstream.url), write_keys(folder)
        options = ["--config", config, "--model", "fast=up:m", "--auth", keys, "--no-access-log"]
        async with running(*options) as (url, process):
            yield url, psutil.Process(process.pid)


@contextlib.asynccontextmanager
async def attacked(kind: str, url: str, number: int) -> AsyncIterator[None]:
    command = [
        sys.executable,
        "-m",
        "tests.attacks.strangers",
        kind,
        url.rpartition(":")[2],
        str(number),
        KEY,
    ]
    hostile = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert hostile.stdout is not None
        await hostile.stdout.readline()
        yield
    finally:
        hostile.kill()
        await hostile.wait()


class Figures(NamedTuple):
    """The latency of calls at one percentile, without and during the attack, in seconds; and the
    peak memory in MiB.
    """

    calm: float
    attacked: float
    memory: float


async def attack(kind: str, folder: Path, number: int, seconds: float, share: float) -> Figures:
    async with gateway(folder) as (url, process):
        await measure(url, 0.3)
        calm = await measure(url, seconds)
        memory = 0.0

        async def watch() -> None:
            nonlocal memory
            while True:
                memory = max(memory, process.memory_info().rss / MIB)
                await asyncio.sleep(0.05)

        watching = asyncio.ensure_future(watch())
        async with attacked(kind, url, number):
            await asyncio.sleep(min(1.0, seconds))
            busy = await measure(url, seconds)
        watching.cancel()
    figures = Figures(calm[int(len(calm) * share)], busy[int(len(busy) * share)], memory)
    print(
        f"{kind:30} {number:4} connections: {1000 * figures.calm:6.1f} -> "
        f"{1000 * figures.attacked:6.1f} ms (x{figures.attacked / figures.calm:.1f}, {len(busy)} "
        f"calls), {memory:.0f} MiB"
    )
    return figures


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "number", "seconds", "share"), ATTACKS)
async def test_client_with_a_key_is_served_during_a_flood_without_keys(
    kind: str, number: int, seconds: float, share: float, tmp_path: Path
) -> None:
    figures = await attack(kind, tmp_path, number, seconds, share)
    assert figures.attacked < 10 * figures.calm
    assert figures.memory < 200
