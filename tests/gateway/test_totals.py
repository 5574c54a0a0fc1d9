"""What the pages read of the sums equals the sums of the rows, in few statements and few rows."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.database import Database
from dragoman.gateway.sums import DAY, HOUR, MINUTES
from dragoman.gateway.totals import (
    Figures,
    Span,
    Total,
    select_figures,
    select_largest,
    select_named,
)
from dragoman.gateway.usage_book import UsageBook, UsageRow
from tests.databases import postgres_url as postgres_url
from tests.databases import server as server

NOW = int(datetime.now(UTC).timestamp() * 1000)
ROW = UsageRow(NOW, "r", "ann", "fast", 200, "", 7, 3, Decimal("0.000123456789"), 0, 12, "s")
RANGES = [(12, MINUTES), (24, HOUR), (7, DAY), (31, DAY)]


def make_span(bars: int, step: int) -> Span:
    """Return the time of some bars, of which the last is not over."""
    return Span(since=(NOW // step - bars + 1) * step, now=NOW, step=step)


@pytest.fixture(params=["memory", "file", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return the place of a database: in memory, a SQLite file, and PostgreSQL."""
    places: dict[str, Callable[[], Any]] = {
        "memory": lambda: None,
        "file": lambda: tmp_path / "state.db",
        "server": lambda: request.getfixturevalue("postgres_url"),
    }
    return places[request.param]()


def make_rows(count: int) -> list[UsageRow]:
    """Return requests of the last 31 days, more of the last hours than of the first days."""
    chance = random.Random(63)
    rows = []
    for _ in range(count):
        length = chance.choice((HOUR, DAY, 7 * DAY, 31 * DAY))
        failed = chance.random() < 0.2
        rows.append(
            replace(
                ROW,
                at=NOW - chance.randrange(length),
                key=chance.choice(("", "ann", "Bob_1", "bob%2", "carl")),
                user=chance.choice(("", "u1", "u2")),
                team=chance.choice(("core", "web")),
                model=chance.choice(("fast", "own", "wide")),
                status=chance.choice((429, 500)) if failed else 200,
                error="provider_rate_limit" if failed else "",
                input=chance.randrange(9000),
                output=chance.randrange(900),
                usd=Decimal(0) if failed else Decimal(chance.randrange(10**13)).scaleb(-12),
                unpriced=int(chance.random() < 0.1),
                latency=chance.randrange(1, 60_000),
            )
        )
    return rows


def add_up(rows: Iterable[UsageRow], label: str) -> dict[str, tuple[Any, ...]]:
    """Return the sums of rows by the value of a label."""
    found: dict[str, list[UsageRow]] = defaultdict(list)
    for row in rows:
        found[getattr(row, label)].append(row)
    return {
        name: (
            len(some), sum(each.status >= 400 for each in some), sum(each.input for each in some),
            sum(each.output for each in some), sum([each.usd for each in some], Decimal(0)),
            sum(each.unpriced for each in some),
        )
        for name, some in found.items()
    }  # fmt: skip


def show(rows: Sequence[Total]) -> dict[str, tuple[Any, ...]]:
    """Return totals in the form of ``add_up``."""
    return {
        each.name: (
            each.requests, each.failed, each.input, each.output, each.usd, each.unpriced
        )
        for each in rows
    }  # fmt: skip


async def test_figures_of_each_range_are_those_of_its_rows(place: Any) -> None:
    rows = make_rows(600)
    book = UsageBook(place)
    for row in rows:
        book.count(row)
    await book.flush(())
    for bars, step in RANGES:
        span = make_span(bars, step)
        mine = [row for row in rows if row.at >= span.since]
        figures = await book.read(select_figures, span, 9)
        check_figures(figures, mine, step)
        for kind, label in (("user", "user"), ("team", "team")):
            told = await book.read(select_largest, span, kind, page=1, size=9)
            wanted = {name: sums for name, sums in add_up(mine, label).items() if name}
            assert show(told.rows) == wanted
        for order in ("failed", "input", "output", "usd"):
            told = await book.read(select_largest, span, "key", page=1, size=9, order=order)
            amounts = [getattr(each, order) for each in told.rows]
            assert amounts == sorted(amounts, reverse=True)
    book.close()


def check_figures(figures: Figures, rows: Sequence[UsageRow], step: int) -> None:
    """Compare figures with the rows that they sum up; a percentile is exact to 2 %."""
    [(_, *sums)] = [(name, *found) for name, found in add_up(rows, "session").items()]
    assert list(show([figures.total])[""]) == sums
    slots = {each.start: each.requests for each in figures.slots}
    counted: dict[int, int] = defaultdict(int)
    for row in rows:
        counted[row.at - row.at % step] += 1
    assert slots == counted
    assert show(figures.models.rows) == add_up(rows, "model")
    assert show(figures.keys.rows) == add_up(rows, "key")
    failed = [row for row in rows if row.error]
    assert show(figures.errors.rows) == add_up(failed, "error")
    for model in ("", "fast", "own"):
        times = sorted(
            row.latency for row in rows if row.status < 400 and row.model == (model or row.model)
        )
        told = figures.latency_of[model] if model else figures.latency
        assert told is not None
        for share, found in ((50, told.p50), (95, told.p95)):
            assert found == pytest.approx(times[(len(times) - 1) * share // 100], rel=0.021, abs=1)


async def test_names_are_found_and_shown_page_by_page(place: Any) -> None:
    book = UsageBook(place)
    for number in range(25):
        for _ in range(25 - number):
            book.count(replace(ROW, key=f"Key_{number:02}"))
    book.count(replace(ROW, key="100%"))
    await book.flush(())
    span = make_span(24, HOUR)
    pages = [await book.read(select_largest, span, "key", page=n, size=10) for n in (1, 2, 3)]
    assert [[each.requests for each in page.rows] for page in pages] == [
        [*range(25, 15, -1)], [*range(15, 5, -1)], [5, 4, 3, 2, 1, 1]
    ]  # fmt: skip
    assert [page.next_page for page in pages] == [2, 3, None]
    for search, names in (("EY_07", ["Key_07"]), ("0%", ["100%"]), ("y%0", []), ("\\", [])):
        found = await book.read(select_largest, span, "key", page=1, size=9, search=search)
        assert [each.name for each in found.rows] == names
    assert await book.read(select_named, span, "key", ["nobody"]) == {}
    book.close()


class Counted:
    """A database that counts its statements, and the rows that they return."""

    def __init__(self, base: Database) -> None:
        self._base = base
        self.statements = 0
        self.rows = 0

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        assert "dragoman_calls" not in statement
        found = self._base.run(statement, values)
        self.statements += 1
        self.rows += len(found)
        return found


async def test_statements_and_rows_of_a_page_do_not_depend_on_the_number_of_keys() -> None:
    read = []
    for keys in (30, 3000):
        book = UsageBook(None)
        for number in range(keys):
            book.count(replace(ROW, key=f"key{number}", model=f"m{number}", at=NOW - number))
        await book.flush(())

        def count(base: Database) -> tuple[int, int]:
            counted = Counted(base)
            select_figures(counted, make_span(31, DAY), 20)  # type: ignore[arg-type]
            return counted.statements, counted.rows

        read.append(await book.read(count))
        book.close()
    assert read[0] == read[1]
    statements, rows = read[0]
    assert statements <= 12
    assert rows < 200
