"""A client with a key is served while others attack the connection layer of ``dragoman serve``.

The hostile clients, the gateway and the measuring client are separate processes. By default all
kinds run together with a few connections each; ``DRAGOMAN_EXHAUSTIVE=1`` runs each kind with 200
connections. ``pytest -s`` shows the figures.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tests.gateway.test_serve import KEY, running, write_config, write_keys
from tests.server import DONE, Connection, chunk, completion, serve

from ..waiting import arrival, until
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
WHOLE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))
# Each entry: kind of attack, number of connections, and number of calls during the attack.
ATTACKS = [(kind, 200, 2000) for kind in kinds("")] if WHOLE else [("each", 2, 20)]


async def measure(url: str, process: psutil.Process, calls: int) -> tuple[float, float]:
    """Call the gateway a number of times, each time over a new connection; return the 99th
    percentile of the durations, and the peak memory in MiB.
    """
    port = int(url.rpartition(":")[2])
    took = []
    memory = 0.0
    for _ in range(calls):
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CALL)
        answer = await arrival(reader.read(), "the reply of the gateway")
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        took.append(time.perf_counter() - began)
        memory = max(memory, process.memory_info().rss / MIB)
    return sorted(took)[int(len(took) * 0.99)], memory


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
        config = write_config(folder, upstream.url)
        keys = write_keys(folder)
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


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "number", "calls"), ATTACKS)
async def test_client_with_a_key_is_served_during_a_flood_without_keys(
    kind: str, number: int, calls: int, tmp_path: Path
) -> None:
    """Every call is answered, and the memory of the gateway is limited. The full run also compares
    how long calls take, which needs an idle machine.
    """
    async with gateway(tmp_path) as (url, process):
        await measure(url, process, 5)
        calm, _ = await measure(url, process, calls)
        files = process.num_fds()
        async with attacked(kind, url, number):
            await until(lambda: process.num_fds() > files, "the first hostile connection")
            busy, memory = await measure(url, process, calls)
    print(
        f"{kind:30} {number:4} connections: {1000 * calm:6.1f} -> {1000 * busy:6.1f} ms "
        f"(x{busy / calm:.1f}, {calls} calls), {memory:.0f} MiB"
    )
    assert memory < 200
    assert not WHOLE or busy < 10 * calm
