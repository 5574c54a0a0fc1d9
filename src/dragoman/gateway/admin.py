"""The admin page: usage by key and model, cost over time, running requests, state of upstreams.

It is off unless the operator gives the hash of an admin key. The page is HTML and SVG without any
script, and is read-only: no route changes anything, so a forged request (CSRF) has no effect, and
requests that another site starts are rejected anyway.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from html import escape
from typing import Any

from starlette.requests import Request as HttpAsked
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from .access import Service
from .keys import hash_key
from .usage import Row, UsageBook

_RANGES = {"24h": 24, "7d": 7 * 24, "31d": 31 * 24}
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .25rem .75rem .25rem 0; }
th { border-bottom: 1px solid; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } .bad { color: #b00020; font-weight: 600; } nav a { margin-right: 1rem; }
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

    def __init__(self, service: Service, book: UsageBook, digest: str) -> None:
        self._service = service
        self._book = book
        self._digest = digest

    def routes(self) -> list[Route]:
        """Return the route of the admin page."""
        return [Route("/admin", self.show, methods=["GET"])]

    async def show(self, asked: HttpAsked) -> Response:
        """Return the admin page as an HTTP response."""
        if asked.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("the admin page is not for other sites", 403, _HEADERS)
        if not self._is_allowed(asked.headers):
            wanted = {"www-authenticate": 'Basic realm="dragoman admin", charset="UTF-8"'}
            return PlainTextResponse(
                "the admin key is missing or wrong", 401, {**_HEADERS, **wanted}
            )
        chosen = asked.query_params.get("range", "24h")
        hours = _RANGES.get(chosen, 24)
        await self._book.flush(self._service.live)
        rows, live = await self._book.read(hours)
        problems = await self._service.models.problems()
        page = _write_page(
            chosen, rows, live, self._service.models.describe_upstreams(problems or {}), hours
        )
        return HTMLResponse(page, headers=_HEADERS)

    def _is_allowed(self, headers: Mapping[str, str]) -> bool:
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            try:
                value = base64.b64decode(value, validate=True).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                value = ""
        return hmac.compare_digest(hash_key(value.strip()), self._digest)


# --- writing the page --------------------------------------------------------------------------


def _write_page(
    chosen: str,
    rows: Sequence[Row],
    live: Sequence[Mapping[str, Any]],
    upstreams: Sequence[Sequence[str]],
    hours: int,
) -> str:
    links = "".join([f'<a href="?range={name}">{name}</a>' for name in _RANGES])
    total = sum([row.usd for row in rows], Decimal(0))
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
            f"${total:.4f}.</p>"
        ),
        "<h2>Spend over time (US dollars)</h2>",
        draw_chart(_fill(rows, hours, lambda row: float(row.usd)), "dollars"),
        "<h2>Requests over time</h2>",
        draw_chart(_fill(rows, hours, lambda row: float(row.requests)), "requests"),
        "<h2>Usage by key</h2>",
        _write_usage("Key", rows, lambda row: row.key or "-"),
        "<h2>Usage by model</h2>",
        _write_usage("Model", rows, lambda row: row.model or "-"),
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
    """Return a bar chart as SVG, with the value of each bar as its tooltip."""
    highest = max([value for _, value in bars], default=0.0) or 1.0
    width, height, step = 900, 160, 900 / max(1, len(bars))
    drawn = []
    for at, (label, value) in enumerate(bars):
        tall = height * value / highest
        drawn.append(
            f'<rect x="{at * step:.1f}" y="{height - tall:.1f}" width="{step * 0.8:.1f}" '
            f'height="{tall:.1f}" fill="#3b6fb6"><title>{escape(label)} UTC: {value:g} '
            f"{unit}</title></rect>"
        )
        if at % max(1, len(bars) // 8) == 0:
            drawn.append(
                f'<text x="{at * step:.1f}" y="{height + 16}" '
                f'font-size="11">{escape(label)}</text>'
            )
    label = f'<text x="0" y="-4" font-size="11">at most {highest:g} {unit}</text>' if bars else ""
    head = f'<svg viewBox="0 -16 {width} {height + 40}" role="img" fill="currentColor">'
    return f"{head}<title>{unit} over time</title>{label}{''.join(drawn)}</svg>"


def _write_usage(title: str, rows: Sequence[Row], name: Callable[[Row], str]) -> str:
    sums: dict[str, list[Any]] = {}
    for row in rows:
        held = sums.setdefault(name(row), [0, 0, 0, 0, Decimal(0)])
        for at, value in enumerate((row.requests, row.failed, row.input, row.output, row.usd)):
            held[at] += value
    ordered = sorted(sums.items(), key=lambda each: (-each[1][4], each[0]))
    lines = [[key, *[str(value) for value in held[:4]], f"{held[4]:.4f}"] for key, held in ordered]
    return _write_table(
        [title, "Requests", "Failed", "Tokens in", "Tokens out", "USD"], lines, numbers=range(1, 6)
    )


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
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
