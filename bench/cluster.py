"""Measure batches on Ray: CPU time per row compared with a local batch, and the rate of two
workers compared with one.

    python -m bench.cluster [--rows FEW MANY] [--heavy N] [--rounds N] [--docs]

Each batch runs in a child process against the server of ``bench.server``. CPU time is that of the
child and of all processes it starts, which include those of Ray; the cost of a row is the
difference between a run of MANY rows and a run of FEW rows, so starting Ray does not count.

The rate is measured with rows that keep a worker busy and the server idle: conversations of 200
messages whose content is a list, with a short reply. It counts the rows between the first and the
last fifth of a run, when all workers are up. Runs of one and of two workers alternate, and the
best of each counts, because another process on the machine can only slow a run down. ``busy`` is
the number of cores that all processes used in that time. If it is below the number of workers, the
machine had too few free cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from . import report, server

# Limits: the minimum rate of two workers compared with one, and the maximum CPU time per row
# compared with a local batch.
FASTER = 1.7
OVERHEAD = 1.25
MESSAGES = 200  # number of messages in a conversation that keeps a worker busy
Marks = list[tuple[int, float]]  # pairs of (number of rows done, time)


def write_rows(path: Path, rows: int, messages: int) -> None:
    # Content in the form of lists takes a worker longer to read, and the server gets the same bytes.
    turns = [
        {
            "role": ("user", "assistant")[at % 2],
            "content": [{"type": "text", "text": f"Line {at} of a long conversation."}],
        }
        for at in range(messages - 1)
    ]
    with path.open("w") as file:
        for number in range(rows):
            prompt = f"Name a river near town {number}."
            row: dict[str, Any] = {"id": f"row-{number}", "prompt": prompt}
            if messages > 1:
                del row["prompt"]
                row["messages"] = [*turns, {"role": "user", "content": prompt}]
            file.write(json.dumps(row) + "\n")


async def work(base: str, source: str, out: str, workers: int) -> None:
    """Run one batch with a number of Ray workers, or locally if the number is 0; print how many
    rows were done at which time.
    """
    from dragoman import batch  # imported only in the child process, whose CPU time is measured

    marks: Marks = []
    on_ray: dict[str, Any] = {"on": "ray", "workers": workers} if workers else {}
    report = await batch(
        source,
        out,
        "bench-1",
        concurrency=32,
        connection={
            "base_url": f"{base}/text/v1",
            "keep_raw": False,
            "priced_as": "openai:gpt-6-luna",
        },
        on_progress=lambda progress: marks.append((progress.rows, time.time())),
        **on_ray,
    )
    assert report.failed == 0, report
    print(json.dumps({"rows": report.rows, "marks": marks}), flush=True)


class Meter(threading.Thread):
    """Sample the CPU time of a process and its descendants, including those that end early."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self._used: dict[int, float] = {}
        self.samples: list[tuple[float, float]] = []  # pairs of (time, CPU seconds used so far)

    def run(self) -> None:
        while self._sample():
            time.sleep(0.1)

    def _sample(self) -> bool:
        try:
            family = [self._process, *self._process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return False
        for each in family:
            try:
                self._used[each.pid] = sum(each.cpu_times()[:2])
            except psutil.Error:  # the process has ended
                continue
        self.samples.append((time.time(), sum(self._used.values())))
        return self._process.status() != psutil.STATUS_ZOMBIE

    def used_by(self, moment: float) -> float:
        """Return the CPU seconds that the process and its descendants had used at a given time."""
        return max([cpu for at, cpu in self.samples if at <= moment], default=0.0)


def measure(base: str, folder: Path, rows: int, messages: int, workers: int) -> dict[str, float]:
    source = folder / f"{rows}-{messages}.jsonl"
    if not source.exists():
        write_rows(source, rows, messages)
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "bench.cluster", "--work", base, str(source)]
        child = subprocess.Popen(
            [*command, f"{place}/out.jsonl", str(workers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ray gives its workers a low priority, and a busy machine then gives them no time.
            env={**os.environ, "RAY_worker_niceness": "0"},
        )
        meter = Meter(child.pid)
        meter.start()
        printed, problems = child.communicate()
        meter.join()
    if child.returncode:
        raise RuntimeError(problems.decode()[-2000:])
    marks: Marks = json.loads(printed.splitlines()[-1])["marks"]
    begin = next(mark for mark in marks if mark[0] >= rows / 5)
    end = next(mark for mark in marks if mark[0] >= rows * 4 / 5)
    seconds = max(end[1] - begin[1], 1e-9)
    return {
        "cpu": meter.samples[-1][1],
        "rate": (end[0] - begin[0]) / seconds,
        "busy": (meter.used_by(end[1]) - meter.used_by(begin[1])) / seconds,
    }


def measure_overhead(
    base: str, folder: Path, few: int, many: int, rounds: int
) -> dict[str, float]:
    costs: dict[str, list[float]] = {"local": [], "ray": []}
    for _ in range(rounds):
        for name, workers in (("local", 0), ("ray", 1)):
            less, more = [measure(base, folder, rows, 1, workers) for rows in (few, many)]
            costs[name].append((more["cpu"] - less["cpu"]) / (many - few) * 1e6)
            print(name, [round(each) for each in costs[name]], "µs a row", file=sys.stderr)
    local, on_ray = [statistics.median(each) for each in costs.values()]
    ratios = [ray / alone for alone, ray in zip(*costs.values(), strict=True)]
    return {
        "local, CPU µs a row": round(local),
        "Ray, CPU µs a row": round(on_ray),
        "Ray / local": round(statistics.median(ratios), 2),
    }


def measure_rate(base: str, folder: Path, rows: int, rounds: int) -> dict[str, float]:
    best: dict[int, dict[str, float]] = {}
    for _ in range(rounds):
        for workers in (1, 2):
            found = measure(base, folder, rows, MESSAGES, workers)
            print(workers, "workers", found, file=sys.stderr)
            best[workers] = max(best.get(workers, found), found, key=lambda each: each["rate"])
    one = best[1]
    two = best[2]
    return {
        "1 worker, rows a second": round(one["rate"]),
        "2 workers, rows a second": round(two["rate"]),
        "2 workers / 1": round(two["rate"] / one["rate"], 2),
        "busy cores with 1 worker": round(one["busy"], 2),
        "busy cores with 2 workers": round(two["busy"], 2),
        "CPU of a row, 2 workers / 1": round(
            two["busy"] / two["rate"] / (one["busy"] / one["rate"]), 2
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs=2, default=[5_000, 45_000])
    parser.add_argument("--heavy", type=int, default=8_000, help="rows of the busy workers")
    parser.add_argument("--rounds", type=int, default=3, help="of each part; 0 leaves it out")
    parser.add_argument("--part", choices=["overhead", "rate"])
    parser.add_argument("--docs", action="store_true", help="renew bench/README.md")
    given = parser.parse_args()
    found: dict[str, Any] = report.describe_machine()
    with tempfile.TemporaryDirectory() as folder, server.running() as base:
        if given.part != "rate":
            found |= measure_overhead(base, Path(folder), *given.rows, given.rounds)
        if given.part != "overhead":
            found |= measure_rate(base, Path(folder), given.heavy, given.rounds)
    print(json.dumps(found, indent=2, ensure_ascii=False))
    if given.docs:
        page = Path(__file__).parent / "README.md"
        report.renew(page, report.list_figures(found), "bench.cluster")
    is_met = found.get("Ray / local", 0) <= OVERHEAD
    sys.exit(0 if is_met and found.get("2 workers / 1", FASTER) >= FASTER else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        base, source, out, workers = sys.argv[2:]
        asyncio.run(work(base, source, out, int(workers)))
    else:
        main()
