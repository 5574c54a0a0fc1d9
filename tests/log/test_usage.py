"""Test repricing the calls in a log with other price tables."""

import tempfile
from decimal import Decimal
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman import Session, Usage
from dragoman.log import SqliteLog, read_uses
from dragoman.prices import Match, PricedAs, PriceRow, PriceTable, reprice

from ..listed import Listed, speak

rates = st.decimals("0.0001", "99", places=4)
counts = st.integers(1, 300_000)
usages = st.builds(
    lambda asked, written, cached: Usage(asked, written, cached_input_tokens=min(asked, cached)),
    counts,
    counts,
    counts,
)


def make_table(version: str, asked: Decimal, written: Decimal, cached: Decimal) -> PriceTable:
    return PriceTable(
        (PriceRow("p", Match(equals=("m",)), input=asked, output=written, cache_read=cached),),
        version=version,
    )


tables = st.tuples(rates, rates, rates)


async def record(folder: str, usages: list[Usage], table: PriceTable) -> SqliteLog:
    """Return a log of calls that were priced with the given table when they were made."""
    log = SqliteLog(Path(folder) / f"{table.version}.db")
    model = Listed(
        *[speak(lambda out: out.text("Done."), usage=usage) for usage in usages],
        name="p",
        model="m",
    )
    model.priced_as = PricedAs("p:m", table=table)
    session = Session(model, (), None, log)
    for _ in usages:
        await session.run("Go.")
    return log


@settings(max_examples=15)
@given(usages=st.lists(usages, min_size=1, max_size=4), first=tables, second=tables)
async def test_repriced_cost_equals_the_cost_recorded_with_the_same_table(
    usages: list[Usage], first: tuple[Decimal, ...], second: tuple[Decimal, ...]
) -> None:
    one = make_table("one", *first)
    two = make_table("two", *second)
    with tempfile.TemporaryDirectory() as folder:
        with await record(folder, usages, one) as log:
            repriced = [result.new.total for result in reprice(read_uses(log), two)]
        with await record(folder, usages, two) as log:
            recorded = [use.old for use in read_uses(log)]
    assert repriced == recorded
    assert len(recorded) == len(usages)
