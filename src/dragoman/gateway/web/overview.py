"""The figures of the overview: requests, spend, tokens, latency, errors and budgets over time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from msgspec.structs import asdict
from starlette.requests import Request

from ..access import Service
from ..ledger import KeyBudget
from ..usage_book import Sums

_HOUR = 3_600_000  # milliseconds
# for each range, its length and the length of a bar, in milliseconds
_RANGES = {
    "1h": (_HOUR, _HOUR // 12),
    "24h": (24 * _HOUR, _HOUR),
    "7d": (7 * 24 * _HOUR, 24 * _HOUR),
    "31d": (31 * 24 * _HOUR, 24 * _HOUR),
}
_MOST_CALLS = 200
_MOST_MODELS = 20  # models whose latency is read one by one


def _find_start(name: str, now: int) -> tuple[int, int]:
    """Return when the first bar of a range starts, and the length of each bar."""
    if name not in _RANGES:
        raise ValueError(f"range: must be one of {', '.join(_RANGES)}")
    length, step = _RANGES[name]
    return (now // step - length // step + 1) * step, step


async def read_overview(service: Service, request: Request) -> dict[str, Any]:
    """Return the sums of the requests in a range, their latency, the budgets, and what runs now."""
    book = service.usage
    now = int(time.time() * 1000)
    assert book is not None
    since, step = _find_start(request.query_params.get("range", "24h"), now)
    await book.flush(service.live)
    rows = await book.sum_up(since, step)
    names = sorted({row.model for row in rows})[:_MOST_MODELS]
    budgets = await service.read_budgets()
    return {
        "now": now,
        "since": since,
        "step": step,
        "rows": rows,
        "latency": await book.find_latency(since),
        "latency_of": {name: await book.find_latency(since, name) for name in names},
        "live": await book.list_live(),
        "lost": await book.list_losses(since),
        "budgets": [_describe(service, each, rows, now, since) for each in budgets],
    }


def _describe(
    service: Service, budget: KeyBudget, rows: Sequence[Sums], now: int, since: int
) -> dict[str, Any]:
    """Return a budget, and when it is exhausted if spending continues as in the range."""
    keys = _find_keys(service, budget.account)
    spent = sum([row.usd for row in rows if row.key in keys], Decimal(0))
    empty = None
    if budget.left <= 0:
        empty = now
    elif spent:
        empty = now + int(budget.left * (now - since) / spent)
    lasts = budget.period == "month" and (empty or 0) >= _find_next_month(now)
    return {**asdict(budget), "spent": spent, "empty_at": None if lasts else empty}


def _find_keys(service: Service, account: str) -> set[str]:
    """Return the keys whose cost is added to an account of the ledger."""
    keys = () if service.keys is None else service.keys.keys
    return {key.id for key in keys if account in key.accounts}


def _find_next_month(now: int) -> int:
    day = datetime.fromtimestamp(now / 1000, UTC)
    first = datetime(day.year + day.month // 12, day.month % 12 + 1, 1, tzinfo=UTC)
    return int(first.timestamp() * 1000)


async def list_calls(service: Service, request: Request) -> dict[str, Any]:
    """Return the requests behind a number of the overview, the latest or the largest first."""
    book = service.usage
    assert book is not None
    query = dict(request.query_params)
    since, _ = _find_start(query.get("range", "24h"), int(time.time() * 1000))
    if query.get("since", "").isdigit():
        since = max(since, int(query["since"]))
    keys = _find_keys(service, query["account"]) if "account" in query else None
    await book.flush(service.live)
    rows = await book.list_requests(since, query, _MOST_CALLS + 1, keys)
    return {"calls": rows[:_MOST_CALLS], "has_more": len(rows) > _MOST_CALLS}
