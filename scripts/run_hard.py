"""Run the tests under hardship: ``make test-hard``. Coverage and lint are not part of it.

    python -m scripts.run_hard                    all runs, in this order; hours on two cores
    python -m scripts.run_hard pinned shuffled    these runs only
    python -m scripts.run_hard busy tests/log     three runs, with the tests of a folder

busy      three times, with eight busy processes that compete for the processors
pinned    every process on the same processor (Linux only)
shuffled  in random order; ``DRAGOMAN_SHUFFLE`` sets the seed, which is printed
alone     each test file in a process of its own
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.run_tests import (
    ROOT,
    Part,
    interruptible,
    list_tests,
    print_results,
    pytest_part,
    run_parts,
)

RUNS = ("busy", "busy", "busy", "pinned", "shuffled", "alone")
BUSY_PROCESSES = 8


class Result(NamedTuple):
    run: str
    parts: Sequence[Part]
    seconds: float
    code: int


def make_parts(run: str, paths: Sequence[str]) -> list[Part]:
    """Return the parts of a run: those of ``make test``, or one for each path or test file."""
    tests = {path: [Path(path)] for path in paths} if paths else list_tests()
    if run == "alone":
        found = [path for each in tests.values() for path in each]
        files = {
            file for path in found for file in (path.rglob("test_*.py"), [path])[path.is_file()]
        }
        # A file may have only tests of recordings, none of which is selected (exit code 5).
        return [pytest_part(str(path), path, accept=(0, 5)) for path in sorted(files)]
    return [pytest_part(name, *each) for name, each in tests.items()]


@contextlib.contextmanager
def hardship(run: str) -> Iterator[dict[str, str]]:
    """Set up the circumstances of a run; yield the variables that its processes need."""
    if run == "pinned":
        processors = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(processors)})  # the processes inherit it
        try:
            yield {}
        finally:
            os.sched_setaffinity(0, processors)
    elif run == "busy":
        command = [sys.executable, "-c", "while True: pass"]
        busy = [subprocess.Popen(command) for _ in range(BUSY_PROCESSES)]
        try:
            yield {}
        finally:
            for process in busy:
                process.kill()
                process.wait()
    elif run == "shuffled":
        seed = os.environ.get("DRAGOMAN_SHUFFLE") or str(random.randrange(10**6))
        print(f"to repeat this order: DRAGOMAN_SHUFFLE={seed}")
        yield {"DRAGOMAN_SHUFFLE": seed}
    else:
        yield {}


def run_hard(arguments: list[str]) -> int:
    paths = [argument for argument in arguments if (ROOT / argument).exists()]
    chosen = [argument for argument in arguments if argument not in paths]
    if unknown := set(chosen) - set(RUNS):
        print(f"no run or path: {', '.join(sorted(unknown))}; the runs: {', '.join(RUNS[2:])}")
        return 2
    results: list[Result] = []
    for run in [run for run in RUNS if run in chosen or not chosen]:
        print(f"\n=== {run} ===", flush=True)
        parts = make_parts(run, paths)
        began = time.monotonic()
        with hardship(run) as variables:
            run_parts(parts, environment=variables)
        results.append(Result(run, parts, time.monotonic() - began, print_results(parts)))
    print(f"\n{'run':<9} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for result in results:
        passed = sum([part.passed for part in result.parts])
        failed = sum([part.failed for part in result.parts])
        skipped = sum([part.skips.total() for part in result.parts])
        print(f"{result.run:<9} {passed:>7} {failed:>7} {skipped:>8} {result.seconds:>8.0f}")
    return max([result.code for result in results])


if __name__ == "__main__":
    sys.exit(interruptible(lambda: run_hard(sys.argv[1:])))
