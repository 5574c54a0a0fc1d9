"""Measure the gateway under load: CPU time per request with one worker and with two, and the
latency it adds at half load, compared with LiteLLM's proxy.

    python -m bench.fleet [--rounds N] [--seconds N] [--litellm PYTHON] [--docs]

On a shared machine, throughput depends on other programs, so scaling with the number of cores is
measured as CPU time: with two workers, a request must not cost more CPU time than with one. Half
load is a constant rate of requests, half of the rate that LiteLLM's proxy reaches with one core.
The servers get the same rate in turn. The best round of each server counts, because other
processes on the machine can only add latency. The latency of a direct call to the upstream is
subtracted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from . import environments, report, server
from .gateway import (
    ASKED,
    KEY,
    ROOT,
    _free_port,
    _wait_for,
    ask,
    cpu_of,
    hold_many,
    measure,
    serving,
)

LINEAR = 1.1  # maximum ratio of the CPU time per request of two workers to that of one
LOWER = 10  # minimum ratio of the p99 latency that LiteLLM's proxy adds to that of the gateway
CHEAPER = 40  # minimum ratio of the CPU time per request of LiteLLM's proxy to that of the gateway
KIB = 40  # maximum memory of an open stream, in KiB
DIRECT = "/text/v1/chat/completions"


@contextlib.contextmanager
def serving_workers(base: str, workers: int) -> Iterator[tuple[str, psutil.Process]]:
    """Run ``dragoman serve`` with a number of workers; yield its address and parent process."""
    with tempfile.TemporaryDirectory() as folder:
        adapter = {"type": "openai", "base_url": f"{base}/text/v1"}
        settings = {"adapters": {"up": adapter}, "models": {"up:bench-1": {"adapter": "up"}}}
        Path(folder, "models.yaml").write_text(json.dumps(settings))
        Path(folder, "keys.yaml").write_text(_write_keys())
        port = _free_port()
        command = [sys.executable, "-m", "dragoman", "serve", "--port", str(port)]
        command += ["--config", f"{folder}/models.yaml", "--model", "text=up:bench-1"]
        command += ["--auth", f"{folder}/keys.yaml", "--no-access-log"]
        child = subprocess.Popen(
            [*command, "--workers", str(workers)],
            env={**os.environ, "OPENAI_API_KEY": "x", "PYTHONPATH": str(ROOT / "src")},
            stderr=subprocess.DEVNULL,
        )
        first = psutil.Process(child.pid)
        try:
            _wait_for(port, child)
            asyncio.run(_warm(f"http://127.0.0.1:{port}"))
            yield f"http://127.0.0.1:{port}", first
        finally:
            family = [*first.children(recursive=True), first]
            child.terminate()
            _, alive = psutil.wait_procs(family, 15)
            for each in alive:
                each.kill()


def _write_keys() -> str:
    from dragoman.gateway.keys import hash_key

    return f"keys:\n  bench:\n    hash: {hash_key(KEY)}\n"


async def _warm(url: str) -> None:
    for _ in range(40):
        with contextlib.suppress(AssertionError, OSError):  # a worker may still be starting
            await asyncio.gather(*[ask(url, "text") for _ in range(8)])


def measure_workers(base: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the CPU time per request with one worker and with two, and how evenly two workers
    share the requests.
    """
    costs: dict[int, list[float]] = {1: [], 2: []}
    with serving_workers(base, 1) as one, serving_workers(base, 2) as two:
        before = _used_by_child(two[1])
        for _ in range(rounds):
            for workers, started in random.sample([(1, one), (2, two)], 2):
                cost, _ = asyncio.run(measure(*started, "complete", seconds))
                costs[workers].append(cost)
        after = _used_by_child(two[1])
    shares = sorted([after[pid] - before[pid] for pid in before], reverse=True)[:2]
    ratios = [two / one for one, two in zip(costs[1], costs[2], strict=True)]
    return {
        "1 worker, CPU µs a request": round(statistics.median(costs[1]) * 1e6),
        "2 workers, CPU µs a request": round(statistics.median(costs[2]) * 1e6),
        "CPU of a request, 2 workers / 1": round(statistics.median(ratios), 2),
        "smaller share of the work of 2 workers": round(min(shares) / sum(shares), 2),
    }


def _used_by_child(process: psutil.Process) -> dict[int, float]:
    return {each.pid: sum(each.cpu_times()[:2]) for each in process.children(recursive=True)}


