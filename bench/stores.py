"""Measure the gateway with each store: CPU time per request with a ledger in SQLite or PostgreSQL,
with counts in Redis, and with the event log.

    python -m bench.stores [--rounds N] [--seconds N] [--docs]

The gateway is ``dragoman serve`` with one worker and one key. With a ledger the key has limits,
which it never reaches. Only the gateway's process is measured, not the
database. PostgreSQL runs without ``fsync`` and Redis without a file, in processes of this run.
Every round measures all cases in a random order; a ratio is the median over the rounds.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from tests.databases import OwnDatabase, OwnRedis, running_postgres

from dragoman.gateway.keys import hash_key

from . import report, server
from .gateway import KEY, ROOT, measure, started

PLAIN = "no store"
CASES = {
    PLAIN: (),
    "ledger in SQLite": ("--state", "{folder}/used.db"),
    "ledger in PostgreSQL": ("--state", "{postgres}"),
    "ledger in PostgreSQL, counts in Redis": ("--state", "{postgres}", "--redis", "{redis}"),
    "event log in SQLite": ("--log", "{folder}/log.db"),
    "event log in SQLite, with content": ("--log", "{folder}/log.db", "--log-content"),
    "event log in PostgreSQL": ("--log", "{postgres}"),
    "PostgreSQL, Redis and event log": (
        "--state", "{postgres}", "--redis", "{redis}", "--log", "{postgres}",
    ),
}  # fmt: skip
LIMITS = {"requests_per_minute": 10**6, "tokens_per_minute": 10**9, "max_concurrency": 1000}


@contextlib.contextmanager
def running_stores() -> Iterator[tuple[str, str]]:
    """Run PostgreSQL and Redis; yield the connection string of the one and the URL of the other."""
    with tempfile.TemporaryDirectory() as folder, running_postgres() as postgres:
        redis = OwnRedis(Path(folder))
        try:
            yield postgres, redis.url
        finally:
            redis.stop()


def write_files(folder: Path, base: str, case: str) -> list[str]:
    """Write the configuration and the key of a gateway; return its options.

    The key has limits if there is a ledger.
    """
    adapter = {"type": "openai", "base_url": f"{base}/text/v1"}
    settings = {"adapters": {"up": adapter}, "models": {"up:bench-1": {"adapter": "up"}}}
    Path(folder, "models.yaml").write_text(json.dumps(settings))
    limits = LIMITS if "--state" in CASES[case] else {}
    key = {"hash": hash_key(KEY), **limits}
    Path(folder, "keys.yaml").write_text(json.dumps({"keys": {"bench": key}}))
    return [
        "--config", f"{folder}/models.yaml", "--model", "text=up:bench-1",
        "--auth", f"{folder}/keys.yaml", "--no-access-log",
    ]  # fmt: skip


@contextlib.contextmanager
def serving_with(
    case: str, base: str, postgres: str, redis: str
) -> Iterator[tuple[str, psutil.Process]]:
    """Run a gateway with the stores of a case; yield its address and process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database = OwnDatabase(postgres, f"bench{list(CASES).index(case)}")
        places = {"folder": name, "postgres": database.url, "redis": redis}
        options = write_files(folder, base, case)
        options += [each.format(**places) for each in CASES[case]]

        def start(port: int) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "dragoman", "serve", "--port", str(port), *options]
            environment = {**os.environ, "OPENAI_API_KEY": "x", "PYTHONPATH": str(ROOT / "src")}
            return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

        with started(start) as served:
            yield served


def compare(rounds: int, seconds: float) -> dict[str, Any]:
    """Return the CPU time of a request in each case, and its ratio to that without a store."""
    costs: dict[str, list[float]] = {case: [] for case in CASES}
    with (
        server.running() as base,
        running_stores() as (postgres, redis),
        contextlib.ExitStack() as stack,
    ):
        gateways = {
            case: stack.enter_context(serving_with(case, base, postgres, redis)) for case in CASES
        }
        for _ in range(rounds):
            for case in random.sample(list(CASES), len(CASES)):
                cost, _ = asyncio.run(measure(*gateways[case], "complete", seconds))
                costs[case].append(cost)
    found = {}
    for case, each in costs.items():
        ratios = [cost / plain for cost, plain in zip(each, costs[PLAIN], strict=True)]
        micros = statistics.median(each) * 1e6
        found[f"{case}, CPU µs a request"] = f"{micros:,.0f} ({statistics.median(ratios):.2f}×)"
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--docs", action="store_true", help="renew bench/README.md")
    given = parser.parse_args()
    found = report.describe_machine() | compare(given.rounds, given.seconds)
    print(json.dumps(found, indent=2, ensure_ascii=False))
    if given.docs:
        page = ROOT / "bench" / "README.md"
        report.renew(page, report.list_figures(found), "bench.stores")


if __name__ == "__main__":
    main()
