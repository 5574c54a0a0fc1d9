"""``make bench``: CPU time of ours over the hand-written floor, interleaved, as ratios."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from . import server
from .clients import Floor, Ours

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))


async def _cpu(work: Callable[[], Awaitable[Any]], times: int) -> float:
    gc.collect()
    began = time.process_time()
    for _ in range(times):
        await work()
    return (time.process_time() - began) / times


def _cases(client: Any) -> dict[str, tuple[Callable[[], Awaitable[Any]], int, int]]:
    """Each case: what to do, how often in a round, and by how much a run is divided."""
    short, hundred, thousand = (client.conversation(size) for size in (1, 100, 1000))

    async def many() -> None:
        await asyncio.gather(*[client.complete("text", short) for _ in range(64)])

    return {
        "complete, text": (lambda: client.complete("text", short), 200, 1),
        "complete, tool call": (lambda: client.complete("tool", short, tools=True), 200, 1),
        "complete, 64 at once": (many, 6, 64),
        "stream, a chunk, coalesced": (lambda: client.stream("burst", short), 20, server.CHUNKS),
        "stream, a chunk, one per write": (lambda: client.stream("paced", short), 8, server.CHUNKS),
        "history of 100 messages": (lambda: client.complete("text", hundred), 100, 1),
        "history of 1,000 messages": (lambda: client.complete("text", thousand), 30, 1),
    }


async def measure(base: str) -> dict[str, dict[str, float]]:
    clients = [Floor(base), Ours(base)]
    cases = {client.name: _cases(client) for client in clients}
    taken: dict[str, dict[str, list[float]]] = {}
    for round_ in range(ROUNDS + 1):
        for name in cases["floor"]:
            for client in clients if round_ % 2 else clients[::-1]:
                work, times, parts = cases[client.name][name]
                cost = await _cpu(work, times) / parts
                if round_:  # the first round warms up
                    taken.setdefault(name, {}).setdefault(client.name, []).append(cost)
    for client in clients:
        await client.close()
    return {
        name: {
            "floor_us": statistics.median(costs["floor"]) * 1e6,
            "ours_us": statistics.median(costs["dragoman"]) * 1e6,
            "ratio": statistics.median(
                [ours / floor for ours, floor in zip(costs["dragoman"], costs["floor"], strict=True)]
            ),
        }
        for name, costs in taken.items()
    }


def import_cost(statement: str) -> float:
    """CPU of importing something, over the bare interpreter, in milliseconds."""
    script = f"import time; t = time.process_time(); {statement}; print((time.process_time() - t) * 1000)"
    runs = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    return min(runs)


def memory_per_stream(base: str, *, keep_raw: bool, streams: int = 200) -> float:
    """Growth of resident memory for each of many 10,000-chunk streams held at once, in KiB."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.memory", base, str(streams), str(int(keep_raw))],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> None:
    with server.running() as base:
        results: dict[str, Any] = {"cpu": asyncio.run(measure(base))}
        results["import_ms"] = {name: import_cost(f"import {name}") for name in ("dragoman", "aiohttp")}
        results["memory_kib_per_stream"] = {
            "keep_raw": memory_per_stream(base, keep_raw=True),
            "keep_raw=False": memory_per_stream(base, keep_raw=False),
        }
    Path(__file__).with_name("results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(f"{'case':<34}{'floor':>10}{'ours':>10}{'ratio':>8}   (CPU µs; floor: aiohttp + msgspec by hand)")
    for name, row in results["cpu"].items():
        print(f"{name:<34}{row['floor_us']:>10.1f}{row['ours_us']:>10.1f}{row['ratio']:>7.2f}×")
    print("import, CPU ms:", {name: round(value) for name, value in results["import_ms"].items()})
    print("resident KiB per 10,000-chunk stream:", {k: round(v) for k, v in results["memory_kib_per_stream"].items()})


if __name__ == "__main__":
    main()
