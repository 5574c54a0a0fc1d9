"""The admin page: usage by key and model, cost over time, budgets, running requests, upstreams.

It is off unless the operator gives the hash of an admin key. The page is HTML and SVG without any
script, and is read-only: no route changes anything, so a forged request (CSRF) has no effect, and
requests that another site starts are rejected anyway.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from decimal import Decimal
from html import escape
from typing import Any

from starlette.requests import Request as HttpAsked
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from .access import Service
from .ledger import Budget
from .usage import Row, UsageBook

_RANGES = {"24h": 24, "7d": 7 * 24, "31d": 31 * 24}
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .25rem .75rem .25rem 0; }
th { border-bottom: 1px solid; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td { overflow-wrap: anywhere; } td.n { overflow-wrap: normal; } .wide { overflow-x: auto; }
figure { margin: 0; } svg { display: block; width: 100%; height: 160px; fill: #3b6fb6; }
.axis { display: flex; justify-content: space-between; border-top: 1px solid; } nav a { margin-right: 1rem; }
@media (max-width: 40rem) { body { padding: 0 .5rem; } table { font-size: 13px; } th, td { padding-right: .4rem; } }
"""
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
}


class AdminPage:
    """Serve the admin page to clients that send the admin key as a password or a bearer token."""

    def __init__(self, service: Service, book: UsageBook) -> None:
        self._service = service
        self._book = book

    def routes(self) -> list[Route]:
        """Return the route of the admin page."""
        return [Route("/admin", self.show, methods=["GET"])]

    async def show(self, asked: HttpAsked) -> Response:
        """Return the admin page as an HTTP response."""
        if asked.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("the admin page is not for other sites", 403, _HEADERS)
        if not self._service.is_admin(asked.headers):
            wanted = {"www-authenticate": 'Basic realm="dragoman admin", charset="UTF-8"'}
            return PlainTextResponse(
                "the admin key is missing or wrong", 401, {**_HEADERS, **wanted}
            )
        chosen = asked.query_params.get("range", "24h")
        hours = _RANGES.get(chosen, 24)
        await self._book.flush(self._service.live)
        rows, live = await self._book.read(hours)
        models, budgets = self._service.models, await self._service.read_budgets()
        upstreams = models.describe_upstreams(await models.problems() or {})
        unpriced = {
            row.model for row in rows if row.is_uncharged and not models.is_priced(row.model)
        }
        page = _write_page(chosen, rows, live, upstreams, budgets, unpriced)
        return HTMLResponse(page, headers=_HEADERS)


# --- writing the page --------------------------------------------------------------------------


def _write_page(
    chosen: str,
    rows: Sequence[Row],
    live: Sequence[Mapping[str, Any]],
    upstreams: Sequence[Sequence[str]],
    budgets: Sequence[Budget],
    unpriced: Set[str],
) -> str:
    hours = _RANGES.get(chosen, 24)
    links = "".join([f'<a href="?range={name}">{name}</a>' for name in _RANGES])
    limits = [
        [each.account, each.period, f"{each.limit:.2f}", f"{each.left:.4f}"]
        for each in sorted(budgets, key=lambda each: each.left / (each.limit or 1))
    ]
    running = [
        [
            each["key"] or "-",
            each["model"],
            f"{each['seconds']:.1f}",
            str(each["bytes"]),
            each["id"],
        ]
        for each in sorted(live, key=lambda each: -each["seconds"])
    ]
    parts = [
        (
            f"<p>Last {escape(chosen)}: {sum([row.requests for row in rows])} requests, "
            f"{_sum_cost(rows, unpriced)} US dollars.</p>"
        ),
        "<h2>Spend over time (US dollars)</h2>",
        draw_chart(_fill(rows, hours, lambda row: float(row.usd)), "dollars"),
        "<h2>Requests over time</h2>",
        draw_chart(_fill(rows, hours, lambda row: float(row.requests)), "requests"),
        "<h2>Usage by key</h2>",
        _write_usage("Key", rows, lambda row: row.key or "-", unpriced),
        "<h2>Usage by model</h2>",
        _write_usage("Model", rows, lambda row: row.model or "-", unpriced),
        "<h2>Budgets (US dollars)</h2>",
        _write_table(["Key or team", "Period", "Budget", "Left"], limits, numbers=(2, 3)),
        f"<h2>Requests under way ({len(live)})</h2>",
        _write_table(
            ["Key", "Model", "Seconds", "Bytes sent", "Request"], running, numbers=(2, 3)
        ),
        "<h2>Upstreams</h2>",
        _write_table(["Name", "Served by", "State"], upstreams),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" '
        'content="10">'
        '<meta name="viewport" content="width=device-width"><title>Dragoman '
        f"gateway</title><style>{_STYLE}</style>"
        f"</head><body><h1>Dragoman gateway</h1><nav>{links}</nav>{''.join(parts)}</body></html>"
    )


