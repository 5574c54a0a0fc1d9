"""Read the data for the trace viewer's page; long values are truncated for display."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from ..log import (
    CallStarted,
    EventLog,
    LogRecord,
    MessageRecorded,
    SessionEntry,
    rate_tool_calls,
)
from ..replay import Evidence, Summary, count_totals, find_excerpt, summarize

_SEARCHED = 3  # minimum length of the text in a full-text search
_TEXT = 4000  # characters of a text to show in the timeline
_ITEMS = 100
_DEEPEST = 12
_RAW = 200_000  # characters of a record, or of a model call, to show when it is opened
_CHECKPOINTS = 256
_MATCHES = 500  # maximum number of matching records of a session
_OPEN = "open"  # the filter value for sessions that are not finished


class NotOpenError(Exception):
    """The question is no longer open: it was answered in the meantime."""


class SessionFilter(Struct, frozen=True, kw_only=True):
    """Which sessions to list, and in which order: ``newest``, ``oldest``, ``cost`` or ``turns``.

    ``query`` is part of the name or of the content, ``model`` part of the model's name;
    ``outcome`` is ``open`` for unfinished sessions. Empty filters match everything.
    """

    query: str = ""
    sort: str = "newest"
    kind: str = ""
    outcome: str = ""
    model: str = ""

    def __post_init__(self) -> None:
        if self.sort not in _SORTS:
            raise ValueError(f"sort: must be one of {', '.join(_SORTS)}")

    def fits(self, summary: Summary) -> bool:
        """Return whether a session matches the filters other than ``query``."""
        return (
            self.kind in ("", summary.kind)
            and self.outcome in ("", summary.outcome or _OPEN)
            and self.model.lower() in (summary.model or "").lower()
        )


_SORTS: dict[str, Callable[[SessionEntry, Summary], Any]] = {
    "newest": lambda entry, summary: (-entry.updated.timestamp(), entry.session),
    "oldest": lambda entry, summary: (entry.updated.timestamp(), entry.session),
    "cost": lambda entry, summary: (
        -(summary.cost_usd or Decimal(0)),
        -summary.unpriced,
        entry.session,
    ),
    "turns": lambda entry, summary: (-(summary.turns or summary.calls), entry.session),
}


class Reader:
    """Read the data for the trace viewer's page from a log.

    The methods block: call them in a thread.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        # The state at the end of each page, so that the next page need not read everything again.
        self._known: OrderedDict[tuple[str, int, str], Evidence] = OrderedDict()
        # the summary of each session, and the head of its chain at that time
        self._summaries: dict[str, tuple[str, Summary]] = {}

    # --- listing and summarising sessions -------------------------------------------------------

    def list_sessions(
        self, wanted: SessionFilter | None = None, offset: int = 0, limit: int = 100
    ) -> dict[str, Any]:
        """Return a page of the matching sessions, each with outcome, cost, turns and model."""
        wanted = wanted or SessionFilter()
        entries = [
            entry for entry in self._log.sessions() if self._fits(entry.session, wanted.query)
        ]
        # with these filters and orders, the first page depends on the summary of every session
        filters = wanted.kind or wanted.outcome or wanted.model
        needs_all = filters or wanted.sort in ("cost", "turns")
        found = [(entry, self._summarize(entry) if needs_all else Summary()) for entry in entries]
        found = [each for each in found if wanted.fits(each[1])]
        found.sort(key=lambda each: _SORTS[wanted.sort](*each))
        shown = [self._to_row(entry, wanted.query) for entry, _ in found[offset : offset + limit]]
        return {"sessions": shown, "total": len(found)}

    def _summarize(self, entry: SessionEntry) -> Summary:
        known = self._summaries.get(entry.session)
        if known is None or known[0] != entry.head:
            known = self._summaries[entry.session] = entry.head, summarize(self._log, entry)
        return known[1]

    def _to_row(self, entry: SessionEntry, query: str) -> dict[str, Any]:
        summary = msgspec.to_builtins(self._summarize(entry))
        row = {**msgspec.to_builtins(entry), **summary, "goal": trim(summary["goal"], 200)}
        if len(query) >= _SEARCHED:
            matches = self.find(entry.session, query)["matches"]
            row |= {"matches": len(matches), "excerpt": matches[0]["excerpt"] if matches else ""}
        return row

    def _fits(self, session: str, query: str) -> bool:
        if query.lower() in session.lower():
            return True
        return len(query) >= _SEARCHED and next(self._log.search(query, session), None) is not None

    def find(self, session: str, query: str) -> dict[str, Any]:
        """Return the records of a session that contain a text, each with an excerpt."""
        found = islice(self._log.search(query, session), _MATCHES) if query.strip() else []
        return {
            "matches": [{"seq": each.seq, "excerpt": find_excerpt(each, query)} for each in found]
        }

    def count(self, session: str) -> dict[str, Any]:
        """Return the totals of a session."""
        totals = msgspec.to_builtins(count_totals(self._log, session))
        return {**totals, "goal": trim(totals.get("goal"), 2000)}

    def rate_tools(self) -> dict[str, Any]:
        """Return the rates of faulty tool calls of the log, per model and server."""
        return {"models": [each.to_data() for each in rate_tool_calls(self._log)]}

    def check_chain(self, session: str) -> dict[str, Any]:
        """Return whether the hash chain of a session is intact and, if not, where it breaks."""
        report = self._log.verify(session)
        found = next(iter([*report.breaks, *report.unreadable]), None)
        return {
            "ok": report.ok,
            "records": report.records,
            "break": None if found is None else msgspec.to_builtins(found),
        }

    # --- reading the records of a session -------------------------------------------------------

    def read_page(self, session: str, after: int = 0, limit: int = 500) -> dict[str, Any]:
        """Return the next steps of a session; notes name contradictions with earlier steps."""
        records = list(islice(self._log.read(session, after), limit))
        if not records:
            return {"steps": [], "last": after}
        evidence = self._recall(session, after, records[0])
        steps = [
            {**msgspec.to_builtins(evidence.to_step(record, {})), "data": trim(record.data)}
            for record in records
        ]
        self._known[session, records[-1].seq, records[-1].hash] = evidence
        while len(self._known) > _CHECKPOINTS:
            self._known.popitem(last=False)
        return {"steps": steps, "last": records[-1].seq}

    def _recall(self, session: str, after: int, first: LogRecord) -> Evidence:
        """Return the state of the proposals before the record ``first``, from a cache."""
        known = self._known.get((session, after, first.previous))
        if known is not None:
            return known.copy()
        evidence = Evidence()
        if after:
            for record in islice(self._log.read(session), after):
                evidence.add(record)
        return evidence

    def read_record(self, session: str, seq: int) -> dict[str, Any] | None:
        """Return one record as it is stored, or ``None`` if it does not exist."""
        record = self.find_record(session, seq)
        if record is None:
            return None
        return {
            "seq": record.seq,
            "type": record.type,
            "bytes": len(record.line),
            "hash": record.hash,
            "previous": record.previous,
            **_cut(msgspec.json.format(record.line, indent=2).decode()),
        }

    def find_record(self, session: str, seq: int) -> LogRecord | None:
        """Return the record with this number, or ``None`` if it does not exist."""
        found = next(self._log.read(session, seq - 1), None) if seq > 0 else None
        return found if found is not None and found.seq == seq else None

    def read_exchange(self, session: str, request_id: str) -> dict[str, Any] | None:
        """Return the request and the reply of one call, or ``None`` if it is not in the log."""
        messages: list[Any] = []
        asked: dict[str, Any] = {}
        events: list[dict[str, Any]] = []
        for record in self._log.read(session):
            payload = record.payload
            if (
                not isinstance(payload, dict)
                and getattr(payload, "request_id", None) == request_id
            ):
                asked = asked or {"messages": list(messages)}
                if isinstance(payload, CallStarted):
                    asked = {**record.data, **asked}
                else:
                    events.append({"type": record.type, **record.data})
            if isinstance(payload, MessageRecorded) and payload.in_context:
                messages.append(record.data["message"])
        if not asked:
            return None
        text = msgspec.json.format(
            msgspec.json.encode({"asked": asked, "heard": events}), indent=2
        ).decode()
        return {"request_id": request_id, **_cut(text)}


def _cut(text: str) -> dict[str, Any]:
    return {"text": text[:_RAW], "cut": max(len(text) - _RAW, 0)}


def trim(value: Any, longest: int = _TEXT, depth: int = 0) -> Any:
    """Return the value with long strings and lists truncated; a note replaces the omitted part."""
    if isinstance(value, str):
        if len(value) <= longest:
            return value
        return f"{value[:longest]}… ({len(value) - longest} characters more)"
    if depth >= _DEEPEST and isinstance(value, dict | list):
        return "… (nested more deeply than is shown)"
    if isinstance(value, dict):
        kept = {
            trim(key, 200): trim(item, longest, depth + 1)
            for key, item in islice(value.items(), _ITEMS)
        }
        return {**kept, "…": f"{len(value) - _ITEMS} more"} if len(value) > _ITEMS else kept
    if isinstance(value, list):
        items = [trim(item, longest, depth + 1) for item in value[:_ITEMS]]
        return [*items, f"… ({len(value) - _ITEMS} more)"] if len(value) > _ITEMS else items
    return value
