"""Read a run step by step. Nothing is executed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec import Struct

from .. import log as logs
from ..events import ToolIntent, Usage
from ..prices.results import EXACT
from .summary import describe


class ReplayStep(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One record of a run: a one-line summary and the stored record.

    ``intent`` is the id of the proposal the step belongs to. ``notes`` lists contradictions with
    earlier records, such as a tool that ran without a decision.
    """

    seq: int
    at: datetime
    type: str
    actor: str
    title: str
    turn: str | None = None
    intent: str | None = None
    notes: tuple[str, ...] = ()
    data: dict[str, Any] = {}


def read_steps(log: logs.EventLog, session: str, after: int = 0) -> Iterator[ReplayStep]:
    """Yield the steps after the record ``after``; raise ``LogCorruptError`` if there is a gap."""
    for step in to_steps(log.read(session)):
        if step.seq > after:
            yield step


def to_steps(records: Iterable[logs.LogRecord]) -> Iterator[ReplayStep]:
    """Yield records as steps, each checked against the earlier records."""
    evidence = Evidence()
    for record in records:
        yield evidence.to_step(record, record.data)


# --- checking the records for consistency ------------------------------------------------------


_ENDS = (
    logs.ToolObserved, logs.ToolFailed, logs.ToolIntentClosed, logs.ToolIntentRejected,
    logs.PermissionDenied,
)  # fmt: skip


class Evidence:
    """Track the state of every proposal, and find records that contradict it."""

    def __init__(self) -> None:
        self._proposed: dict[str, ToolIntent] = {}
        self._decided: dict[str, bool] = {}
        self._edited: dict[str, dict[str, Any]] = {}
        self._ran: set[str] = set()
        self._asked_again: set[str] = set()
        self._running: set[str] = set()
        self._open: dict[str, str] = {}
        self._finished = False

    def copy(self) -> Evidence:
        """Return an independent copy of the state."""
        other = Evidence()
        for name, value in vars(self).items():
            setattr(other, name, copy(value))
        return other

    def add(self, record: logs.LogRecord) -> tuple[str | None, tuple[str, ...]]:
        """Process a record; return the id of its proposal, and notes.

        Each note describes a contradiction with earlier records.
        """
        payload = record.payload
        if isinstance(payload, ToolIntent):
            note = ("the same intent was proposed before",) if payload.id in self._proposed else ()
            self._proposed[payload.id] = payload
            self._open[payload.id] = payload.tool_name
            return payload.id, note
        intent = (
            payload.get("intent_id")
            if isinstance(payload, dict)
            else getattr(payload, "intent_id", None)
        )
        if not isinstance(intent, str):
            return None, self._check_session(payload)
        notes = [] if intent in self._proposed else ["no such intent was proposed"]
        return intent, (*notes, *self._check_step(intent, payload))

    def has_run(self, intent: str) -> bool:
        """Return whether an intent has begun to run."""
        return intent in self._ran

    def to_step(self, record: logs.LogRecord, data: dict[str, Any]) -> ReplayStep:
        """Process a record and return it as a step, with this data."""
        intent, notes = self.add(record)
        title = describe(record, started=None if intent is None else self.has_run(intent))
        return ReplayStep(
            seq=record.seq,
            at=record.timestamp,
            type=record.type,
            actor=record.actor,
            title=title,
            turn=record.turn,
            intent=intent,
            notes=notes,
            data=data,
        )

    def _check_step(self, intent: str, payload: Any) -> Iterator[str]:
        if isinstance(payload, logs.PermissionGranted | logs.PermissionDenied):
            if intent in self._ran and intent not in self._asked_again:
                yield "decided after it had run"
            self._decided[intent] = isinstance(payload, logs.PermissionGranted)
            if isinstance(payload, logs.PermissionGranted) and payload.input is not None:
                self._edited[intent] = payload.input
        elif isinstance(payload, logs.ToolStarted):
            yield from self._check_start(intent, payload)
            self._ran.add(intent)
            self._running.add(intent)
        elif isinstance(payload, logs.PermissionRequested):
            if payload.attempt > 1:
                self._asked_again.add(intent)
        elif isinstance(payload, logs.ToolRestarted):
            yield from self._check_restart(intent, payload)
            self._running.add(intent)
        elif isinstance(payload, logs.ToolObserved | logs.ToolFailed):
            if intent not in self._running:
                yield "there is no record that it began to run"
            self._running.discard(intent)
        if isinstance(payload, _ENDS):
            if intent in self._proposed and intent not in self._open:
                yield "it had come to an end before"
            self._open.pop(intent, None)

    def _check_start(self, intent: str, payload: logs.ToolStarted) -> Iterator[str]:
        allowed = self._decided.get(intent)
        if allowed is None:
            yield "it ran without a decision"
        elif not allowed:
            yield "it ran although it was denied"
        if intent in self._ran:
            yield "it ran before"
        yield from self._check_input(intent, payload.input)

    def _check_restart(self, intent: str, payload: logs.ToolRestarted) -> Iterator[str]:
        if not self._decided.get(intent):
            yield "it ran again although it was denied"
        if intent not in self._ran:
            yield "it ran again before it ran"
        yield from self._check_input(intent, payload.input)

    def _check_input(self, intent: str, given: dict[str, Any]) -> Iterator[str]:
        proposed = self._proposed.get(intent)
        edited = self._edited.get(intent)
        if edited is not None and edited != given:
            yield "the input is not the one that was allowed"
        elif edited is None and proposed is not None and proposed.input != given:
            yield "the input is not the one proposed"

    def _check_session(self, payload: Any) -> tuple[str, ...]:
        if isinstance(payload, logs.SessionResumed | logs.TurnStarted):
            self._finished = False
        if not isinstance(payload, logs.SessionFinished):
            return ()
        notes = ["the session had ended before"] if self._finished else []
        self._finished = True
        if self._open and payload.outcome != "waiting":
            left = [f"{name} ({intent})" for intent, name in self._open.items()]
            notes.append(f"left open: {', '.join(left)}")
        return tuple(notes)


