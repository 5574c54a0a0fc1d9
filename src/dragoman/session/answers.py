"""Answers from outside: decisions about tool calls, and results of calls that run elsewhere.

Only the process that runs a session may write to it. An answer from another process is therefore
stored in a session of its own, ``NAME.answers``. This session is in the same log if several
processes can write to that log, otherwise in the file ``log.db.answers`` next to it. Whoever runs
the session reads the answer there and records the result. The first answer counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import asdict

from .. import log as logs
from ..permission import Decision
from ..tools import Observation, ToolFailure, make_observation
from .outcome import SessionError
from .pending import Pending
from .state import IntentState, State

Answer: TypeAlias = logs.PermissionAnswered | logs.ToolAnswered

_TYPES = (
    "tool_intent.proposed", "tool_intent.validated", "tool_intent.rejected", "tool_intent.closed",
    "permission.requested", "permission.granted", "permission.denied", "tool.started",
    "tool.restarted", "tool.observed", "tool.failed",
)  # fmt: skip
_PATIENCE = 10.0  # seconds to wait while another process writes an answer to the same file
_PAUSE = 0.02


# A question is about an intent, and about one of the attempts to run it.
Question: TypeAlias = tuple[str, int]


class Answers(Struct):
    """The answers that count; ``last`` is the number of the last record read.

    ``decisions`` are by intent and attempt, ``results`` by intent.
    """

    decisions: dict[Question, logs.PermissionAnswered] = field(default_factory=dict)
    results: dict[str, logs.ToolAnswered] = field(default_factory=dict)
    last: int = 0

    def has(self, pending: Pending) -> bool:
        """Return whether there is an answer to what a session waits for."""
        if pending.kind == "result":
            return pending.intent_id in self.results
        return (pending.intent_id, pending.attempt) in self.decisions


def answer(log: logs.EventLog, session: str, intent_id: str, decision: Decision) -> Decision:
    """Decide about a tool call that waits for permission, and return the decision that counts.

    Any process can call this, also while no process runs the session; the next run continues with
    the decision. The first decision counts: a later one is not recorded, and the first is
    returned.

    Raise ``SessionError`` if the session did not ask about the call, or if the name of the decider
    is reserved. ``log`` may be open for reading only. Block until the answer is on disk.
    """
    refuse_machine(decision)
    kept = _find_intent(log, session, intent_id)
    if isinstance(kept.end, logs.PermissionDenied):
        return make_decision(kept.end, allowed=False)
    if kept.granted:
        granted = [
            record.payload
            for record in log.find("permission.granted", session=session)
            if record.data.get("intent_id") == intent_id
        ]
        return make_decision(granted[-1], allowed=True)
    if kept.waits_for != "decision" or kept.asked is None:
        raise SessionError(f"session {session!r} has no open question about {intent_id!r}")
    given = make_answer(intent_id, decision, kept.asked.attempt)
    counted, _ = record_answer(log, session, given)
    return make_decision(counted.payload)


def observe(
    log: logs.EventLog,
    session: str,
    intent_id: str,
    content: Any,
    is_error: bool = False,
    *,
    by: str = "",
) -> Observation:
    """Give the result of a tool call that runs elsewhere, and return the result that counts.

    ``content`` is anything that a tool function could return, and ``by`` names who gives it. As
    with ``answer``, any process can call this, and the first result counts.

    Raise ``SessionError`` if the session does not wait for the result of this call.
    """
    kept = _find_intent(log, session, intent_id)
    if isinstance(kept.end, logs.ToolObserved):
        return Observation(kept.end.content, is_error=kept.end.is_error)
    if kept.waits_for != "result":
        raise SessionError(f"session {session!r} does not wait for the result of {intent_id!r}")
    try:
        seen = make_observation(content)
    except ToolFailure as failure:
        raise ValueError(f"content: {failure.message}") from failure
    given = logs.ToolAnswered(intent_id, seen.content, is_error or seen.is_error, by)
    record, _ = record_answer(log, session, given)
    counted: Any = record.payload
    return Observation(counted.content, is_error=counted.is_error)


def read_answers(log: logs.EventLog, session: str, after: int = 0) -> Answers:
    """Return the answers about a session that were recorded after the record ``after``."""
    found = Answers(last=after)
    with open_answers(log, readonly=True) as answers:
        for record in answers.read(name_answers(session), after) if answers is not None else ():
            found.last = record.seq
            given = record.payload
            if isinstance(given, logs.PermissionAnswered):
                found.decisions.setdefault((given.intent_id, given.attempt), given)
            elif isinstance(given, logs.ToolAnswered):
                found.results.setdefault(given.intent_id, given)
    return found


def find_answered(log: logs.EventLog, pending: Sequence[Pending]) -> list[Pending]:
    """Return those of the decisions and results for which an answer was recorded."""
    answers = {name: read_answers(log, name) for name in {each.session for each in pending}}
    return [each for each in pending if answers[each.session].has(each)]


def make_answer(intent_id: str, decision: Decision, attempt: int = 1) -> logs.PermissionAnswered:
    """Return the record of a decision that was made outside of the session."""
    left_out = ("rule", "rests_on")
    facts = {name: value for name, value in asdict(decision).items() if name not in left_out}
    return logs.PermissionAnswered(intent_id=intent_id, attempt=attempt, **facts)


def record_answer(log: logs.EventLog, session: str, given: Answer) -> tuple[logs.LogRecord, bool]:
    """Store an answer unless there is one; return the one that counts, and whether it is new."""
    name = name_answers(session)
    with open_answers(log, readonly=False) as answers:
        assert answers is not None
        first = _find_first(answers, name, given)
        if first is not None:
            return first, False
        record = answers.append_sync(name, given)
        # the order of the log decides, since others may have answered at the same time
        first = _find_first(answers, name, given) or record
        return first, first.id == record.id


def refuse_machine(decision: Decision) -> None:
    """Raise ``SessionError`` if a decision from outside bears the name of a rule or a hook."""
    if is_machine(decision.by):
        raise SessionError(f"{decision.by!r} is not the name of a person")


def is_machine(by: str) -> bool:
    """Return whether a decision was made by rules or a hook, not by a person."""
    return by in ("policy", "nobody") or by.startswith("hook")


def name_answers(session: str) -> str:
    """Return the name of the session that stores the answers to another session's questions."""
    if not isinstance(session, str):  # of None, the questions of all sessions would be found
        raise TypeError(f"session: must be the id of a session, not {session!r}")
    return f"{session}.answers"


