"""Measure what a call and a chunk cost in Dragoman, in minimal clients ("floors") and in other
libraries.

    python -m bench [--quick] [--docs] [--rounds N] [--clients a,b] [--out FILE]

``make bench`` runs this module. It measures the CPU time of the client's process, including kernel
time, never wall time. Each client has its own process and environment, and only one works at a
time. Every round measures all clients in a random order, each with the floor just before and just
after it, because the speed of a machine varies. A ratio is the median over the rounds of the
client's cost divided by the cost of the floor around it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import environments, imports, micro, report, server
from .worker import SECURE, TLS

ROOT = Path(__file__).parents[1]
OURS = ("floor", "raw", "dragoman")
FLOOR = "floor"
ANTHROPIC_CASES = ("complete, text", "complete, tool call", "stream, a chunk, coalesced")


class Worker:
    """Run a client in its own process."""

    def __init__(self, name: str, python: str, base: str, wire: str) -> None:
        self.name = name
        path = os.pathsep.join([str(ROOT), *([str(ROOT / "src")] if name in OURS else [])])
        self._child = subprocess.Popen(
            [python, "-m", "bench.worker", name, base, wire],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            # Pass only the environment variables that Python needs: no proxy, no key, no tracing.
            env={name: os.environ.get(name, "/") for name in ("PATH", "HOME", "BENCH_TLS")}
            | {"PYTHONPATH": path, "BENCH_UVLOOP": os.environ.get("BENCH_UVLOOP", "")},
        )
        self.broken = "" if self._answer() else "it did not start"

    def measure(self, case: str, seconds: float) -> float | None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"case": case, "seconds": seconds}) + "\n")
        self._child.stdin.flush()
        answer = self._answer()
        self.broken = answer.get("error", "" if answer else "it died")
        return answer.get("cost")

    def stop(self) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _answer(self) -> dict[str, Any]:
        """Return the worker's next result, skipping lines that libraries write to standard output."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        return {}


@contextlib.contextmanager
def workers(pythons: dict[str, str], base: str, wire: str) -> Iterator[list[Worker]]:
    started = [Worker(name, python, base, wire) for name, python in pythons.items()]
    try:
        yield started
    finally:
        for worker in started:
            worker.stop()


class Taken:
    """Hold the costs of one client in CPU seconds, and the ratio of each to the cost of the
    minimal client, which is measured just before and just after it.
    """

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.ratios: list[float] = []

    def summary(self) -> dict[str, float]:
        return {
            "us": statistics.median(self.costs) * 1e6,
            "ratio": statistics.median(self.ratios or [1.0]),
        }


def measure(
    started: list[Worker], cases: list[str], rounds: int, seconds: float, skipped: dict[str, str]
) -> Any:
    floor = next(worker for worker in started if worker.name == FLOOR)
    others = [worker for worker in started if worker is not floor]
    taken: dict[str, dict[str, Taken]] = {case: {} for case in cases}
    for round_ in range(rounds):
        for case in cases:
            for worker in random.sample(others, len(others)):
                if f"{worker.name}: {case}" in skipped or worker.name in skipped:
                    continue
                if case == SECURE and worker.name not in TLS:
                    continue
                before, cost, after = [
                    one.measure(case, seconds) for one in (floor, worker, floor)
                ]
                if cost is None:
                    skipped[f"{worker.name}: {case}"] = worker.broken
                    continue
                assert before is not None
                assert after is not None
                mine = taken[case].setdefault(worker.name, Taken())
                mine.costs.append(cost)
                mine.ratios.append(2 * cost / (before + after))
                taken[case].setdefault(FLOOR, Taken()).costs += [before, after]
        print(f"round {round_ + 1} of {rounds}", file=sys.stderr, flush=True)
    return {
        case: {name: one.summary() for name, one in clients.items()}
        for case, clients in taken.items()
    }


FIRST_CALL = """
import asyncio
from dragoman import connect
asyncio.run(connect('m', base_url='{base}/text/v1').complete('Hi'))
"""
FIRST_CALL_BY_HAND = """
import asyncio, aiohttp, msgspec
async def call():
    async with aiohttp.ClientSession() as session:
        request = msgspec.json.encode({{'model': 'm', 'messages': []}})
        async with session.post('{base}/text/v1/chat/completions', data=request) as reply:
            msgspec.json.decode(await reply.read())
asyncio.run(call())
"""


