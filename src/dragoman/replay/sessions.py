"""Summarise the sessions of a log, one line each, and find text in them."""

from __future__ import annotations

from decimal import Decimal

from msgspec import Struct

from .. import log as logs
from ..prices.results import EXACT
from .summary import shorten


class Summary(Struct, kw_only=True):
    """A session's row in a list.

    An unknown cost is ``None``; ``unpriced`` is the number of calls with an unknown cost.
    """

    kind: str | None = None
    model: str | None = None
    goal: str | None = None
    outcome: str | None = None
    turns: int = 0
    calls: int = 0
    cost_usd: Decimal | None = None
    unpriced: int = 0


def summarize(log: logs.EventLog, entry: logs.SessionEntry) -> Summary:
    """Summarise a session from its first and last record and the records of turns and calls."""
    found = Summary()
    first = next(log.read(entry.session)).payload
    if isinstance(first, logs.SessionStarted):
        found.kind = first.kind
        found.goal = first.goal
        found.model = first.model
        if first.provider and first.model:
            found.model = f"{first.provider}:{first.model}"
    last = next(log.read(entry.session, entry.records - 1)).payload
    if isinstance(last, logs.SessionFinished):
        found.outcome = last.outcome
    for record in log.find("model.swapped", "turn.started", session=entry.session):
        if isinstance(record.payload, logs.ModelSwapped):
            found.model = record.payload.to
        else:
            found.turns += 1
    models: dict[str, None] = {}
    for use in logs.read_uses(log, entry.session):
        found.calls += 1
        models[use.model] = None
        if not isinstance(use.old, Decimal):
            found.unpriced += 1
        else:
            found.cost_usd = EXACT.add(found.cost_usd or Decimal(0), use.old)
    if found.model is None and models:
        # A gateway's session names no model, so use the models of its calls.
        found.model = next(iter(models)) if len(models) == 1 else f"{len(models)} models"
    return found


def find_excerpt(record: logs.LogRecord, text: str, width: int = 70) -> str:
    """Return the part of a record around the first match of a text."""
    for value in logs.find_texts(record.data):
        at = value.casefold().find(text.casefold())
        if at >= 0:
            begin = max(0, at - width // 3)
            line = shorten(value[begin : begin + width], width)
            return f"{'…' if begin else ''}{line}{'…' if begin + width < len(value) else ''}"
    return ""
