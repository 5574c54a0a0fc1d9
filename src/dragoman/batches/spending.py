"""The budget of a batch, and what the batch has used so far."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from msgspec import Struct

from ..prices.results import EXACT
from .output import Recovered
from .results import Result

KINDS = ("usd", "tokens", "rows")


class Spent(Struct):
    """The totals of a batch: rows, tokens and cost over all its runs."""

    rows: int = 0
    failed: int = 0
    bad: int = 0
    cached: int = 0
    tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    unpriced: int = 0
    unpriced_reason: str | None = None

    def take_over(self, found: Recovered, dropped: Decimal) -> None:
        """Replace the totals with those of an output; ``dropped`` is the cost of removed rows."""
        self.rows = found.done.count
        self.failed = found.failed
        self.bad = found.bad
        self.tokens = found.tokens
        self.cost_usd = EXACT.add(found.cost, dropped)


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
            known = ", ".join(f"{each}=N" for each in KINDS)
            hint = f"; write usd={number}" if name == "cost_usd" else ""
            raise ValueError(f"budget: {name!r} is not one of {known}{hint}")
        try:
            limits[name] = Decimal(str(number))
        except InvalidOperation:
            raise ValueError(f"budget: {name}={number} is not a number") from None
        if not limits[name].is_finite() or limits[name] < 0:
            raise ValueError(f"budget: {name} must be a finite number of at least 0, not {number}")
    return limits


class BatchBudget:
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
        spent = self.spent
        usage = result.usage
        used = (usage.input_tokens or 0) + (usage.output_tokens or 0)
        spent.rows += 1
        spent.failed += result.failed
        spent.bad += result.bad
        spent.cached += result.cached
        spent.tokens += used
        if result.cost is not None:
            spent.cost_usd = EXACT.add(spent.cost_usd, result.cost)
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
            "usd": self.spent.cost_usd,
            "tokens": Decimal(self.spent.tokens),
            "rows": Decimal(self.spent.rows),
        }
        for name, limit in self.limits.items():
            expected = used[name] + (self.in_flight + 1) * self._most.get(name, Decimal(0))
            if expected > limit or used[name] >= limit:
                return False
        return True


class SharedBudget:
    """Admit calls of several workers until their common budget is used up.

    On Ray this object is an actor. A worker has the id of its actor, which stays the same when Ray
    restarts the actor after its process has died.
    """

    def __init__(self, limits: Mapping[str, Decimal], spent: Spent) -> None:
        self._spending = BatchBudget(limits, spent)
        self._in_flight: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._is_over = False

    async def begin(self, worker: str) -> None:
        """Drop the calls that a worker had in flight when its process died."""
        for _ in range(self._in_flight.pop(worker, 0)):
            self._spending.settle(None)
        self._changed.set()

    async def admit(self, worker: str) -> bool:
        """Wait until the budget covers another call; return false if it is used up."""
        while not self._is_over:
            if self._spending.admit():
                self._in_flight[worker] += 1
                return True
            if self._spending.in_flight == 0:
                self._is_over = True
                self._changed.set()
            else:
                self._changed.clear()
                await self._changed.wait()
        return False

    async def settle(self, worker: str, result: Result) -> None:
        """Count an admitted call as ended, and add its result to the totals."""
        if self._in_flight[worker]:
            self._in_flight[worker] -= 1
            self._spending.settle(result)
        else:  # a message of a dead process arrived after its successor had begun
            self._spending.add(result)
        self._changed.set()

    async def add(self, result: Result) -> None:
        """Add the result of a row that needed no call."""
        self._spending.add(result)

    async def is_over(self) -> bool:
        """Return whether a row was not sent because the budget is used up."""
        return self._is_over
