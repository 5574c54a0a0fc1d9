"""Counters in the text format of Prometheus. Each worker process has its own counters.

The number of series is bounded: a label has at most 100 values, and what comes later is counted
under ``other``.

``prometheus_client`` was measured: it takes 12 µs for the counters of a request (20 µs with
several workers) where these take 3 µs, and 98 ms to import.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from msgspec import Struct

from ..calls import GuardJudged, RoutingSwitched
from ..messages import LossWarning
from ..middleware.attempts import Counted
from .ledger import KeyBudget

_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0)
_MAX_VALUES = 100  # of a label, in one worker
OTHER = "other"

Labels: TypeAlias = tuple[str, ...]

# The counters, and the names of their labels.
_LABELS = {
    "requests": ("wire", "model", "status"),
    "warnings": ("wire", "code"),
    "tokens": ("model", "kind"),
    "cache_hits": ("model",),
    "cost_usd": ("model", "key"),
    "unpriced_calls": ("model",),
    "uncounted": ("place",),
    "budgets_unread": (),
    "alerts_unsent": (),
    "guard_verdicts": ("model", "judge", "stage", "action"),
    "switches": ("model", "from", "to", "reason"),
    "tool_calls": ("model", "provider", "outcome"),
}
# The measured durations, and the names of their labels.
_DURATIONS = ("request", "first_event")
_DURATION_LABELS = ("model", "provider")
_TOKENS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached": "cached_input_tokens",
    "cache_write": "cache_creation_input_tokens",
}


class SavedMetrics(Struct):
    """The values of all counters in a form that can be saved to a file.

    ``counters`` maps the name of each counter to its labels and values, and ``seconds`` the name
    of each measured duration to its labels and histograms.
    """

    in_flight: int = 0
    counters: dict[str, list[tuple[Labels, float]]] = {}
    seconds: dict[str, list[tuple[Labels, list[float]]]] = {}


class Metrics:
    """The gateway's counters. Labels are names of the configuration, never client input."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._counters: dict[str, dict[Labels, float]] = {
            name: defaultdict(int) for name in _LABELS
        }
        # An alert sees the first failure only if the counter has been 0 before.
        self._counters["budgets_unread"][()] = 0
        # For each name and its labels, a histogram of durations: a count for each bucket, a count
        # of longer durations, and the sum of all durations.
        self._seconds: dict[str, dict[Labels, list[float]]] = {name: {} for name in _DURATIONS}
        self._known: dict[str, set[str]] = defaultdict(set)

    def count(self, wire: str, model: str, status: int) -> None:
        """Count a finished request."""
        self._counters["requests"][wire, self._bound("model", model), str(status)] += 1

    def warn(self, wire: str, warnings: Iterable[LossWarning]) -> None:
        """Count the losses of a request by Dragoman's loss codes, never by client field names."""
        for warning in warnings:
            self._counters["warnings"][wire, warning.code] += 1

    def use(self, model: str, key: str, records: Iterable[Counted]) -> None:
        """Count the tokens, cache hits, cost and tool calls of the attempts of a call."""
        model = self._bound("model", model)
        key = self._bound("key", key)
        for record in records:
            for kind, field in _TOKENS.items():
                if tokens := getattr(record, field):
                    self._counters["tokens"][model, kind] += tokens
            if record.cached_input_tokens:
                self._counters["cache_hits"][model,] += 1
            if record.cost_usd is not None:
                self._counters["cost_usd"][model, key] += float(record.cost_usd)
            elif record.cost_unknown is not None:
                self._counters["unpriced_calls"][model,] += 1
            for outcome, count in record.tool_outcomes.items():
                provider = self._bound("provider", record.provider)
                self._counters["tool_calls"][model, provider, outcome] += count

    def miss(self, place: str) -> None:
        """Count a finished request that a database could not store."""
        self._counters["uncounted"][place,] += 1

    def miss_budgets(self) -> None:
        """Count a scrape or page whose budgets could not be read."""
        self._counters["budgets_unread"][()] += 1

    def miss_alert(self) -> None:
        """Count an alert that its webhook accepted in none of the attempts."""
        self._counters["alerts_unsent"][()] += 1

    def switch(self, model: str, switches: Iterable[RoutingSwitched]) -> None:
        """Count how often a call switched from one candidate of a group to another."""
        for each in switches:
            ends = self._bound("target", each.from_), self._bound("target", each.to)
            self._counters["switches"][self._bound("model", model), *ends, each.reason] += 1

    def judge(self, model: str, verdicts: Iterable[GuardJudged]) -> None:
        """Count the verdicts of the judges of a guard."""
        for each in verdicts:
            judge = self._bound("judge", each.judge)
            labels = self._bound("model", model), judge, each.stage, each.action
            self._counters["guard_verdicts"][labels] += 1

    def time(self, model: str, provider: str, **durations: float | None) -> None:
        """Add durations to the histograms of their names; ``None`` is not added."""
        labels = self._bound("model", model), self._bound("provider", provider)
        for name, seconds in durations.items():
            if seconds is None:
                continue
            held = self._seconds[name].get(labels)
            if held is None:
                held = self._seconds[name][labels] = [0.0] * (len(_BUCKETS) + 2)
            # durations that are longer than the last bucket are counted in the entry after it
            held[bisect_left(_BUCKETS, seconds)] += 1
            held[-1] += seconds

    def save(self) -> SavedMetrics:
        """Return the values of all counters."""
        counters = {name: list(counter.items()) for name, counter in self._counters.items()}
        seconds = {name: list(held.items()) for name, held in self._seconds.items()}
        return SavedMetrics(self.in_flight, counters, seconds)

    def add(self, saved: SavedMetrics) -> None:
        """Add the saved values of another worker's counters to these counters."""
        self.in_flight += saved.in_flight
        for name, values in saved.counters.items():
            for labels, value in values:
                self._counters[name][labels] += value
        for name, histograms in saved.seconds.items():
            for labels, held in histograms:
                own = self._seconds[name].get(labels, [0.0] * len(held))
                summed = [mine + other for mine, other in zip(own, held, strict=True)]
                self._seconds[name][labels] = summed

    def list_verdicts(self) -> list[dict[str, Any]]:
        """Return how often each judge gave each verdict, by model and stage."""
        names = _LABELS["guard_verdicts"]
        counted = sorted(self._counters["guard_verdicts"].items())
        return [
            {**dict(zip(names, labels, strict=True)), "count": each} for labels, each in counted
        ]

    def text(self, budgets: Sequence[KeyBudget] = (), key: str | None = None) -> str:
        """Return all counters, and what is left of budgets, in the text format of Prometheus.

        With ``key``, the cost of all other keys is summed up as ``other``.
        """
        lines = ["# TYPE dragoman_in_flight gauge", f"dragoman_in_flight {self.in_flight}"]
        for name, labels in _LABELS.items():
            values = self._counters[name]
            if name == "cost_usd" and key is not None:
                values = _hide_keys(values, key)
            lines += _family(f"dragoman_{name}_total", "counter", labels, values)
        for name in _DURATIONS:
            lines += _histogram(f"dragoman_{name}_seconds", self._seconds[name])
        # if there are too many budgets, keep the ones with the least left
        shown = sorted(budgets, key=lambda each: each.left)[:_MAX_VALUES]
        for name, field in (("budget_usd", "limit"), ("budget_left_usd", "left")):
            amounts: dict[Labels, float] = {
                (each.account, each.period): float(getattr(each, field)) for each in shown
            }
            lines += _family(f"dragoman_{name}", "gauge", ("account", "period"), amounts)
        return "\n".join(lines) + "\n"

    def _bound(self, label: str, value: str) -> str:
        """Return the value of a label, or ``other`` if the label has too many values already."""
        known = self._known[label]
        if value not in known:
            if len(known) >= _MAX_VALUES:
                return OTHER
            known.add(value)
        return value


