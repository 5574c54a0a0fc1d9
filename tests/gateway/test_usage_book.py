"""Test that a row which the database can never store does not hold up the others."""

# ruff: noqa: SLF001 - a driver that fails is put in place of the real one

import asyncio
import sqlite3
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.gateway import app as app_module
from dragoman.gateway.app import create_app
from dragoman.gateway.sums import DAY
from dragoman.gateway.totals import Span, select_figures
from dragoman.gateway.usage_book import LostReasoning, UsageBook, UsageRow
from tests.listed import Listed
from tests.waiting import until

NOW = int(datetime.now(UTC).timestamp() * 1000)
ROW = UsageRow(NOW, "r", "ann", "fast", 200, "", 7, 3, Decimal("0.000123456789"), 0, 12, "s")
SPAN = Span(since=NOW // DAY * DAY, now=NOW, step=DAY)
WRONG: list[dict[str, Any]] = [
    {"input": 2**63},
    {"output": 10**400},
    {"usd": Decimal("NaN")},
    {"usd": Decimal("1e9999999")},
    {"usd": Decimal("1e7")},
    {"latency": 2**64},
    {"at": -(2**64)},
]


@pytest.mark.parametrize("store", ["memory", "file", "server"])
async def test_row_that_can_never_be_stored_holds_up_no_other(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    place = {
        "memory": lambda: None,
        "file": lambda: tmp_path / "state.db",
        "server": lambda: request.getfixturevalue("postgres_url"),
    }[store]()
    missed: list[int] = []
    book = UsageBook(place)
    book.on_miss = lambda: missed.append(1)
    for number, wrong in enumerate(WRONG):
        book.count(replace(ROW, id=f"wrong{number}", **wrong))
        book.count(replace(ROW, id=f"right{number}"))
    await book.flush(())
    assert len(missed) == len(WRONG)
    assert caplog.text.count("has a number that cannot be stored") == len(WRONG)
    sums = (await book.read(select_figures, SPAN, 9)).total
    assert sums.requests == len(WRONG)
    assert sums.usd == len(WRONG) * ROW.usd
    assert len(await book.list_requests(0, {}, 99)) == len(WRONG)
    book.close()


@pytest.mark.parametrize("store", ["memory", "server"])
async def test_text_that_can_never_be_stored_holds_up_no_other(
    store: str, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    book = UsageBook(None if store == "memory" else request.getfixturevalue("postgres_url"))
    missed: list[int] = []
    book.on_miss = lambda: missed.append(1)
    for number, wrong in enumerate(("\ud800", "a\ud800b")):
        book.count(replace(ROW, id=f"wrong{number}", team=wrong))
        book.count(replace(ROW, id=f"right{number}"))
        book.note_loss(LostReasoning(NOW, wrong, "openai", "fast", "s"))
        book.note_loss(LostReasoning(NOW, "ann", "openai", "fast", "s"))
    await book.flush(())
    assert len(missed) == 4
    assert caplog.text.count("the usage of a request cannot be stored") == 4
    assert {row.id for row in await book.list_requests(0, {}, 9)} == {"right0", "right1"}
    assert [each.requests for each in await book.list_losses(0)] == [2]
    book.close()


async def test_sum_of_costs_may_exceed_64_bits() -> None:
    book = UsageBook(None)
    for number in range(20):
        book.count(replace(ROW, id=str(number), usd=Decimal("9000000.000000000001")))
    await book.flush(())
    sums = (await book.read(select_figures, SPAN, 9)).total
    assert sums.usd == 20 * Decimal("9000000.000000000001")
    book.close()


async def test_row_is_kept_whatever_error_the_database_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    book = UsageBook(None)
    real = book._write

    def fail(*_: Any) -> None:
        raise RuntimeError("the driver failed")

    book._write = fail  # type: ignore[method-assign]
    book.count(ROW)
    await book.flush(())
    assert "usage cannot be written: the driver failed" in caplog.text
    book._write = real  # type: ignore[method-assign]
    await book.flush(())
    assert [row.id for row in await book.list_requests(0, {}, 9)] == ["r"]
    book.close()


async def test_background_task_that_fails_is_reported_and_runs_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app_module, "_POLL_SECONDS", 0)
    runs: list[int] = []

    async def keep_flushing(live: Any) -> None:
        runs.append(1)
        if len(runs) < 3:
            raise sqlite3.InterfaceError("no connection")
        await asyncio.Event().wait()

    book = UsageBook(None)
    book.keep_flushing = keep_flushing  # type: ignore[method-assign]
    app = create_app({"fast": Listed()}, admin=f"sha256:{'0' * 64}", usage=book)
    async with app.router.lifespan_context(app):
        await until(lambda: len(runs) == 3, "the third run of the task")
    assert caplog.text.count("writing the usage failed; it is tried again") == 2