async def measure_kept(url: str, process: psutil.Process, seconds: float) -> float:
    """Return the CPU seconds per request on four connections that stay open between requests."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = json.dumps({**ASKED, "model": "text"}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    head += "content-type: application/json\r\n"
    asked = f"{head}authorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n".encode()

    async def ask_often(until: float) -> int:
        reader, writer = await asyncio.open_connection(host, int(port))
        count = 0
        while time.perf_counter() < until:
            writer.write(asked + body)
            headers = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert headers.startswith(b"http/1.1 200"), headers
            length = headers.partition(b"content-length:")[2].partition(b"\r")[0]
            await reader.readexactly(int(length))
            count += 1
        writer.close()
        return count

    await ask_often(time.perf_counter() + 0.2)
    used = cpu_of(process)
    until = time.perf_counter() + seconds
    counts = await asyncio.gather(*[ask_often(until) for _ in range(4)])
    return (cpu_of(process) - used) / sum(counts)


async def load(url: str, path: str, rate: float, seconds: float) -> list[float]:
    """Send requests at a constant rate, however long the replies take; return the latencies."""
    took: list[float] = []

    async def one() -> None:
        began = time.perf_counter()
        await ask(url, "text", path)
        took.append(time.perf_counter() - began)

    began = time.perf_counter()
    tasks = []
    for number in range(round(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        tasks.append(asyncio.ensure_future(one()))
    await asyncio.gather(*tasks)
    return took


def measure_latency(base: str, python: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the CPU time per request and the added latency of the gateway and of LiteLLM's proxy."""
    found: dict[str, list[list[float]]] = {"direct": [], "gateway": [], "litellm": []}
    costs: dict[str, list[float]] = {"gateway": [], "litellm": []}
    # CPU time per request on connections that stay open.
    kept: dict[str, list[float]] = {"gateway": [], "litellm": []}
    with (
        serving("gateway", base) as gateway,
        serving("litellm", base, python) as proxy,
    ):
        started = {"gateway": gateway, "litellm": proxy}
        for url, _ in started.values():
            asyncio.run(_warm(url))
        for _ in range(rounds):
            for name, each in started.items():
                cost, _ = asyncio.run(measure(*each, "complete", max(2.0, seconds / 2)))
                costs[name].append(cost)
                kept[name].append(asyncio.run(measure_kept(*each, max(2.0, seconds / 2))))
        rate = 0.5 / statistics.median(costs["litellm"])
        for _ in range(rounds):
            for name in random.sample(list(found), len(found)):
                url, path = (
                    (base, DIRECT)
                    if name == "direct"
                    else (started[name][0], "/v1/chat/completions")
                )
                found[name].append(asyncio.run(load(url, path, rate, seconds)))
    best = {
        name: (min(map(statistics.median, runs)), min(map(_p99, runs)))
        for name, runs in found.items()
    }
    direct = best["direct"]
    ours, theirs = [
        [(here - there) * 1000 for here, there in zip(best[name], direct, strict=True)]
        for name in ("gateway", "litellm")
    ]
    return {
        **_compare_costs(costs, "a new connection each"),
        **_compare_costs(kept, "kept connections"),
        "half load of the proxy, requests a second": round(rate, 1),
        "direct call, p50 and p99, ms": [round(each * 1000, 2) for each in direct],
        "gateway adds, p50 and p99, ms": [round(each, 2) for each in ours],
        "proxy adds, p50 and p99, ms": [round(each, 2) for each in theirs],
        "added p99, proxy / gateway": round(theirs[1] / ours[1], 1),
    }


def _compare_costs(costs: dict[str, list[float]], how: str) -> dict[str, Any]:
    ratios = [theirs / ours for ours, theirs in zip(*costs.values(), strict=True)]
    ours, theirs = [round(statistics.median(each) * 1e6) for each in costs.values()]
    return {
        f"CPU µs of a request, {how}: gateway": ours,
        f"CPU µs of a request, {how}: LiteLLM's proxy": theirs,
        f"requests per CPU second, {how}: gateway / proxy": round(statistics.median(ratios), 1),
    }


def _p99(took: list[float]) -> float:
    return sorted(took)[min(len(took) - 1, int(len(took) * 0.99))]


def find_missed(found: dict[str, Any]) -> list[str]:
    """Return the names of the figures that exceed their maximum or are below their minimum."""
    bounds = [
        ("CPU of a request, 2 workers / 1", LINEAR, True),
        ("KiB a stream, gateway", KIB, True),
        ("added p99, proxy / gateway", LOWER, False),
        ("requests per CPU second, kept connections: gateway / proxy", CHEAPER, False),
    ]
    return [
        name
        for name, bound, is_most in bounds
        if name in found and (found[name] > bound if is_most else found[name] < bound)
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--litellm", metavar="PYTHON", help="installed if it is not given")
    parser.add_argument("--docs", action="store_true", help="renew bench/README.md")
    given = parser.parse_args()
    python, why = (given.litellm, None) if given.litellm else environments.prepare("litellm-proxy")
    found = report.describe_machine()
    with server.running() as base:
        found |= measure_workers(base, given.rounds, given.seconds / 4)
        if python is not None:
            found["LiteLLM"] = environments.version(python, "litellm-proxy")
            found |= measure_latency(base, python, given.rounds, given.seconds)
        else:
            found["LiteLLM"] = why
    if given.streams:
        found |= hold_many(given.streams)
    print(json.dumps(found, indent=2, ensure_ascii=False))
    if given.docs:
        page = ROOT / "bench" / "README.md"
        report.renew(page, report.list_figures(found), "bench.fleet")
    missed = find_missed(found)
    for name in missed:
        print(f"not reached: {name}", file=sys.stderr)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