# --- totals of a session -----------------------------------------------------------------------


class Totals(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The totals of a run.

    ``cost_usd`` is the sum of the known costs; ``unpriced`` counts the other calls.
    """

    goal: str | None = None
    outcome: str | None = None
    turns: int = 0
    calls: int = 0
    failed_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    uncounted: int = 0
    cost_usd: Decimal = Decimal(0)
    unpriced: int = 0
    proposed: int = 0
    allowed: int = 0
    denied: int = 0
    ran: int = 0


COUNTED = (
    "session.started", "session.finished", "turn.started", "llm.call_completed", "llm.call_failed",
    "tool_intent.proposed", "permission.granted", "permission.denied", "tool.started",
)  # fmt: skip
_COUNTERS: dict[type, str] = {
    logs.TurnStarted: "turns",
    ToolIntent: "proposed",
    logs.PermissionGranted: "allowed",
    logs.PermissionDenied: "denied",
    logs.ToolStarted: "ran",
}


def count_totals(log: logs.EventLog, session: str) -> Totals:
    """Compute the totals of a run, reading only the relevant records."""
    found: dict[str, Any] = dict.fromkeys(Totals.__struct_fields__[2:], 0)
    for record in log.find(*COUNTED, session=session):
        payload = record.payload
        if isinstance(payload, logs.SessionStarted):
            found["goal"] = payload.goal
        elif isinstance(payload, logs.SessionFinished):
            found["outcome"] = payload.outcome
        elif isinstance(payload, logs.CallCompleted | logs.CallFailed):
            _add_call(found, payload)
        elif type(payload) in _COUNTERS:
            found[_COUNTERS[type(payload)]] += 1
    return Totals(**{**found, "cost_usd": Decimal(found["cost_usd"])})


def _add_call(found: dict[str, Any], call: logs.CallCompleted | logs.CallFailed) -> None:
    if isinstance(call, logs.CallFailed):
        found["failed_calls"] += 1
        if call.usage == Usage():  # a rejected call used no tokens
            return
    else:
        found["calls"] += 1
    for field in ("input_tokens", "output_tokens", "cached_input_tokens"):
        found[field] += getattr(call, field) or 0
    found["uncounted"] += call.input_tokens is None or call.output_tokens is None
    found["unpriced"] += call.cost_usd is None
    found["cost_usd"] = EXACT.add(found["cost_usd"], call.cost_usd or 0)
