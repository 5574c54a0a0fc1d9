"""The range of each number in a usage record; a number outside of it is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal

from msgspec.structs import replace

from ..messages import LossWarning
from .values import Usage

MAX_COUNT = 10**9
"""The largest token count that a call can have.

The largest context windows have some ten million tokens, so a larger count is an error of the
server. A sum of such counts fits into the 64-bit integers of databases.
"""

MAX_COST = Decimal(10**6)
"""The highest cost of one call, in US dollars, that a provider can state."""

_FINEST = -40  # the exponent of the last digit of a stated cost; those of floats are above -35
_COUNTS = tuple(
    [
        name
        for name in Usage.__struct_fields__
        if name not in ("estimated", "stated_cost_usd", "from_cache", "terms")
    ]
)


def find_absurd(usage: Usage, most: int = MAX_COUNT) -> str | None:
    """Return the first field of a usage whose number is outside its range, or ``None``.

    ``most`` is the largest valid count.
    """
    return next(_list_absurd(usage, most), None)


def bound_usage(usage: Usage) -> tuple[Usage, tuple[LossWarning, ...]]:
    """Return a usage without the numbers that no call can have, and a warning for each of them."""
    absurd = list(_list_absurd(usage, MAX_COUNT))
    if not absurd:
        return usage, ()
    warnings = [
        LossWarning("usage_dropped", f"usage.{name}", f"{_describe(name)}, so it is unknown")
        for name in absurd
    ]
    return replace(usage, **dict.fromkeys(absurd)), tuple(warnings)


def add_terms(usage: Usage, terms: Mapping[str, str]) -> Usage:
    """Return a usage with the terms of sale, given by kind; a usual one is an empty string."""
    if not terms:
        return usage
    named = [f"{kind}:{word}" for kind, word in sorted(terms.items()) if word]
    return replace(usage, terms=tuple(named))


def _list_absurd(usage: Usage, most: int) -> Iterator[str]:
    for name in _COUNTS:
        count = getattr(usage, name)
        if count is not None and not 0 <= count <= most:
            yield name
    if usage.stated_cost_usd is not None and not is_cost(usage.stated_cost_usd):
        yield "stated_cost_usd"


def is_cost(amount: Decimal) -> bool:
    """Return whether an amount can be the cost of a call in US dollars."""
    exponent = amount.as_tuple().exponent
    if not isinstance(exponent, int) or not _FINEST <= exponent <= -_FINEST:
        return False
    return 0 <= amount <= MAX_COST


def _describe(name: str) -> str:
    if name == "stated_cost_usd":
        return f"the server states a cost outside of 0 to {MAX_COST} US dollars"
    return f"the server reports a count outside of 0 to {MAX_COUNT}"
