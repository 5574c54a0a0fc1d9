"""Embed 100,000 short texts: CPU time and memory of Dragoman, the openai client and LiteLLM,
against the same server.

    python -m bench.embed [--texts 100000] [--dimensions 64] [--docs]

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
from datetime import date
from pathlib import Path
from typing import Any

from . import report
from .environments import prepare, version

BATCH = 2048
_SERVER = """
import sys
from dragoman.sim import ScriptedProvider, SimServer, SimulatedEmbedder
server = SimServer(ScriptedProvider("Hi."), embedder=SimulatedEmbedder(dimensions=int(sys.argv[1])))
print(server.url, flush=True)
sys.stdin.read()
"""


def make_texts(count: int) -> list[str]:
    """Return short texts that all differ."""
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


async def run_ours_in_batches(url: str, texts: list[str]) -> int:
    """Embed the texts without keeping the vectors, like a program that writes them to disk."""
    from dragoman import connect_embedder

    quirks = {"encoding_format": "base64"}
    count = 0
    async with connect_embedder(
        "sim", base_url=f"{url}/v1", quirks=quirks, keep_raw=False
    ) as embedder:
        async for part in embedder.embed_batches(iter(texts)):
            count += len(part.vectors)
    return count


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


CLIENTS = {
    "ours": run_ours,
    "ours, embed_batches": run_ours_in_batches,
    "openai": run_openai,
    "litellm": run_litellm,
}


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
    parser.add_argument("--docs", action="store_true", help="renew the table of the page")
    parser.add_argument("--work", nargs=2, metavar=("CLIENT", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work[0], options.work[1], options.texts)
        return
    found = measure(options.texts, options.dimensions)
    table = write_table(found, options.texts, options.dimensions)
    print(table)
    if options.docs:
        page = Path(__file__).parent / "README.md"
        report.renew(page, table, "python -m bench.embed")


def measure(texts: int, dimensions: int) -> dict[str, dict[str, Any]]:
    """Run each client against one server; return the CPU time and memory of each client, or a
    ``problem`` if the client cannot be installed.
    """
    command = [sys.executable, "-c", _SERVER, str(dimensions)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    found: dict[str, dict[str, Any]] = {}
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        for client in CLIENTS:
            python, problem = (
                (sys.executable, None) if client.startswith("ours") else prepare(client)
            )
            if python is None:
                found[client] = {"problem": problem}
                continue
            done = subprocess.run(
                [python, "-m", "bench.embed", "--work", client, url, "--texts", str(texts)],
                capture_output=True,
                text=True,
                cwd=Path(__file__).parents[1],
            )
            lines = done.stdout.splitlines()  # a library may print lines of its own
            if done.returncode or not lines:
                found[client] = {"problem": done.stderr[-500:]}
                continue
            name = "dragoman" if client.startswith("ours") else version(python, client)
            found[client] = {**json.loads(lines[-1]), "version": name}
    finally:
        server.kill()
        server.communicate()
    return found


def write_table(found: dict[str, dict[str, Any]], texts: int, dimensions: int) -> str:
    """Return the results as a table in Markdown."""
    ours = found["ours"]["cpu_seconds"]
    vectors = texts * dimensions * 4 / 2**20
    lines = [
        f"The table was measured on {date.today().isoformat()} with {texts:,} texts in requests of {BATCH:,}"
        f" texts, and with vectors of {dimensions} numbers ({vectors:.0f} MiB as float32):",
        "",
        "| client | CPU seconds | compared with ours | growth of memory, MiB |",
        "|---|---|---|---|",
    ]
    for client, row in found.items():
        if "problem" in row:
            lines.append(f"| {client} | left out: {row['problem']} | | |")
            continue
        name = client if client.startswith("ours") else f"{client} {row['version']}"
        cpu = row["cpu_seconds"]
        lines.append(f"| {name} | {cpu:.2f} | {cpu / ours:.1f}× | {row['growth_mib']:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
