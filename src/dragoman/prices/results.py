"""The two results of pricing a call: what it cost, or why that is not known."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Literal

from msgspec import Struct

from .rows import PriceRow

# ``PriceRow`` limits rates to 27 digits. With a precision of 100 digits, every product and sum is
# therefore exact, whatever precision the caller's own decimal context has. Traps are off: a cost
# in a hostile log may be 1E+999999999, which adds up to infinity instead of raising an error.
EXACT = Context(prec=100, traps=[])


class Cost(Struct, frozen=True, tag="cost", kw_only=True):
    """The cost of a call. ``parts`` holds input, cached_input, cache_write, output and reasoning.

    The parts do not overlap and add up to ``total`` exactly. ``notes`` lists the assumptions.
    """

    total: Decimal
    parts: dict[str, Decimal]
    pricing_version: str
    row: PriceRow
    currency: str = "USD"
    notes: tuple[str, ...] = ()

    @property
    def reason(self) -> None:
        """Always ``None``: the cost is known."""

    def __repr__(self) -> str:
        notes = f", notes={self.notes!r}" if self.notes else ""
        return f"Cost(total={self.total!r}, pricing_version={self.pricing_version!r}{notes})"

    # a known cost is true even if it is zero, so that type checkers can distinguish it from
    # Unpriced
    def __bool__(self) -> Literal[True]:
        return True


class Unpriced(Struct, frozen=True, tag="unpriced"):
    """An unknown price, with the reason. It is false in a condition, and never counts as zero.

    The fields of a ``Cost`` are ``None``, so that ``cost(...).total`` can be read without a check.
    """

    reason: str

    @property
    def total(self) -> None:
        """Always ``None``: the total is not known."""

    @property
    def parts(self) -> None:
        """Always ``None``: the parts are not known."""

    @property
    def pricing_version(self) -> None:
        """Always ``None``: no table has the price."""

    def __bool__(self) -> Literal[False]:
        return False
