"""Counters in the text format of Prometheus. Each worker process has its own counters.

``prometheus_client`` was measured: it takes 12 µs for the counters of a request (20 µs with several
workers) where these take 3 µs, and 98 ms to import.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import TypeAlias

from msgspec import Struct

from ..calls import RoutingSwitched
from ..events import Usage
from ..messages import LossWarning

_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0)


Labels: TypeAlias = tuple[str, ...]

# The counters, and the names of their labels.
_LABELS = {
    "requests": ("wire", "model", "status"),
    "warnings": ("wire", "code"),
    "tokens": ("model", "kind"),
    "switches": ("model", "from", "to", "reason"),
}


class Saved(Struct):
    """The values of all counters in a form that can be saved to a file.

    ``counters`` maps the name of each counter to its labels and values, and ``seconds`` the name
    of each measured duration to its histogram.
    """

    in_flight: int = 0
    counters: dict[str, list[tuple[Labels, int]]] = {}
    seconds: dict[str, list[float]] = {}


class Metrics:
    """The gateway's counters. Labels are wires, model names and statuses, never client input."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._counters: dict[str, Counter[Labels]] = {name: Counter() for name in _LABELS}
        self._requests = self._counters["requests"]
        self._warnings = self._counters["warnings"]
        self._tokens = self._counters["tokens"]
        self._switches = self._counters["switches"]
        # For each name, a histogram of durations: a count for each bucket, a count of longer
        # durations, and the sum of all durations.
        self._seconds: dict[str, list[float]] = {}

    def count(self, wire: str, model: str, status: int) -> None:
        """Count a finished request."""
        self._requests[wire, model, str(status)] += 1

    def warn(self, wire: str, warnings: Iterable[LossWarning]) -> None:
        """Count the losses of a request by Dragoman's loss codes, never by client field names."""
        for warning in warnings:
            self._warnings[wire, warning.code] += 1

    def use(self, model: str, usage: Usage) -> None:
        """Count the tokens of a reply."""
        self._tokens[model, "input"] += usage.input_tokens or 0
        self._tokens[model, "output"] += usage.output_tokens or 0

    def switch(self, model: str, switches: Iterable[RoutingSwitched]) -> None:
        """Count how often a call switched from one candidate of a group to another."""
        for each in switches:
            self._switches[model, each.from_, each.to, each.reason] += 1

    def time(self, name: str, seconds: float) -> None:
        """Add a duration to the histogram with the given name."""
        held = self._seconds.get(name)
        if held is None:
            held = self._seconds[name] = [0.0] * (len(_BUCKETS) + 2)
        # durations that are longer than the last bucket are counted in the entry after it
        held[bisect_left(_BUCKETS, seconds)] += 1
        held[-1] += seconds

    def save(self) -> Saved:
        """Return the values of all counters."""
        counters = {name: list(counter.items()) for name, counter in self._counters.items()}
        return Saved(self.in_flight, counters, self._seconds)

    def add(self, saved: Saved) -> None:
        """Add the saved values of another worker's counters to these counters."""
        self.in_flight += saved.in_flight
        for name, values in saved.counters.items():
            for labels, value in values:
                self._counters[name][labels] += value
        for name, held in saved.seconds.items():
            own = self._seconds.get(name, [0.0] * len(held))
            self._seconds[name] = [mine + other for mine, other in zip(own, held, strict=True)]

    def text(self) -> str:
        """Return all counters in the text format of Prometheus."""
        lines = ["# TYPE dragoman_in_flight gauge", f"dragoman_in_flight {self.in_flight}"]
        for name, labels in _LABELS.items():
            lines += _counter(f"dragoman_{name}_total", labels, self._counters[name])
        for name, held in self._seconds.items():
            lines += _histogram(f"dragoman_{name}_seconds", held)
        return "\n".join(lines) + "\n"


def _counter(name: str, labels: Iterable[str], values: Mapping[Labels, int]) -> list[str]:
    lines = [f"# TYPE {name} counter"]
    for key, value in sorted(values.items()):
        named = ",".join(
            [f'{label}="{_escape(text)}"' for label, text in zip(labels, key, strict=True)]
        )
        lines.append(f"{name}{{{named}}} {value}")
    return lines


def _histogram(name: str, held: list[float]) -> list[str]:
    *counts, total = accumulate(held[:-1])
    lines = [f"# TYPE {name} histogram"]
    lines += [
        f'{name}_bucket{{le="{bound:g}"}} {count:g}'
        for bound, count in zip(_BUCKETS, counts, strict=True)
    ]
    return [
        *lines,
        f'{name}_bucket{{le="+Inf"}} {total:g}',
        f"{name}_sum {held[-1]:.6f}",
        f"{name}_count {total:g}",
    ]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
