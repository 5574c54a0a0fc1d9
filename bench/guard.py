"""``python -m bench.guard``: fail if the cost of a call, a chunk or a long history exceeds its
limit.

The CPU time of Dragoman is divided by that of the floor, a minimal client written by hand. Both
run in turn in one process, so that a slow or busy machine slows both. The median ratio must stay
below a limit, which is well above the ratio that was measured when the limit was set.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from . import server
from .floors import Aiohttp
from .ours import Ours
from .worker import CHUNKS, Growing

# The maximum ratio of our cost to the floor's: 1.6 times the measured ratio, more where a busy
# machine adds noise. With a long history, the floor spends its time in the JSON encoder, which is
# compiled, and this package in Python, so the ratio depends on the processor: the same code had
# 1.1 on one machine and 3.5 on another. The limit finds work that grows faster than the history.
LIMITS = {
    "complete, text": 1.3,
    "complete, 64 at once": 1.4,
    "stream, a chunk": 2.2,
    "history of 1,000 messages": 6.0,
    "history of 1,000, one turn more": 6.0,
}
TURNS = 7
SECONDS = 0.02


def works(client: Any) -> dict[str, Callable[[], Awaitable[Any]]]:
    short = client.conversation(1)
    grown = Growing(client, 1000)

    async def many() -> None:
        await asyncio.gather(*[client.complete("text", short) for _ in range(64)])

    async def stream() -> None:
        assert await client.stream("burst", short) == CHUNKS

    return {
        "complete, text": lambda: client.complete("text", short),
        "complete, 64 at once": many,
        "stream, a chunk": stream,
        # Building the messages is not part of a client's work, and takes equally long for both
        # clients.
        "history of 1,000 messages": lambda: client.complete("text", client.conversation(1000)),
        "history of 1,000, one turn more": lambda: client.complete("text", grown.prepare()),
    }


async def cpu(work: Callable[[], Awaitable[Any]], times: int) -> float:
    gc.collect()
    began = time.process_time()
    for _ in range(times):
        await work()
    return (time.process_time() - began) / times


async def measure(base: str) -> dict[str, float]:
    floor = Aiohttp(base, "openai")
    ours = Ours(base, "openai")
    theirs = works(floor)
    mine = works(ours)
    ratios: dict[str, float] = {}
    for name, work in theirs.items():
        await cpu(mine[name], 3)
        times = max(1, min(100, int(SECONDS / await cpu(work, 3))))
        ratios[name] = statistics.median(
            [await cpu(mine[name], times) / await cpu(work, times) for _ in range(TURNS)]
        )
    await floor.close()
    await ours.close()
    return ratios


def main() -> None:
    with server.running() as base:
        ratios = asyncio.run(measure(base))
    for name, ratio in ratios.items():
        print(f"{name:<34}{ratio:>6.2f}×   at most {LIMITS[name]:.1f}×")
    lost = [name for name, ratio in ratios.items() if ratio > LIMITS[name]]
    if lost:
        sys.exit(f"much dearer than it was, beside the floor: {', '.join(lost)}")


if __name__ == "__main__":
    main()