def _fill(
    rows: Sequence[Row], hours: int, value: Callable[[Row], float]
) -> list[tuple[str, float]]:
    """Return the bars of a chart, including empty bars for periods without usage.

    A bar stands for one hour if the chart shows a day, and for one day if it shows more.
    """
    step = 1 if hours <= 24 else 24
    last = int(time.time() // 3600) // step
    sums: dict[int, float] = defaultdict(float)
    for row in rows:
        sums[row.hour // step] += value(row)
    shown = "%H:00" if step == 1 else "%m-%d"
    bars = range(last - hours // step + 1, last + 1)
    return [(time.strftime(shown, time.gmtime(bar * step * 3600)), sums[bar]) for bar in bars]


def draw_chart(bars: Sequence[tuple[str, float]], unit: str) -> str:
    """Return a bar chart, with the value of each bar as its tooltip.

    The bars are an SVG that is stretched; the labels are text next to it, which is not.
    """
    highest = max([value for _, value in bars], default=0.0) or 1.0
    drawn = [
        f'<rect x="{at}" y="{1 - value / highest:.4f}" width=".8" height="{value / highest:.4f}">'
        f"<title>{escape(label)} UTC: {value:g} {unit}</title></rect>"
        for at, (label, value) in enumerate(bars)
    ]
    step = max(1, -(-len(bars) // 5))
    axis = "".join([f"<span>{escape(label)}</span>" for label, _ in bars[::step]])
    caption = f"<figcaption>at most {highest:g} {unit}</figcaption>" if bars else ""
    head = f'<svg viewBox="0 0 {max(1, len(bars))} 1" preserveAspectRatio="none" role="img">'
    return (
        f"<figure>{caption}{head}<title>{unit} over time</title>{''.join(drawn)}</svg>"
        f'<div class="axis">{axis}</div></figure>'
    )


def _write_usage(
    title: str, rows: Sequence[Row], name: Callable[[Row], str], unpriced: Set[str]
) -> str:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[name(row)].append(row)
    lines = [
        [
            shown,
            *[str(sum(column)) for column in list(zip(*found, strict=True))[3:7]],
            _sum_cost(found, unpriced),
        ]
        for shown, found in sorted(
            groups.items(), key=lambda each: (-sum([row.usd for row in each[1]]), each[0])
        )
    ]
    return _write_table(
        [title, "Requests", "Failed", "Tokens in", "Tokens out", "USD"], lines, numbers=range(1, 6)
    )


def _sum_cost(rows: Sequence[Row], unpriced: Set[str]) -> str:
    """Return the cost of some usage; a part whose price is not known is named, not counted as 0."""
    total = sum([row.usd for row in rows], Decimal(0))
    if any(row.is_uncharged and row.model in unpriced for row in rows):
        return f"{total:.4f} + unknown" if total else "unknown"
    return f"{total:.4f}"


def _write_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()
) -> str:
    kinds = [' class="n"' if at in numbers else "" for at in range(len(titles))]
    head = "".join(
        [f"<th{kind}>{escape(title)}</th>" for kind, title in zip(kinds, titles, strict=True)]
    )
    body = "".join(
        [
            f"<tr>{''.join([f'<td{kind}>{escape(cell)}</td>' for kind, cell in zip(kinds, row, strict=True)])}</tr>"
            for row in rows
        ]
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'
