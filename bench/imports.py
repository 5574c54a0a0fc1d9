"""``python -m bench.imports``: measure in turn the CPU time of imports and of ``dragoman --help``.

The run writes bytecode to a temporary folder. Otherwise an unwritable installation or
``PYTHONDONTWRITEBYTECODE`` would make each measurement compile the modules again.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = int(os.environ.get("BENCH_IMPORT_ROUNDS", "9"))

BARE = "pass"
STATEMENTS = [
    "import dragoman",
    "import httpx2",
    "from dragoman import User",
    "from dragoman import connect",
    "from dragoman import Registry",
    "import click",
]
HELP = "import sys; sys.argv = ['dragoman', '--help']; from dragoman.cli import main; main()"

# Each entry: what is measured, what it is compared with, the maximum ratio, and whether to
# subtract the time of a bare interpreter.
BUDGETS = [
    ("import dragoman", "import httpx2", 0.6, True),
    ("dragoman --help", "import click", 2.0, False),
]


def measure(rounds: int = ROUNDS) -> dict[str, object]:
    """Return the median CPU times in milliseconds, and the ratios that ``BUDGETS`` limits."""
    work = {statement: statement for statement in [BARE, *STATEMENTS]} | {"dragoman --help": HELP}
    taken: dict[str, list[float]] = {name: [] for name in work}
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(rounds + 1):
            for name in work if round_ % 2 else reversed(work):
                cost = _cpu(work[name], folder)
                if round_:  # the first round is not counted, because it compiles the bytecode
                    taken[name].append(cost)
    above = {
        name: [cost - bare for cost, bare in zip(costs, taken[BARE], strict=True)]
        for name, costs in taken.items()
    }
    budgets = {}
    for ours, theirs, most, is_above in BUDGETS:
        source = above if is_above else taken
        ratio = statistics.median(
            [one / other for one, other in zip(source[ours], source[theirs], strict=True)]
        )
        budgets[f"{ours} / {theirs}"] = {"ratio": round(ratio, 3), "budget": most}
    return {
        "cpu_ms": {name: round(statistics.median(costs), 1) for name, costs in taken.items()},
        "above_bare_ms": {name: round(statistics.median(above[name]), 1) for name in STATEMENTS},
        "ratios": budgets,
    }


def _cpu(code: str, bytecode: str) -> float:
    """Return the CPU time of a complete process in milliseconds, including kernel time."""
    child = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    child |= {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONPATH": os.pathsep.join(_paths())}
    process = subprocess.Popen([sys.executable, "-c", code], env=child, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{code!r} failed")
    return (used.ru_utime + used.ru_stime) * 1000


def _paths() -> list[str]:
    source = str(Path(__file__).parents[1] / "src")
    return [source, *filter(None, [os.environ.get("PYTHONPATH")])]


def main() -> None:
    print(json.dumps(measure(), indent=2))


if __name__ == "__main__":
    main()
