"""``GET /v1/spend``: the bill of a period, by team, user, key, tag, model, vendor or day."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request as HttpAsked
from starlette.responses import Response

from ..errors import InvalidRequestError
from ..prices.cells import defuse
from .access import Service
from .sums import MOST_LINES, BillRow, check_bill, read_period, select_bill

_PARAMETERS = ("from", "to", "by", "format", "limit", "page")
_AMOUNTS = ("requests", "failed", "input_tokens", "output_tokens", "usd", "unpriced")
_MOST_PAGES = 10_000


async def show_spend(service: Service, asked: HttpAsked, owned: Mapping[str, str]) -> Any:
    """Return the part of the bill that the query describes, and of it only what is ``owned``."""
    book = service.usage
    if book is None:
        raise InvalidRequestError(
            "this gateway keeps no bill; its operator must start it with --admin", status=404
        )
    query = dict(asked.query_params)
    period = read_period(query.get("from"), query.get("to"))
    by = [name for name in query.get("by", "day").split(",") if name]
    only = {name: text for name, text in query.items() if name not in _PARAMETERS}
    check_bill(period, by, only, time.time())
    only |= owned
    size = _read_number(query, "limit", 1000, MOST_LINES)
    page = _read_number(query, "page", 1, _MOST_PAGES)
    form = query.get("format", "json")
    if form not in ("json", "csv"):
        raise InvalidRequestError("format: must be json or csv")
    await book.flush(service.live)
    first = (page - 1) * size
    rows = await book.read(select_bill, period, by, only, range(first, first + size + 1))
    has_more = len(rows) > size
    if form == "csv":
        headers = {"x-dragoman-next-page": str(page + 1)} if has_more else {}
        return Response(write_csv(rows[:size], by), headers=headers, media_type="text/csv")
    [total] = await book.read(select_bill, period, (), only, range(1))
    return {
        "from": period.since // 1000,
        "to": period.until // 1000,
        "by": by,
        "rows": [{**row.labels, **describe_amounts(row)} for row in rows[:size]],
        "total": describe_amounts(total),
        "next_page": page + 1 if has_more else None,
    }


def describe_amounts(row: BillRow) -> dict[str, Any]:
    """Return the sums of a line of a bill; the cost is text, since it is exact."""
    amounts = {name: getattr(row, name) for name in _AMOUNTS}
    return amounts | {"usd": f"{row.usd.normalize():f}"}


def write_csv(rows: Sequence[BillRow], by: Sequence[str]) -> str:
    """Return the lines of a bill as CSV with a heading."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*by, *_AMOUNTS])
    for row in rows:
        labels = [defuse(row.labels[name]) for name in by]
        writer.writerow([*labels, *describe_amounts(row).values()])
    return out.getvalue()


def _read_number(query: dict[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
        raise InvalidRequestError(f"{name}: must be a number from 1 to {most}")
    return int(text)
