"""Embed 100,000 short texts: CPU time and memory of Dragoman, the openai client and LiteLLM,
against the same server.

    python -m bench.embed [--texts 100000] [--dimensions 64]

The server is the simulator, in a process of its own. Each client also runs in its own process. It
sends batches of 2,048 texts, the wire's maximum, and requests base64, the default of the openai
client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .environments import prepare

BATCH = 2048
_SERVER = """
import sys
from dragoman.sim import ScriptedProvider, SimServer, SimulatedEmbedder
server = SimServer(ScriptedProvider("Hi."), embedder=SimulatedEmbedder(dimensions=int(sys.argv[1])))
print(server.url, flush=True)
sys.stdin.read()
"""


def make_texts(count: int) -> list[str]:
    """Return short texts, each different."""
    return [
        f"the quick brown fox number {number} jumps over the lazy dog" for number in range(count)
    ]


def _batches(texts: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(texts), BATCH):
        yield texts[start : start + BATCH]


async def run_ours(url: str, texts: list[str]) -> int:
    from dragoman import connect_embedder

    quirks = {"encoding_format": "base64"}
    async with connect_embedder(
        "sim", base_url=f"{url}/v1", quirks=quirks, keep_raw=False
    ) as embedder:
        found = await embedder.embed(texts)
    return len(found.vectors)


async def run_openai(url: str, texts: list[str]) -> int:
    import openai

    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0)
    rows: list[Any] = []
    for batch in _batches(texts):
        reply = await client.embeddings.create(model="sim", input=batch)
        rows += [item.embedding for item in reply.data]
    return len(rows)


async def run_litellm(url: str, texts: list[str]) -> int:
    import litellm

    rows: list[Any] = []
    for batch in _batches(texts):
        reply = await litellm.aembedding(
            model="openai/sim", input=batch, api_base=f"{url}/v1", api_key="key"
        )
        rows += [item["embedding"] for item in reply.data]
    return len(rows)


CLIENTS = {"ours": run_ours, "openai": run_openai, "litellm": run_litellm}


def work(client: str, url: str, count: int) -> None:
    """Embed all texts in this process, after one warm-up call, and print the CPU time and memory
    used.
    """
    texts = make_texts(count)
    run = CLIENTS[client]
    asyncio.run(run(url, texts[:100]))
    before = resource.getrusage(resource.RUSAGE_SELF)
    found = asyncio.run(run(url, texts))
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert found == count
    growth = (after.ru_maxrss - before.ru_maxrss) / 1024
    print(
        json.dumps(
            {"client": client, "cpu_seconds": round(cpu, 3), "growth_mib": round(growth, 1)}
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=64)
    parser.add_argument("--work", nargs=2, metavar=("CLIENT", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work[0], options.work[1], options.texts)
        return
    command = [sys.executable, "-c", _SERVER, str(options.dimensions)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        for client in CLIENTS:
            python: str | None = sys.executable
            if client != "ours":
                python, problem = prepare(client)
                if python is None:
                    print(problem)
                    continue
            client_command = [
                python,
                "-m",
                "bench.embed",
                "--work",
                client,
                url,
                "--texts",
                str(options.texts),
            ]
            done = subprocess.run(
                client_command, capture_output=True, text=True, cwd=Path(__file__).parents[1]
            )
            print(done.stdout.strip() or done.stderr[-500:])
    finally:
        server.kill()


if __name__ == "__main__":
    main()
