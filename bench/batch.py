"""Measure how many rows a batch processes per CPU second, and how much memory it needs.

    python -m bench.batch [--rows N ...] [--order input|completed] [--rounds N] [--docs]

The batch and the server of ``bench.server`` run in two child processes. The server answers with
500 characters of precomputed text. CPU time is that of the batch's process, including
kernel time, reading, writing and syncing. Memory is the process's maximum (``ru_maxrss``),
including imports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import report, server

FEWEST = 3_000  # the required number of rows per CPU second
FLAT = 1.15  # how much more memory a hundred times as many rows may take


def write_rows(path: Path, rows: int) -> None:
    with path.open("w") as file:
        for number in range(rows):
            file.write(f'{{"id": "row-{number}", "prompt": "Name a river near town {number}."}}\n')


async def work(base: str, source: str, out: str, order: Any, concurrency: int) -> None:
    # Imported only in the child process, whose CPU time and memory are measured.
    from dragoman import batch

    before = time.process_time()
    began = time.perf_counter()
    report = await batch(
        source,
        out,
        "bench-1",
        order=order,
        concurrency=concurrency,
        connection={
            "base_url": f"{base}/text/v1",
            "keep_raw": False,
            "priced_as": "openai:gpt-6-luna",
        },
        on_progress=lambda progress: None,
    )
    cpu = time.process_time() - before
    assert report.failed == 0
    taken = {
        "rows": report.rows,
        "per_cpu_second": round(report.rows / cpu),
        "per_second": round(report.rows / (time.perf_counter() - began)),
        "mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    print(json.dumps(taken), flush=True)


def measure(base: str, folder: Path, rows: int, order: str, concurrency: int) -> dict[str, Any]:
    source = folder / f"{rows}.jsonl"
    out = folder / f"{rows}.{order}.out.jsonl"
    if not source.exists():
        write_rows(source, rows)
    for path in folder.glob(f"{out.name}*"):
        path.unlink()
    command = [
        sys.executable,
        "-m",
        "bench.batch",
        "--work",
        base,
        str(source),
        str(out),
        order,
        str(concurrency),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--order", default="input", choices=["input", "completed"])
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="Of the smallest number of rows.")
    parser.add_argument("--docs", action="store_true", help="renew bench/README.md")
    given = parser.parse_args()
    found = report.describe_machine()
    with tempfile.TemporaryDirectory() as folder, server.running() as base:
        taken = []
        for rows in given.rows:
            rounds = given.rounds if rows == min(given.rows) else 1
            runs = [
                measure(base, Path(folder), rows, given.order, given.concurrency)
                for _ in range(rounds)
            ]
            taken.append(max(runs, key=lambda each: each["per_cpu_second"]))
            taken[-1]["per_cpu_second"] = statistics.median(
                [each["per_cpu_second"] for each in runs]
            )
            print(json.dumps(taken[-1]), flush=True)
    growth = taken[-1]["mib"] / taken[0]["mib"]
    speed = statistics.median([each["per_cpu_second"] for each in taken])
    if given.docs:
        for each in taken:
            name = f"{each['rows']:,} rows"
            found[f"{name}, rows per CPU second"] = round(each["per_cpu_second"])
            found[f"{name}, memory in MiB, the imports included"] = each["mib"]
        page = Path(__file__).parent / "README.md"
        report.renew(page, report.list_figures(found), "bench.batch")
    kept = speed >= FEWEST and growth <= FLAT
    print(
        f"{speed:,.0f} rows per CPU second (promised {FEWEST:,}); memory ×{growth:.2f} (promised "
        f"×{FLAT})"
    )
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        base, source, out, order, concurrency = sys.argv[2:]
        asyncio.run(work(base, source, out, order, int(concurrency)))
    else:
        main()
