"""Measure CPU time relative to a fixed piece of work, which a slow machine does slowly too."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

QUARTER_SECOND = 100.0
"""How many units of work take a quarter of a second of CPU time on an idle two-core machine of
2025."""

_ROWS = [
    {"id": number, "name": f"row {number}", "tags": ["a", "b", {"c": None}]}
    for number in range(900)
]


def measure_unit() -> float:
    """Return the CPU seconds of one unit of work now; about 2.5 ms on an idle machine."""
    best = float("inf")
    for _ in range(3):
        began = time.thread_time()
        rows = json.loads(json.dumps(_ROWS))
        sum(len(row["name"]) + len(row["tags"]) for row in rows for _ in range(8))
        best = min(best, time.thread_time() - began)
    return best


@dataclass
class Spent:
    """The CPU time that a block of code used."""

    seconds: float = 0.0

    @property
    def units(self) -> float:
        """Return the CPU time in units of work; a unit is measured by this call."""
        return self.seconds / measure_unit()


@contextmanager
def spending() -> Iterator[Spent]:
    """Measure the CPU time that this thread spends in the block."""
    spent = Spent()
    began = time.thread_time()
    try:
        yield spent
    finally:
        spent.seconds = time.thread_time() - began
