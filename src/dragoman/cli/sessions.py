"""Find sessions in the log by an id, by the prefix of an id or by ``last``, and list them."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any, overload

import click
from msgspec.structs import asdict, replace

from ..log import ADMINISTRATION, EventLog, SessionEntry, SessionStarted
from ..prices.results import EXACT
from ..replay import Summary, shorten, summarize
from .cost import write_amount

_CANDIDATES = 10
_SHORTEST = 16  # minimum number of characters of an abbreviated session id


def sort_sessions(log: EventLog, *kinds: str) -> list[SessionEntry]:
    """Return all sessions, or the sessions of some kinds, the newest first."""
    found = log.sessions()
    entries = [each for each in found if not kinds or _find_kind(log, each.session) in kinds]
    return sorted(entries, key=lambda entry: (entry.updated, entry.last_id), reverse=True)


@overload
def find_session(log: EventLog, word: str, *kinds: str) -> str: ...
@overload
def find_session(log: EventLog, word: str | None, *kinds: str) -> str | None: ...
def find_session(log: EventLog, word: str | None, *kinds: str) -> str | None:
    """Return the session that an argument names: its id, a unique prefix of the id, or ``last``.

    The part of an id after the first underscore can be abbreviated too: ``01M7`` finds
    ``chat_01M7FV3Y``. With ``kinds``, ``last`` is the newest session of these kinds.
    """
    if word is None or any(log.read(word)):
        return word
    if word == "last":
        for entry in sort_sessions(log, *kinds):
            if entry.session != ADMINISTRATION:
                return entry.session
        raise click.UsageError(f"the log has no {' or '.join(kinds) or 'session'} yet")
    entries = [
        entry
        for entry in sort_sessions(log)
        for rest in [entry.session.partition("_")[2].lower()]
        if entry.session.startswith(word) or rest.startswith(word.lower())
    ]
    if len(entries) == 1:
        return entries[0].session
    if not entries:
        advice = "`dragoman log list` shows which it has"
        raise click.UsageError(f"the log has no session {word!r}; {advice}")
    lines = [f"{word!r} is the beginning of {len(entries)} sessions; give more of the id:"]
    for entry in entries[:_CANDIDATES]:
        when, kind, _, _, _, session, goal = make_row(entry, summarize(log, entry))
        lines.append(f"  {session}  {when}  {kind}  {shorten(goal, 50)}".rstrip())
    if len(entries) > _CANDIDATES:
        lines.append(f"  and {len(entries) - _CANDIDATES} more")
    raise click.UsageError("\n".join(lines))


def show_cost(summary: Summary) -> str:
    """Return the cost as a table cell; a plus sign means that some calls have an unknown cost.

    A session that failed before any call was sent costs nothing.
    """
    if not summary.calls:
        return "$0" if summary.outcome == "failed" else ""
    if summary.cost_usd is None:
        return "unknown"
    rounded = EXACT.quantize(summary.cost_usd, Decimal("1e-6"))
    amount = rounded if rounded.is_finite() else summary.cost_usd
    return f"${write_amount(amount)}{'+' if summary.unpriced else ''}"


def make_row(entry: SessionEntry, summary: Summary) -> list[str]:
    """Return the table cells of a session, such as its time, model, cost and goal."""
    return [
        f"{entry.updated:%Y-%m-%d %H:%M}", summary.kind or "", shorten(summary.model or "", 40),
        show_cost(summary),
        summary.outcome or "", shorten(entry.session, 60), shorten(summary.goal or "", 60),
    ]  # fmt: skip


def shorten_ids(
    found: list[tuple[SessionEntry, Summary]], entries: list[SessionEntry]
) -> list[tuple[SessionEntry, Summary]]:
    """Shorten the ids to unique prefixes at a terminal, where long ones would wrap."""
    if not sys.stdout.isatty():
        return found
    names = [entry.session for entry in entries]
    return [
        (replace(entry, session=_find_prefix(entry.session, names)), summary)
        for entry, summary in found
    ]


def _find_prefix(session: str, names: list[str]) -> str:
    """Return the shortest unique prefix of a session's id, of at least a minimum length."""
    length = _SHORTEST
    while sum(name.startswith(session[:length]) for name in names) > 1 and length < len(session):
        length += 1
    return session[:length]


ROW = ["last record", "kind", "model", "cost", "outcome", "session", "begins with"]


def to_json(entry: SessionEntry, summary: Summary) -> dict[str, Any]:
    """Return the data about a session that ``--json`` prints."""
    return {**asdict(entry), **asdict(summary)}


def _find_kind(log: EventLog, session: str) -> str | None:
    first = next(log.read(session)).payload
    return first.kind if isinstance(first, SessionStarted) else None