def _hide_keys(costs: Mapping[Labels, float], key: str) -> dict[Labels, float]:
    shown: dict[Labels, float] = defaultdict(float)
    for (model, owner), cost in costs.items():
        shown[model, owner if owner == key else OTHER] += cost
    return shown


def _family(
    name: str, kind: str, labels: Sequence[str], values: Mapping[Labels, float]
) -> list[str]:
    lines = [f"{name}{_write(labels, key)} {value}" for key, value in sorted(values.items())]
    return [f"# TYPE {name} {kind}", *lines]


def _histogram(name: str, histograms: Mapping[Labels, list[float]]) -> list[str]:
    lines = [f"# TYPE {name} histogram"]
    for labels, held in sorted(histograms.items()):
        *counts, total = [int(count) for count in accumulate(held[:-1])]
        bounds = [*[f"{bound:g}" for bound in _BUCKETS], "+Inf"]
        for bound, count in zip(bounds, [*counts, total], strict=True):
            shown = _write((*_DURATION_LABELS, "le"), (*labels, bound))
            lines.append(f"{name}_bucket{shown} {count}")
        shown = _write(_DURATION_LABELS, labels)
        lines += [f"{name}_sum{shown} {held[-1]:.6f}", f"{name}_count{shown} {total}"]
    return lines


def _write(labels: Sequence[str], values: Labels) -> str:
    pairs = zip(labels, values, strict=True)
    if not labels:
        return ""
    return "{" + ",".join([f'{label}="{_escape(text)}"' for label, text in pairs]) + "}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
