"""Run one client in its own process: measure the task that each input line names, and print its
cost.

    python -m bench.worker CLIENT BASE_URL WIRE

A line is ``{"case": NAME, "seconds": S}``; the answer is ``{"cost": CPU seconds of one unit}`` or
``{"error": WHY}``.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

CLIENTS = {
    "floor": "bench.floors:Aiohttp",
    "raw": "bench.floors:Raw",
    "dragoman": "bench.ours:Ours",
    "openai": "bench.peers:OpenAI",
    "anthropic": "bench.peers:Anthropic",
    "litellm": "bench.peers:LiteLLM",
    "any-llm": "bench.peers:AnyLLM",
    "pydantic-ai": "bench.peers:PydanticAI",
    "langchain": "bench.peers:LangChain",
    "tensorzero": "bench.peers:TensorZero",
}
CHUNKS = 500
SECURE = "complete over TLS"
TLS = ("floor", "dragoman")  # the clients that are measured with TLS too


class Case(NamedTuple):
    """Define a task to measure, a preparation that is not measured, and the number of units of
    work.
    """

    work: Callable[[Any], Awaitable[Any]]
    prepare: Callable[[], Any] | None = None
    units: int = 1
    most: int = 400


# Keep each conversation after its call, so that freeing it is not measured with the next call.
_alive: deque[Any] = deque(maxlen=40)


class Growing:
    """Hold a conversation that grows by one turn with each request."""

    def __init__(self, client: Any, size: int) -> None:
        self.client = client
        self.messages = client.conversation(size)

    def prepare(self) -> Any:
        self.messages = [
            *self.messages,
            self.client.say(1, "y" * 500),
            self.client.say(0, "y" * 500),
        ]
        return self.messages


def cases(client: Any, secure: Any = None) -> dict[str, Case]:
    """Return the cases to measure with a client; ``secure`` is the same client, connected over
    TLS.
    """
    short = client.conversation(1)
    grown = Growing(client, 1000)

    async def many(_: Any) -> None:
        await asyncio.gather(*[client.complete("text", short) for _ in range(64)])

    async def stream(path: str) -> None:
        count = await client.stream(path, short)
        assert count == CHUNKS, count

    known = {
        "complete, text": Case(lambda _: client.complete("text", short)),
        "complete, tool call": Case(lambda _: client.complete("tool", short, tools=True)),
        "complete, 64 at once": Case(many, units=64, most=8),
        "stream, a chunk, coalesced": Case(lambda _: stream("burst"), units=CHUNKS, most=20),
        "stream, a chunk, one per write": Case(lambda _: stream("paced"), units=CHUNKS, most=1),
        "history of 100 messages": Case(
            lambda messages: client.complete("text", messages),
            lambda: client.conversation(100),
            most=100,
        ),
        "history of 1,000 messages": Case(
            lambda messages: client.complete("text", messages),
            lambda: client.conversation(1000),
            most=30,
        ),
        "history of 1,000, one turn more": Case(
            lambda messages: client.complete("text", messages), grown.prepare, most=20
        ),
    }
    if secure is not None:
        known[SECURE] = Case(lambda _: secure.complete("text", short))
    return known


async def measure(case: Case, seconds: float) -> float:
    """Return the CPU seconds of one unit, measured over about ``seconds``."""
    await _once(case)  # warm up connections, caches and bytecode
    guess = await _once(case)
    times = max(1, min(case.most, int(seconds / max(guess, 1e-6))))
    gc.collect()
    if case.prepare is None:
        began = time.process_time()
        for _ in range(times):
            await case.work(None)
        spent = time.process_time() - began
    else:
        spent = sum([await _once(case) for _ in range(times)])
    return spent / times / case.units


async def _once(case: Case) -> float:
    given = case.prepare() if case.prepare is not None else None
    _alive.append(given)
    began = time.process_time()
    await case.work(given)
    return time.process_time() - began


async def main(name: str, base: str, wire: str) -> None:
    module, _, kind = CLIENTS[name].partition(":")
    make = getattr(importlib.import_module(module), kind)
    client = make(base, wire)
    secure = (
        make(os.environ["BENCH_TLS"].split()[0], wire, os.environ["BENCH_TLS"].split()[1])
        if name in TLS
        else None
    )
    known = cases(client, secure)
    print(json.dumps({"ready": sorted(known)}), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        try:
            answer: dict[str, Any] = {
                "cost": await measure(known[asked["case"]], asked["seconds"])
            }
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(answer), flush=True)
    await client.close()
    if secure is not None:
        await secure.close()


if __name__ == "__main__":
    run: Any = asyncio.run
    if os.environ.get("BENCH_UVLOOP"):
        import uvloop  # only this option needs it, and peers' environments do not have it

        run = uvloop.run
    run(main(*sys.argv[1:4]))