def _find_intent(log: logs.EventLog, session: str, intent_id: str) -> IntentState:
    state = State()
    for record in log.find(*_TYPES, session=session):
        state.apply(record)
    kept = state.intents.get(intent_id)
    if kept is None:
        raise SessionError(f"session {session!r} has no open question about {intent_id!r}")
    return kept


def _find_first(log: logs.EventLog, name: str, given: Answer) -> logs.LogRecord | None:
    for record in log.read(name):
        payload = record.payload
        if not isinstance(payload, type(given)) or payload.intent_id != given.intent_id:
            continue
        if getattr(payload, "attempt", 1) == getattr(given, "attempt", 1):
            return record
    return None


def make_decision(made: Any, *, allowed: bool | None = None) -> Decision:
    """Return a recorded decision: of another process, or what the session made of it."""
    facts: dict[str, Any] = {"allowed": allowed}
    facts |= {name: value for name, value in asdict(made).items() if name in _DECISION}
    return Decision(**facts)


_DECISION = frozenset(Decision.__struct_fields__)


@contextmanager
def open_answers(log: logs.EventLog, *, readonly: bool) -> Iterator[logs.EventLog | None]:
    """Open the log that stores the answers to the questions in ``log``.

    With ``readonly``, yield ``None`` if there is no such log yet.
    """
    # only a log in a SQLite file stores the answers next to it, since one process can write to it
    path = (
        log.path.with_name(f"{log.path.name}.answers") if isinstance(log, logs.SqliteLog) else None
    )
    if path is None and isinstance(log, logs.PostgresLog) and not readonly:
        with log.reopen() as answers:
            # The log may be open for reading only, so it is opened again to write the answer.
            yield answers
    elif path is None:
        yield log
    elif readonly and not path.exists():
        yield None
    elif readonly:
        with logs.SqliteLog(path, readonly=True) as answers:
            yield answers
    else:
        with _open_when_free(path) as answers:
            yield answers


def _open_when_free(path: Path) -> logs.SqliteLog:
    """Open a log for writing; wait while another process writes an answer to it."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return logs.SqliteLog(path)
        except logs.LogLockedError:
            if time.monotonic() > until:
                raise
        time.sleep(_PAUSE)
