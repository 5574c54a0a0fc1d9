"""The budget of a batch, and what the batch has used so far."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from msgspec import Struct

from ..prices.results import EXACT
from .results import Result

KINDS = ("usd", "tokens", "rows")


class Spent(Struct):
    """The totals of a batch: rows, tokens and cost over all its runs."""

    rows: int = 0
    failed: int = 0
    bad: int = 0
    cached: int = 0
    tokens: int = 0
    cost: Decimal = Decimal(0)
    unpriced: int = 0
    unpriced_reason: str | None = None


def parse_budget(budget: str | Mapping[str, Any] | None) -> dict[str, Decimal]:
    """Parse a budget: ``"usd=5"``, ``"usd=5,rows=1000"`` or a mapping.

    Raise ``ValueError`` if a part of the budget is invalid.
    """
    if budget is None:
        return {}
    if isinstance(budget, str):
        parts = [part.partition("=") for part in budget.split(",")]
        budget = {name.strip(): number.strip() for name, _, number in parts}
    limits: dict[str, Decimal] = {}
    for name, number in budget.items():
        if name not in KINDS:
            raise ValueError(
                f"budget: {name!r} is not one of {', '.join(f'{each}=N' for each in KINDS)}"
            )
        try:
            limits[name] = Decimal(str(number))
        except InvalidOperation:
            raise ValueError(f"budget: {name}={number} is not a number") from None
        if not limits[name].is_finite() or limits[name] < 0:
            raise ValueError(f"budget: {name} must be a finite number of at least 0, not {number}")
    return limits


class Spending:
    """Admit calls until the budget is used up.

    A call is admitted if the budget covers it and all calls in flight, each estimated at the cost
    of the most expensive row so far; the first call runs alone. A budget is therefore exceeded
    only when a row costs more than every row before it.
    """

    def __init__(self, limits: Mapping[str, Decimal], spent: Spent) -> None:
        self.limits = limits
        self.spent = spent
        self.in_flight = 0
        self._most: dict[str, Decimal] = {"rows": Decimal(1)}
        self._is_known = False

    def admit(self) -> bool:
        """Return whether another call may begin now; if so, count it as in flight."""
        if self.limits and not self._lasts():
            return False
        self.in_flight += 1
        return True

    def settle(self, result: Result | None) -> None:
        """Count a call as ended, and add its result, if it has one, to the totals."""
        self.in_flight -= 1
        if result is not None:
            self.add(result)

    def add(self, result: Result) -> None:
        """Add a result to the totals."""
        spent, used = (
            self.spent,
            (result.usage.input_tokens or 0) + (result.usage.output_tokens or 0),
        )
        spent.rows += 1
        spent.failed += result.failed
        spent.bad += result.bad
        spent.cached += result.cached
        spent.tokens += used
        if result.cost is not None:
            spent.cost = EXACT.add(spent.cost, result.cost)
        elif result.unpriced is not None:
            spent.unpriced += 1
            spent.unpriced_reason = result.unpriced
        if self.limits and not result.cached:
            self._most["usd"] = max(self._most.get("usd", Decimal(0)), result.cost or Decimal(0))
            self._most["tokens"] = max(self._most.get("tokens", Decimal(0)), Decimal(used))
            self._is_known = self._is_known or not result.failed

    def _lasts(self) -> bool:
        if self.in_flight and not self._is_known and self.limits.keys() != {"rows"}:
            return False
        used = {
            "usd": self.spent.cost,
            "tokens": Decimal(self.spent.tokens),
            "rows": Decimal(self.spent.rows),
        }
        for name, limit in self.limits.items():
            expected = used[name] + (self.in_flight + 1) * self._most.get(name, Decimal(0))
            if expected > limit or used[name] >= limit:
                return False
        return True
