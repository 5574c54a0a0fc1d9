"""Write a comparison as one HTML file in the style of the trace viewer, without scripts.

Models wrote the answers, so none of them is trusted: every text is escaped, and the page's
Content-Security-Policy allows its own style and nothing else.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..replay import make_printable
from ..trace.export import PAGE, STYLE, hash_source
from ..trace.queries import trim
from .report import RATES, Amounts, Comparison, Divergence, TargetReport

_MOST = 500  # how many differences of a model the page shows
_HERE = Path(__file__).parent
HEADS = ("answered", *RATES.values(), "cost", "recorded cost", "median latency")
"""The headings of the numbers of a model."""


def write_page(found: Comparison) -> str:
    """Return a comparison as one HTML file, with the differing answers side by side."""
    sheets = PAGE / STYLE, _HERE / "page.css"
    style = "\n".join([sheet.read_text("utf-8") for sheet in sheets])
    recorded = [f"{model}: {count} calls" for model, count in found.models.items()]
    skipped = [f"not compared, {count}: {reason}" for reason, count in found.skipped.items()]
    rows = [[each.model, *describe_target(each)] for each in found.targets]
    return (_HERE / "page.html").read_text("utf-8").format(
        hash=hash_source(style), style=style, cases=found.cases,
        calls=_write_lines(recorded + skipped), table=_write_table(["model", *HEADS], rows),
        differences="".join([_write_differences(each) for each in found.targets]),
    )  # fmt: skip


def describe_target(target: TargetReport) -> list[str]:
    """Return the numbers of a model as the cells of a table."""
    rates = [str(target.rates[name]) for name in RATES]
    costs = [_describe_cost(target.made), _describe_cost(target.recorded)]
    return [str(target.answered), *rates, *costs, _describe_latency(target.made)]


def describe_gaps(target: TargetReport) -> list[str]:
    """Return lines about what a model did not answer or did not receive."""
    gaps = [f"failed, {count}: {error}" for error, count in target.errors.items()]
    gaps += [f"lost, {count}: {loss}" for loss, count in target.losses.items()]
    if target.missing:
        gaps.append(f"without an answer, {target.missing}: {target.stopped or 'not asked'}")
    return gaps


def _describe_cost(amounts: Amounts) -> str:
    return f"${amounts.cost_usd:.6f}{f' and {amounts.unpriced} unknown' * bool(amounts.unpriced)}"


def _describe_latency(amounts: Amounts) -> str:
    if amounts.latency_ms is None or amounts.latency_interval is None:
        return "-"
    low, high = amounts.latency_interval
    return f"{amounts.latency_ms:.0f} ms ({low:.0f}-{high:.0f})"


def _write_differences(target: TargetReport) -> str:
    shown = "".join([_write_difference(each) for each in target.differences[:_MOST]])
    more = len(target.differences) - _MOST
    note = [f"{more} more differences are in the output of --json"] if more > 0 else []
    count = len(target.differences)
    title = f"<h2>{_escape(target.model)}: {count} differing answers</h2>"
    return title + _write_lines(describe_gaps(target)) + shown + _write_lines(note)


def _write_difference(each: Divergence) -> str:
    places = ", ".join([place or "the whole answer" for place in each.places])
    title = f"<h3>{_escape(each.case)}</h3><p>{_escape(each.kind)}: {_escape(places)}</p>"
    sides = [f"<pre>{_escape(_write_value(side))}</pre>" for side in (each.recorded, each.made)]
    return f'<section>{title}<div class="sides">{"".join(sides)}</div></section>'


def _write_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(trim(value)), indent=2).decode()


def _write_table(heads: Iterable[str], rows: Iterable[list[str]]) -> str:
    head = "".join([f"<th>{_escape(each)}</th>" for each in heads])
    lines = ["".join([f"<td>{_escape(cell)}</td>" for cell in row]) for row in rows]
    body = "".join([f"<tr>{line}</tr>" for line in lines])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _write_lines(lines: Iterable[str]) -> str:
    return "".join([f"<p>{_escape(line)}</p>" for line in lines])


def _escape(text: str) -> str:
    return html.escape("\n".join([make_printable(line) for line in text.split("\n")]))
