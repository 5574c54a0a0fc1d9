"""Sums of the finished requests by hour and day, which are written together with their rows.

``dragoman_bill`` has a sum for each combination of labels in an hour and in a day: it is the bill.
``dragoman_totals`` has sums by one label at a time, so that a page of 50,000 keys reads few rows,
and ``dragoman_latency`` a histogram of the latency of each model. Rows of requests are deleted
after a month; the sums of days are kept for years.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeAlias

from msgspec import Struct

from ..database import Database
from ..errors import InvalidRequestError

MINUTES = 300_000
"""The shortest step of the totals, in milliseconds: five minutes."""
HOUR = 3_600_000
DAY = 24 * HOUR
WEEK = 7 * DAY
KEPT = {MINUTES: 2 * DAY, HOUR: 32 * DAY, DAY: 1100 * DAY, WEEK: 40 * DAY}
"""For each step, how long its sums are kept, in milliseconds."""
MANY = ("key", "user")
"""The labels of the totals that have the most names, and are summed up by week too."""

_LABELS = ("key", "owner", "team", "tag", "model", "vendor", "status", "error")
COUNTS = ("requests", "failed", "input", "output", "micros", "picos", "unpriced")
"""The columns of the sums."""
_COLUMNS = ", ".join([f"{each} bigint not null" for each in COUNTS])
SCHEMA = [
    (
        "create table if not exists dragoman_bill (step bigint, start bigint, key text, owner "
        "text, team text, tag text, model text, vendor text, status bigint, error text, "
        f"{_COLUMNS}, primary key (step, start, {', '.join(_LABELS)})) {{clustered}}"
    ),
    (
        "create table if not exists dragoman_totals (step bigint, kind text, start bigint, "
        f"name text, {_COLUMNS}, primary key (step, kind, start, name)) {{clustered}}"
    ),
    (
        "create table if not exists dragoman_latency (step bigint, model text, start bigint, "
        "bucket bigint, requests bigint not null, "
        "primary key (step, model, start, bucket)) {clustered}"
    ),
]
KINDS = ("", "key", "user", "team", "tag", "model", "error")
"""The labels of the totals; the empty one sums up all requests."""
GROUPS = ("day", "hour", "user", "team", "key", "tag", "model", "vendor", "status")
"""What a bill can be grouped by."""
_COLUMN_OF = {"day": "start", "hour": "start", "user": "owner"}
_FILTERS = ("user", "team", "key", "tag", "model", "vendor")
KEY_LIMIT = "key_limit"
"""The error of requests beyond a limit of their key, which called no model and have not failed."""
OTHER = "other"
"""The tag and the user of requests beyond the most that a day may have."""
_MOST_NAMES = {"tag": 1000, "user": 100_000}
_ROWS = 200  # rows of one statement
# The cost is summed up in two parts, since 64 bits cannot hold a sum of many costs: millionths of
# a dollar, and millionths of these.
_UNIT = Decimal("1e-12")
_MILLION = 10**6
_GROWTH = 1.04  # the ratio of the ends of a bucket, so that a percentile is exact to 2 %
MOST_LINES = 10_000
"""The most lines of a bill that are returned at once."""
_MOST_TEXT = 1000  # characters of a name in a query

Counts: TypeAlias = list[int]


class BillRow(Struct, frozen=True, kw_only=True):
    """The sums of requests with the same labels, and these labels by name."""

    labels: Mapping[str, str]
    requests: int
    failed: int
    input_tokens: int
    output_tokens: int
    usd: Decimal
    unpriced: int


class Period(Struct, frozen=True):
    """The time of a bill in milliseconds; the end is exclusive."""

    since: int
    until: int

    @property
    def step(self) -> int:
        """The step of the sums that the time consists of: a day, or an hour."""
        return HOUR if self.since % DAY or self.until % DAY else DAY


def read_period(start: str | None, end: str | None, now: float | None = None) -> Period:
    """Return the time between two dates, both included, or two times at a full hour (UTC).

    The default is the present month until now.
    """
    today = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    since = _read_time("from", start or f"{today:%Y-%m}-01", 0)
    until = _read_time("to", end or f"{today:%Y-%m-%d}", DAY)
    if since >= until:
        raise InvalidRequestError("from: must be before the end in to")
    return Period(since, until)


def _read_time(name: str, text: str, added: int) -> int:
    """Return a time in milliseconds; add ``added`` to a date without a time."""
    try:
        found = datetime.fromisoformat(text)
        is_date = len(text) <= len("2030-01-31")
        at = int(found.replace(tzinfo=found.tzinfo or UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidRequestError(
            f"{name}: must be a date such as 2030-01-31, or a time such as 2030-01-31T12:00Z"
        ) from None
    if at % HOUR:
        raise InvalidRequestError(f"{name}: must be a full hour, since costs are summed by hour")
    return at + (added if is_date else 0)


class Billed(Struct, frozen=True):
    """What the sums need to know of a finished request; ``usd`` is in trillionths of a dollar."""

    at: int
    key: str
    user: str
    team: str
    tag: str
    model: str
    vendor: str
    status: int
    error: str
    input: int
    output: int
    usd: int
    unpriced: int
    latency: int


class NameBounds:
    """Limit how many different tags and users a day has; the rest are named ``other``."""

    def __init__(self, base: Database) -> None:
        self._base = base
        self._known: dict[tuple[str, int], set[str]] = {}

    def bound(self, kind: str, at: int, name: str) -> str:
        """Return a name, or ``other`` if its day has as many names as it may have.

        The caller holds the lock under which all processes write sums.
        """
        day = at - at % DAY
        known = self._known.get((kind, day), set())
        if not name or name in known:
            return name
        if len(self._known) > 8:
            self._known.clear()
        rows = self._base.run(
            "select name from dragoman_totals where step = ? and kind = ? and start = ?",
            (DAY, kind, day),
        )
        known |= {found for (found,) in rows}
        self._known[kind, day] = known
        if name not in known and len(known) >= _MOST_NAMES[kind]:
            return OTHER
        known.add(name)
        return name


def add_sums(base: Database, rows: Iterable[Billed]) -> None:
    """Add requests to all sums, in the transaction that is open."""
    # Most rows of a flush have the same labels, so sum these up before the steps and the kinds.
    same: dict[tuple[Any, ...], Counts] = defaultdict(lambda: [0] * len(COUNTS))
    times: dict[tuple[Any, ...], Counts] = defaultdict(lambda: [0])
    for row in rows:
        failed = int(row.status >= 400 and row.error != KEY_LIMIT)
        start = row.at - row.at % MINUTES
        labels = (row.key, row.user, row.team, row.tag, row.model, row.vendor, row.status)
        dollars, rest = divmod(row.usd, _MILLION)
        amounts = (1, failed, row.input, row.output, dollars, rest, row.unpriced)
        _add(same[start, *labels, row.error], amounts)
        if row.status < 400:
            times[start, row.model, find_bucket(row.latency)][0] += 1
    _add_amounts(base, same, [*KEPT])
    latency: dict[tuple[Any, ...], Counts] = defaultdict(lambda: [0])
    for (start, model, bucket), (count,) in times.items():
        for step in (MINUTES, HOUR, DAY):
            for name in {"", model}:
                latency[step, name, start - start % step, bucket][0] += count
    _upsert(base, "dragoman_latency", ("step", "model", "start", "bucket"), COUNTS[:1], latency)


def add_days(base: Database, days: Mapping[tuple[Any, ...], Sequence[int]]) -> None:
    """Add amounts that are known by day alone to the sums of days and weeks.

    A key of the mapping is the beginning of a day and the labels of a bill; a value has an amount
    for each column of ``COUNTS``, and negative ones subtract.
    """
    _add_amounts(base, days, [DAY, WEEK])


def _add_amounts(
    base: Database, amounts: Mapping[tuple[Any, ...], Sequence[int]], steps: Sequence[int]
) -> None:
    """Add amounts, by their start and labels, to the bill and the totals of some steps."""
    bill: dict[tuple[Any, ...], Counts] = defaultdict(lambda: [0] * len(COUNTS))
    totals: dict[tuple[Any, ...], Counts] = defaultdict(lambda: [0] * len(COUNTS))
    for (start, *found), added in amounts.items():
        key, user, team, tag, model, _, _, error = found
        for step in steps:
            at = start - start % step
            if step in (HOUR, DAY):
                _add(bill[step, at, *found], added)
            for kind, name in zip(KINDS, ("", key, user, team, tag, model, error), strict=True):
                if (name or kind in ("", "key")) and (step != WEEK or kind in MANY):
                    _add(totals[step, kind, at, name], added)
    _upsert(base, "dragoman_bill", ("step", "start", *_LABELS), COUNTS, bill)
    _upsert(base, "dragoman_totals", ("step", "kind", "start", "name"), COUNTS, totals)


def prune_sums(base: Database, now: int) -> None:
    """Delete the sums that are older than the time for which their step is kept."""
    for step, kept in KEPT.items():
        for table in ("dragoman_bill", "dragoman_totals", "dragoman_latency"):
            base.run(
                f"delete from {table} where step = ? and start < ?",  # noqa: S608 - our own
                (step, now - kept),
            )


def find_bucket(latency: int) -> int:
    """Return the bucket of the histogram that counts a latency in milliseconds."""
    return 0 if latency <= 0 else 1 + round(math.log(latency, _GROWTH))


def find_percentile(buckets: Sequence[tuple[int, int]], share: int) -> int:
    """Return a percentile in milliseconds of a histogram: its buckets in order, with counts."""
    left = (sum([count for _, count in buckets]) - 1) * share // 100
    for bucket, count in buckets:
        left -= count
        if left < 0:
            return 0 if bucket == 0 else round(_GROWTH ** (bucket - 1))
    return 0


def select_bill(
    base: Database, period: Period, by: Sequence[str], only: Mapping[str, str], page: range
) -> list[BillRow]:
    """Return the lines of a bill in the order of their labels; ``page`` is which of them."""
    step = HOUR if "hour" in by else period.step
    columns = [_COLUMN_OF.get(name, name) for name in by]
    where = ["step = ?", "start >= ?", "start < ?"]
    where += [f"{_COLUMN_OF.get(name, name)} = ?" for name in only]
    grouping = f"group by {', '.join(columns)} order by {', '.join(columns)}" if by else ""
    rows = base.run(
        f"select {', '.join([*columns, *_SUMS])} from dragoman_bill "  # noqa: S608 - our own
        f"where {' and '.join(where)} {grouping} limit ? offset ?",
        (step, period.since, period.until, *only.values(), len(page), page.start),
    )
    lines = []
    for row in rows:
        labels = dict(zip(by, row, strict=False))
        for name in ("day", "hour"):
            if name in labels:
                start = datetime.fromtimestamp(labels[name] / 1000, UTC)
                labels[name] = f"{start:%Y-%m-%d}" if name == "day" else f"{start:%Y-%m-%dT%H:00Z}"
        lines.append(
            _make_line({name: str(text) for name, text in labels.items()}, row[len(by) :])
        )
    return lines


def check_bill(period: Period, by: Sequence[str], only: Mapping[str, str], now: float) -> None:
    """Raise ``InvalidRequestError`` if there is no such bill."""
    for name in by:
        if name not in GROUPS:
            raise InvalidRequestError(f"by: {name!r} is not one of {', '.join(GROUPS)}")
    if len(set(by)) != len(by) or {"day", "hour"} <= {*by}:
        raise InvalidRequestError("by: names each group once, and either day or hour")
    for name, text in only.items():
        if name not in _FILTERS:
            raise InvalidRequestError(f"{name!r} is not one of {', '.join(_FILTERS)}")
        check_text(name, text)
    needs_hours = period.step == HOUR or "hour" in by
    if needs_hours and period.since < now * 1000 - KEPT[HOUR]:
        raise InvalidRequestError("from: sums by hour are kept for 32 days; ask for whole days")
    if period.step == HOUR and "day" in by:
        raise InvalidRequestError("by: the days of a bill need dates in from and to")


def check_text(name: str, text: str) -> str:
    """Return a text of a query; raise ``InvalidRequestError`` if a database cannot compare it.

    PostgreSQL has no NUL in texts, and SQLite bounds the length of a pattern.
    """
    if len(text) > _MOST_TEXT or "\0" in text:
        raise InvalidRequestError(f"{name}: must be at most {_MOST_TEXT} characters without NUL")
    return text


_SUMS = tuple([f"coalesce(sum({each}), 0)" for each in COUNTS])


def add_parts(micros: int, picos: int) -> Decimal:
    """Return the US dollars of the two parts in which costs are summed up."""
    return (micros * _MILLION + picos) * _UNIT


def _make_line(labels: Mapping[str, str], sums: Sequence[Any]) -> BillRow:
    requests, failed, asked, written, micros, picos, unpriced = [int(each) for each in sums]
    return BillRow(
        labels=labels,
        requests=requests,
        failed=failed,
        input_tokens=asked,
        output_tokens=written,
        usd=add_parts(micros, picos),
        unpriced=unpriced,
    )


def _add(sums: Counts, amounts: Sequence[int]) -> None:
    for at, amount in enumerate(amounts):
        sums[at] += amount


def _upsert(
    base: Database,
    table: str,
    labels: Sequence[str],
    counts: Sequence[str],
    sums: Mapping[tuple[Any, ...], Counts],
) -> None:
    """Add sums to the rows of a table, several rows in each statement."""
    found = [(*names, *amounts) for names, amounts in sums.items()]
    marks = f"({', '.join('?' * (len(labels) + len(counts)))})"
    added = ", ".join([f"{each} = {table}.{each} + excluded.{each}" for each in counts])
    for first in range(0, len(found), _ROWS):
        part = found[first : first + _ROWS]
        base.run(
            f"insert into {table} ({', '.join([*labels, *counts])}) "  # noqa: S608 - our own
            f"values {', '.join([marks] * len(part))} "
            f"on conflict ({', '.join(labels)}) do update set {added}",
            [value for row in part for value in row],
        )
