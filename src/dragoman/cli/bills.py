"""Sum the cost of a log's calls by day, model, provider, session, key or project."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal, TypeAlias, get_args

import click

from ..log import EventLog, LogRecord, SessionStarted, read_calls
from ..prices import PriceTable, Repriced, Unpriced, reprice
from ..prices.cells import defuse
from ..prices.results import EXACT
from .console import legible, plural, show_table
from .cost import write_amount

By: TypeAlias = Literal["model", "day", "provider", "session", "key", "project"]
GROUPS: tuple[str, ...] = get_args(By)
NONE = "(none)"
_BAR = 24  # width of the longest bar of the chart in characters
_COUNTS = ("calls", "input_tokens", "cached_input_tokens", "output_tokens")
_COLUMNS = (
    *_COUNTS, "cached_share", "recorded_usd", "without_recorded_cost", "repriced_usd", "unpriced",
    "difference_usd", "stated_usd", "stated_minus_recorded_usd",
)  # fmt: skip


def add_up(log: EventLog, session: str | None, table: PriceTable, by: str) -> list[dict[str, Any]]:
    """Return the totals of a log, one row per group, sorted by name."""
    bills: dict[str, _Bill] = {}
    find_group = Grouping(log, by)
    for record, use in read_calls(log, session):
        [result] = reprice([use], table)
        bills.setdefault(find_group(record, use.model), _Bill()).add(result)
    return [{by: name, **bills[name].total()} for name in sorted(bills)]


class Grouping:
    """Find the group of a call: its day, model, provider, session, key or project."""

    def __init__(self, log: EventLog, by: str) -> None:
        self._log = log
        self._by = by
        self._projects: dict[str, str] = {}

    def __call__(self, record: LogRecord, sold_as: str) -> str:
        call: Any = record.payload
        if self._by == "day":
            return f"{record.timestamp:%Y-%m-%d}"
        if self._by == "key":
            return str(call.inbound.key if call.inbound is not None and call.inbound.key else NONE)
        if self._by == "project":
            return self._find_project(record.session)
        known = {"model": sold_as, "provider": call.provider, "session": record.session}
        return str(known[self._by])

    def _find_project(self, session: str) -> str:
        if session not in self._projects:
            first = next(self._log.read(session)).payload
            metadata = first.metadata if isinstance(first, SessionStarted) else {}
            # a session without a project is grouped by the folder that it worked in
            project = metadata.get("project") or metadata.get("workspace") or NONE
            self._projects[session] = str(project)
        return self._projects[session]


class _Bill:
    """The counts and the costs of one group of calls."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
        self._amounts: defaultdict[str, Decimal] = defaultdict(Decimal)
        self._missing: Counter[str] = Counter()  # how many calls lack an amount
        self._reasons: Counter[str] = Counter()

    def add(self, result: Repriced) -> None:
        usage = result.use.usage
        old = result.old
        stated = result.use.usage.stated_cost_usd
        self._counts.update({name: getattr(usage, name) or 0 for name in _COUNTS[1:]})
        self._counts["calls"] += 1
        if isinstance(result.new, Unpriced):
            self._reasons[result.new.reason] += 1
        amounts = {
            "recorded_usd": old,
            "repriced_usd": result.new.total,
            "difference_usd": result.difference,
            "stated_usd": stated,
            "stated_minus_recorded_usd": (
                None if old is None or stated is None else EXACT.subtract(stated, old)
            ),
        }
        for name, amount in amounts.items():
            self._missing[name] += amount is None
            self._amounts[name] = EXACT.add(self._amounts[name], amount or 0)

    def total(self) -> dict[str, Any]:
        asked = self._counts["input_tokens"]
        cached = self._counts["cached_input_tokens"]
        found = {
            **self._counts,
            "cached_share": round(cached / asked, 4) if asked else None,
            "without_recorded_cost": self._missing["recorded_usd"],
            "unpriced": dict(self._reasons),
            **{name: write_amount(amount) for name, amount in self._amounts.items()},
        }
        has_stated = self._missing["stated_usd"] < self._counts["calls"]
        return {name: found[name] for name in (_COLUMNS if has_stated else _COLUMNS[:-2])}


# --- showing the totals ------------------------------------------------------------------------


def write_csv(rows: Sequence[dict[str, Any]], by: str) -> str:
    """Return the rows as CSV; ``unpriced`` is the number of calls without a price."""
    names = [by, *_COLUMNS]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        counted = {**row, "unpriced": sum(row["unpriced"].values())}
        writer.writerow({**counted, by: defuse(row[by])})
    return out.getvalue()


def show_bills(rows: Sequence[dict[str, Any]], table: PriceTable, by: str, *, chart: bool) -> None:
    """Print the rows as a table, with a bar for each recorded cost if ``chart`` is set."""
    if not rows:
        click.echo("no calls that used tokens", err=True)
        return
    heads = [by, "calls", "in", "cached", "out", "recorded", "now"]
    lines = [_show_bill(row, by) for row in rows]
    if chart:
        amounts = [Decimal(row["recorded_usd"]) for row in rows]
        sizes = [max(1, int(_BAR * each / max(amounts))) if each > 0 else 0 for each in amounts]
        lines = [[*line, "█" * size] for line, size in zip(lines, sizes, strict=True)]
    show_table([*heads, ""] if chart else heads, lines, right=heads[1:])
    click.echo(
        f"\nnow: prices {table.version}; US dollars; + means that the cost of some calls is not "
        "known"
    )
    for row in rows:
        for reason, count in row["unpriced"].items():
            click.echo(legible(f"not priced, {plural(count, 'call')}: {reason}"))
        if "stated_usd" in row:
            beyond = Decimal(row["stated_minus_recorded_usd"])
            stated = (
                f"the provider states {row['stated_usd']}, {beyond:+f} against the recorded cost"
            )
            click.echo(legible(f"{row[by]}: {stated}"))


def _show_bill(row: dict[str, Any], by: str) -> list[str]:
    calls, asked, cached, written = [str(row[name]) for name in _COUNTS]
    if row["cached_input_tokens"]:
        cached = f"{cached} ({row['cached_share']:.0%})"
    recorded = _amount(row["recorded_usd"], row["without_recorded_cost"], row["calls"])
    now = _amount(row["repriced_usd"], sum(row["unpriced"].values()), row["calls"])
    return [row[by], calls, asked, cached, written, recorded, now]


def _amount(amount: str, unknown: int, calls: int) -> str:
    if unknown == calls:
        return "unknown"
    return f"{Decimal(amount):.6f}{'+' if unknown else ''}"
