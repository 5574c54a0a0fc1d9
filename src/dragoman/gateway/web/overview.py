"""The figures of the overview: requests, spend, tokens, latency, errors and budgets over time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from msgspec.structs import asdict
from starlette.requests import Request

from ..access import Service
from ..budgets import read_account
from ..ledger import KeyBudget
from ..sums import KINDS, check_text
from ..totals import (
    ORDERS,
    Span,
    Total,
    select_figures,
    select_largest,
    select_latency,
    select_named,
)
from ..usage_book import UsageBook

_HOUR = 3_600_000  # milliseconds
# for each range, its length and the length of a bar, in milliseconds
_RANGES = {
    "1h": (_HOUR, _HOUR // 12),
    "24h": (24 * _HOUR, _HOUR),
    "7d": (7 * 24 * _HOUR, 24 * _HOUR),
    "31d": (31 * 24 * _HOUR, 24 * _HOUR),
}
_MOST_CALLS = 200
_MOST_NAMES = 20  # names of one page: models, keys, users and so on
_MOST_PAGES = 100_000
_MOST_DIGITS = 15  # of a time in milliseconds, which every database can compare


def _find_span(name: str) -> Span:
    """Return the time of a range, from the start of its first bar until now."""
    if name not in _RANGES:
        raise ValueError(f"range: must be one of {', '.join(_RANGES)}")
    length, step = _RANGES[name]
    now = int(time.time() * 1000)
    return Span(since=(now // step - length // step + 1) * step, now=now, step=step)


async def read_overview(service: Service, request: Request) -> dict[str, Any]:
    """Return the sums of the requests in a range, their latency, the budgets, and what runs now."""
    book = service.usage
    assert book is not None
    span = _find_span(request.query_params.get("range", "24h"))
    await book.flush(service.live)
    figures = await book.read(select_figures, span, _MOST_NAMES)
    return {
        "now": span.now,
        "since": span.since,
        "step": span.step,
        **asdict(figures),
        "live": await book.list_live(),
        "lost": await book.list_losses(span.since),
        "verdicts": service.gather_metrics().list_verdicts(),
        "budgets": await _read_budgets(service, book, span),
    }


async def list_names(service: Service, request: Request) -> dict[str, Any]:
    """Return a page of the models, keys, users, teams, tags or errors of a range.

    ``of`` names the kind, ``search`` is a part of the names, and ``order`` what is largest.
    """
    book = service.usage
    assert book is not None
    query = request.query_params
    kind = query.get("of", "key")
    order = query.get("order", "requests")
    if kind not in KINDS[1:]:
        raise ValueError(f"of: must be one of {', '.join(KINDS[1:])}")
    if order not in ORDERS:
        raise ValueError(f"order: must be one of {', '.join(ORDERS)}")
    span = _find_span(query.get("range", "24h"))
    found = await book.read(
        select_largest, span, kind, page=read_page(query), size=_MOST_NAMES, order=order,
        search=check_text("search", query.get("search", "")),
    )  # fmt: skip
    models = [each.name for each in found.rows] if kind == "model" else []
    latency = await book.read(select_latency, span, models) if models else {}
    return {**asdict(found), "latency_of": latency}


def read_page(query: Mapping[str, str]) -> int:
    """Return the number of the page that a query asks for; the first is 1."""
    text = query.get("page", "1")
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= _MOST_PAGES):
        raise ValueError(f"page: must be a number from 1 to {_MOST_PAGES}")
    return int(text)


async def _read_budgets(service: Service, book: UsageBook, span: Span) -> list[dict[str, Any]]:
    """Return the budgets of which the smallest part is left, and when they are exhausted."""
    budgets = await service.read_budgets()
    budgets.sort(key=lambda each: (each.left / each.limit if each.limit else 0, each.account))
    shown = budgets[:_MOST_NAMES]
    named: dict[str, list[tuple[str, str]]] = {}
    for each in shown:
        kind, name = read_account(each.account)
        named.setdefault(kind, []).append((name, each.account))
    used: dict[str, Total] = {}
    for kind, names in named.items():
        found = await book.read(select_named, span, kind, [name for name, _ in names])
        used |= {account: found[name] for name, account in names if name in found}
    return _describe(shown, used, span)


def _describe(
    budgets: Sequence[KeyBudget], used: Mapping[str, Total], span: Span
) -> list[dict[str, Any]]:
    """Return budgets, and when each is exhausted if spending continues as in the range."""
    made = []
    for budget in budgets:
        spent = used[budget.account].usd if budget.account in used else Decimal(0)
        empty = None
        if budget.left <= 0:
            empty = span.now
        elif spent:
            empty = span.now + int(budget.left * (span.now - span.since) / spent)
        ends = None if budget.ends is None else budget.ends.timestamp() * 1000
        lasts = empty is not None and ends is not None and empty >= ends
        kind, name = read_account(budget.account)
        made.append(
            {
                **asdict(budget),
                "kind": kind,
                "name": name,
                "spent": spent,
                "empty_at": None if lasts else empty,
            }
        )
    return made


async def list_calls(service: Service, request: Request) -> dict[str, Any]:
    """Return the requests behind a number of the overview, the latest or the largest first."""
    book = service.usage
    assert book is not None
    query = dict(request.query_params)
    since = max(_find_span(query.get("range", "24h")).since, _read_time(query, "since"))
    _read_time(query, "until")  # checked here, and used below
    for name, text in query.items():
        check_text(name, text)
    await book.flush(service.live)
    rows = await book.list_requests(since, query, _MOST_CALLS + 1)
    return {"calls": rows[:_MOST_CALLS], "has_more": len(rows) > _MOST_CALLS}


def _read_time(query: Mapping[str, str], name: str) -> int:
    """Return a time of a query in milliseconds; 0 if it has none."""
    text = query.get(name) or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise ValueError(f"{name}: must be a time in milliseconds since 1970")
    return int(text)
