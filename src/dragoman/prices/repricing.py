"""Price the calls in a log again, with another price table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime
from decimal import Decimal

from msgspec import Struct

from ..events import Usage
from .billing import cost
from .results import EXACT, Cost, Unpriced
from .table import PriceTable


class PricedUse(Struct, frozen=True):
    """A call in a log: its usage, model, time, and recorded cost."""

    usage: Usage
    model: str
    at: date | datetime | None
    old: Cost | Unpriced | Decimal | None = None


class Repriced(Struct, frozen=True):
    """A call priced by another table.

    ``difference`` is new minus old, ``None`` when either is unknown.
    """

    use: PricedUse
    old: Decimal | None
    new: Cost | Unpriced
    difference: Decimal | None


def reprice(
    records: Iterable[
        PricedUse | tuple[Usage, str, date | datetime | None, Cost | Unpriced | Decimal | None]
    ],
    table: PriceTable | None = None,
) -> Iterator[Repriced]:
    """Price stored calls again, with the rows of ``table`` for the day of each call."""
    for record in records:
        use = record if isinstance(record, PricedUse) else PricedUse(*record)
        # Unlike in ``cost``, a call without a time has no price: today's price would be a guess.
        new: Cost | Unpriced = Unpriced("the record has no time")
        if use.at is not None:
            new = cost(use.usage, use.model, use.at, table=table)
        old = None if isinstance(use.old, Unpriced) else use.old
        if isinstance(old, Cost):
            old = old.total
        if old is None or isinstance(new, Unpriced):
            yield Repriced(use, old, new, None)
        else:
            yield Repriced(use, old, new, EXACT.subtract(new.total, old))
