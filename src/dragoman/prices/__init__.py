"""Costs of calls: token counts times a dated price row, in exact decimals.

Box: core.

``bill = cost(reply)``, or ``cost(usage, "anthropic:claude-opus-4-8")``; then ``bill.total``,
``bill.parts`` and ``bill.pricing_version``, or ``bill.reason`` if the price is not known.

An unknown price is ``Unpriced`` with a reason, never zero. No token is billed twice, because
``Usage`` counts are inclusive and the cached, cache-written and reasoning tokens are taken out of
their totals before anything is multiplied. The bundled table is read on first use, not on import.
"""

from __future__ import annotations

from .billing import PricedAs, cost
from .repricing import PricedUse, Repriced, reprice
from .results import Cost, Unpriced
from .rows import Match, PriceRow, TermRow, Tier
from .sellers import find_seller, find_server, name_host
from .table import PriceTable

__all__ = [
    "Cost", "Match", "PriceRow", "PriceTable", "PricedAs", "PricedUse", "Repriced", "TermRow",
    "Tier", "Unpriced", "cost", "find_seller", "find_server", "name_host", "reprice",
]  # fmt: skip