def measure_imports(
    pythons: dict[str, str], rounds: int, base: str
) -> dict[str, dict[str, float]]:
    """Return the CPU time of importing each client's library, minus that of a bare interpreter,
    and the number of imported modules.
    """
    ready = "from dragoman import connect; connect('m', base_url='http://127.0.0.1:1/v1')"
    statements = {
        "import dragoman": (OURS[-1], "import dragoman"),
        "from dragoman import connect": (OURS[-1], "from dragoman import connect"),
        "dragoman, connected": (OURS[-1], ready),
        "dragoman, first call": (OURS[-1], FIRST_CALL.format(base=base)),
        FLOOR: (FLOOR, "import aiohttp, msgspec"),
        "floor, first call": (FLOOR, FIRST_CALL_BY_HAND.format(base=base)),
        **{
            name: (name, environments.PEERS[name][1])
            for name in pythons
            if name in environments.PEERS
        },
    }
    code = "import sys, time; n = len(sys.modules); t = time.process_time()\n{}\n"
    code += "print(time.process_time() - t, len(sys.modules) - n)"
    taken: dict[str, list[tuple[float, int]]] = {}
    for _ in range(rounds + 1):
        for name, (client, statement) in statements.items():
            env = {"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/")}
            env |= {"PYTHONPATH": str(ROOT / "src")} if client in OURS else {}
            command = [pythons[client], "-c", code.format(statement)]
            done = subprocess.run(command, capture_output=True, text=True, env=env)
            if done.returncode == 0:
                seconds, modules = done.stdout.split()[-2:]
                taken.setdefault(name, []).append((float(seconds), int(modules)))
    return {
        name: {
            "ms": statistics.median([one[0] for one in runs[1:]]) * 1000,
            "modules": runs[-1][1],
        }
        for name, runs in taken.items()
    }


def measure_memory(base: str, streams: int, modes: tuple[str, ...]) -> dict[str, dict[str, float]]:
    found = {
        mode: json.loads(_run("bench.memory", base, str(streams), mode).stdout) for mode in modes
    }
    for mode in ("lean", "raw"):
        if row := found.get(mode):
            row["beyond"] = row["grown"] - row["text"] - row["raw"] - found["connection"]["grown"]
            row["later"] = json.loads(
                _run("bench.memory", base, str(streams), mode, "later").stdout
            )["grown"]
    return found


def measure_gateway(litellm: str | None) -> str:
    """Run the gateway's benchmark, which prints its own results; ``litellm`` is the interpreter of
    LiteLLM's proxy.
    """
    try:
        done = _run("bench.gateway", *(["--litellm", litellm] if litellm else []))
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return f"failed: {str(getattr(error, 'stderr', '') or error)[-300:]}"
    return done.stdout


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=env, cwd=ROOT, timeout=600
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="CPU of a call and of a chunk, beside floors and peers."
    )
    parser.add_argument("--quick", action="store_true", help="without peers, in under two minutes")
    parser.add_argument(
        "--docs",
        action="store_true",
        help="renew the figures in the documentation and the README",
    )
    parser.add_argument(
        "--uvloop", action="store_true", help="with the event loop of uvloop; not for --docs"
    )
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--clients", help="only these, with commas between")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    if options.uvloop and options.docs:
        parser.error("the tables of the page are measured without uvloop")
    os.environ["BENCH_UVLOOP"] = "1" if options.uvloop else ""
    rounds = options.rounds or (7 if options.quick else 5)
    seconds = 0.1 if options.quick else 0.2
    skipped: dict[str, str] = {}
    pythons = dict.fromkeys(OURS, sys.executable)
    for peer in () if options.quick else environments.PEERS:
        python, why = environments.prepare(peer)
        if python is None:
            skipped[peer] = why or ""
        else:
            pythons[peer] = python
    if options.clients:
        pythons = {
            name: python
            for name, python in pythons.items()
            if name in options.clients.split(",") or name in OURS
        }
    results: dict[str, Any] = {
        "machine": (
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        ),
        "rounds": rounds,
        "versions": {
            name: environments.version(python, name)
            for name, python in pythons.items()
            if name not in OURS
        },
    }
    with server.running() as base:
        speaking = {name: python for name, python in pythons.items() if name != "anthropic"}
        with workers(speaking, base, "openai") as started:
            cases = list(worker_cases())
            results["openai"] = measure(started, cases, rounds, seconds, skipped)
        speaking = {
            name: python for name, python in pythons.items() if name in (*OURS, "anthropic")
        }
        with workers(speaking, base, "anthropic") as started:
            results["anthropic"] = measure(
                started, list(ANTHROPIC_CASES), rounds, seconds, skipped
            )
        modes = (
            ("connection", "lean", "floor")
            if options.quick
            else ("connection", "lean", "raw", "floor")
        )
        results["memory"] = measure_memory(base, 100 if options.quick else 200, modes)
        print(
            "memory is measured; now imports and the parts by themselves",
            file=sys.stderr,
            flush=True,
        )
        results["imports"] = measure_imports(pythons, 5, base)
    results["micro"] = micro.measure()
    if not options.quick:
        results["starting"] = imports.measure(5)
        proxy, why = environments.prepare("litellm-proxy")
        if proxy is None:
            skipped["LiteLLM's proxy"] = why or ""
        results["gateway"] = measure_gateway(proxy)
    results["skipped"] = skipped
    options.out.write_text(json.dumps(results, indent=2) + "\n")
    print(report.table(results))
    if options.docs:
        report.renew(ROOT / "bench" / "README.md", report.table(results))
        report.renew_claims(ROOT, results)
        report.plot(results, ROOT / "docs" / "assets" / "performance.svg")


def worker_cases() -> dict[str, Any]:
    from .floors import Raw
    from .worker import cases

    return cases(Raw("http://127.0.0.1", "openai"), secure=True)


if __name__ == "__main__":
    main()
