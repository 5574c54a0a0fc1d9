"""``python -m bench.judges``: what a guard adds to a call and to a chunk of a stream, in CPU time.

The model's server is a fixture in this process, so that only the library is measured. A judge
behind HTTP adds the time until its reply to every stage, and about the CPU of a call.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from dragoman import Guard, Provider, connect
from dragoman.middleware.guard import Action, Rules, Subject
from dragoman.transport import FixtureTransport

CHUNKS = 200
TIMES = 60
ROUNDS = 7
CALL = [b'{"choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}']
STREAM = [
    *[b'data: {"choices":[{"delta":{"content":"eleven or so"}}]}\n\n'] * CHUNKS,
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
]
RULES = Rules(
    [
        {"code": "key", "pattern": r"\bsk-[A-Za-z0-9]{20,}"},
        {"code": "card", "pattern": r"\b(?:\d[ -]?){13,16}\b"},
    ]
)
STREAMED = ("text", "intent")


async def allow(subject: Subject) -> Action:
    return "allow"


def allow_in_a_thread(subject: Subject) -> Action:
    return "allow"


STACKS: dict[str, Callable[[Provider], Provider]] = {
    "no guard": lambda model: model,
    "a coroutine function, everything": lambda model: Guard(model, allow),
    "a plain function, everything": lambda model: Guard(model, allow_in_a_thread),
    "two patterns, everything": lambda model: Guard(model, RULES),
    "a coroutine function, streamed": lambda model: Guard(model, allow, on=STREAMED),
    "two patterns, streamed": lambda model: Guard(model, RULES, on=STREAMED),
}


async def measure(
    work: Callable[[Provider], Awaitable[Any]], body: list[bytes], around: Any
) -> float:
    """Return the CPU microseconds of a call, the median of several rounds."""
    found: list[float] = []
    for _ in range(ROUNDS):
        transport = FixtureTransport(*[(200, {}, list(body)) for _ in range(TIMES)])
        model = around(connect("m", base_url="http://x.test/v1", transport=transport))
        began = time.process_time()
        for _ in range(TIMES):
            await work(model)
        found.append((time.process_time() - began) / TIMES * 1e6)
    return statistics.median(found)


async def call(model: Provider) -> None:
    await model.complete("Hi")


async def stream(model: Provider) -> None:
    async for _ in model.stream("Hi").text():
        pass


async def main() -> None:
    print(f"{'guard':36} {'a call, us':>10} {'a chunk, us':>11}")
    for name, around in STACKS.items():
        whole = await measure(call, CALL, around)
        streamed = await measure(stream, STREAM, around)
        print(f"{name:36} {whole:>10.0f} {streamed / CHUNKS:>11.1f}")


if __name__ == "__main__":
    asyncio.run(main())
