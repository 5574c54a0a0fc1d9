"""What the pages read of the sums: the bars of a time, its largest names, and its latency.

Each function runs a fixed number of statements, and returns a bounded number of rows, however many
keys and requests there are. It reads sums, never the rows of requests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import Any

from msgspec import Struct

from ..database import Database
from .sums import COUNTS, KEPT, MANY, WEEK, add_parts, find_percentile

ORDERS = ("requests", "failed", "input", "output", "usd")
"""What the names can be ordered by, the largest first."""
_SUMS = ", ".join([f"coalesce(sum({each}), 0)" for each in COUNTS])
_ORDER = {"usd": "sum(micros) desc, sum(picos)"}
_END = 2**62  # later than every time


class Total(Struct, frozen=True):
    """The sums of the requests with one label, or in the bar that starts at ``start``."""

    name: str
    start: int
    requests: int
    failed: int
    input: int
    output: int
    usd: Decimal
    unpriced: int


class Percentiles(Struct, frozen=True):
    """Percentiles of the latency of requests that did not fail, in milliseconds."""

    p50: int
    p95: int


class Listing(Struct, frozen=True):
    """A page of the names with the largest sums, and the number of the next page, if any."""

    rows: Sequence[Total]
    next_page: int | None


class Span(Struct, frozen=True):
    """The time from ``since`` until now in milliseconds, and the length of its bars."""

    since: int
    now: int
    step: int

    def cover(self, kind: str) -> list[tuple[int, int, int]]:
        """Return the steps whose sums together are the time, each with its first and last start.

        A month of days is a few days and then weeks, so that fewer rows are read.
        """
        steps = [each for each in KEPT if each >= self.step and (each != WEEK or kind in MANY)]
        found = []
        at = self.since
        for step, larger in zip(steps, [*steps[1:], _END], strict=True):
            end = -(-at // larger) * larger
            if end > at:
                found.append((step, at, min(end, max(at, self.now) + step)))
            at = end
        return [(step, first, end) for step, first, end in found if first <= self.now]


class Figures(Struct, frozen=True):
    """What happened in a time: the sums in all, by bar and by name, and the latency."""

    total: Total
    slots: Sequence[Total]
    latency: Percentiles | None
    models: Listing
    keys: Listing
    errors: Listing
    latency_of: dict[str, Percentiles]


def select_figures(base: Database, span: Span, size: int) -> Figures:
    """Return what happened in a time, with the ``size`` largest names of each kind."""
    rows = base.run(
        f"select start, {', '.join(COUNTS)} from dragoman_totals "  # noqa: S608 - our own
        "where step = ? and kind = '' and start >= ? order by start",
        (span.step, span.since),
    )
    models = select_largest(base, span, "model", page=1, size=size)
    latency = select_latency(base, span, ["", *[each.name for each in models.rows]])
    return Figures(
        total=_add_up("", [row[1:] for row in rows]),
        slots=[_make_total("", row[0], row[1:]) for row in rows],
        latency=latency.pop("", None),
        models=models,
        keys=select_largest(base, span, "key", page=1, size=size),
        errors=select_largest(base, span, "error", page=1, size=size),
        latency_of=latency,
    )


def select_largest(
    base: Database,
    span: Span,
    kind: str,
    *,
    page: int,
    size: int,
    search: str = "",
    order: str = "requests",
) -> Listing:
    """Return a page of the names of a kind with the largest sums; a name contains ``search``."""
    parts = []
    values: list[Any] = []
    where = "where step = ? and kind = ? and start >= ? and start < ?"
    if search:
        where += r" and lower(name) like ? escape '\'"
    needed = "micros, picos" if order == "usd" else order
    for step, first, end in span.cover(kind):
        parts.append(f"select name, {needed} from dragoman_totals {where}")  # noqa: S608 - our own
        values += [step, kind, first, end]
        values += [f"%{_escape(search.lower())}%"] if search else []
    largest = _ORDER.get(order, f"sum({order})")
    rows = base.run(
        f"select name from ({' union all '.join(parts)}) as parts "  # noqa: S608 - our own
        f"group by name order by {largest} desc, name limit ? offset ?",
        (*values, size + 1, (page - 1) * size),
    )
    names = [str(name) for (name,) in rows[:size]]
    found = select_named(base, span, kind, names)
    return Listing([found[name] for name in names], page + 1 if len(rows) > size else None)


def select_named(
    base: Database, span: Span, kind: str, names: Collection[str]
) -> dict[str, Total]:
    """Return the sums of some names; a name without requests is missing."""
    parts: dict[str, list[Sequence[Any]]] = defaultdict(list)
    for step, first, end in span.cover(kind) if names else ():
        # With each start and name given, the database seeks the rows in its key.
        starts = range(first, end, step)
        rows = base.run(
            f"select name, {_SUMS} from dragoman_totals where step = ? and kind = ? "  # noqa: S608
            f"and start in ({_mark(starts)}) and name in ({_mark(names)}) group by name",
            (step, kind, *starts, *names),
        )
        for row in rows:
            parts[row[0]].append(row[1:])
    return {name: _add_up(name, found) for name, found in parts.items()}


def select_latency(base: Database, span: Span, models: Collection[str]) -> dict[str, Percentiles]:
    """Return the latency of models by name; ``""`` names all of them together."""
    counts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    rows = base.run(
        "select model, bucket, sum(requests) from dragoman_latency "  # noqa: S608 - our own
        f"where step = ? and model in ({_mark(models)}) and start >= ? "
        "group by model, bucket order by model, bucket",
        (span.step, *models, span.since),
    )
    for model, bucket, count in rows:
        counts[model].append((bucket, int(count)))
    return {
        model: Percentiles(find_percentile(found, 50), find_percentile(found, 95))
        for model, found in counts.items()
    }


# --- private functions


def _make_total(name: str, start: int, sums: Sequence[Any]) -> Total:
    requests, failed, asked, written, micros, picos, unpriced = [int(each) for each in sums]
    return Total(name, start, requests, failed, asked, written, add_parts(micros, picos), unpriced)


def _add_up(name: str, parts: Sequence[Sequence[Any]]) -> Total:
    sums = [sum([int(part[at]) for part in parts]) for at in range(len(COUNTS))]
    return _make_total(name, 0, sums)


def _mark(values: Collection[Any]) -> str:
    return ", ".join("?" * len(values))


def _escape(text: str) -> str:
    """Return a text as a pattern of ``like`` that matches itself."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
