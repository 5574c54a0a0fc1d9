"""Approvals from another process: the open questions in a log, and answers to them.

Only the process that runs a session may write to it. An answer from another process is therefore
stored in a session of its own, ``NAME.answers``. This session is in the same log if several
processes can write to that log, otherwise in the file ``log.db.answers`` next to it. The running
process reads the answer there and records the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from .. import log as logs
from ..events import ToolIntent
from ..permission import Approver, Decision, Proposal, Verdict, ask
from .outcome import SessionError

_TYPES = (
    "tool_intent.proposed", "tool_intent.validated", "permission.requested", "permission.granted",
    "permission.denied", "tool_intent.closed",
)  # fmt: skip


class Question(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tool call that waits for permission; ``seq`` is the number of the record that asks."""

    session: str
    intent_id: str
    tool_name: str
    input: dict[str, Any]
    asked_at: datetime
    seq: int
    side_effect: logs.SideEffect = "execute"
    paths: tuple[str, ...] = ()
    reason: str = ""
    rule: str | None = None


def find_questions(log: logs.EventLog, session: str | None = None) -> list[Question]:
    """Return the unanswered permission requests of one session, or of all sessions."""
    intents: dict[str, ToolIntent] = {}
    checked: dict[str, logs.ToolIntentValidated] = {}
    found: dict[str, Question] = {}
    for record in log.find(*_TYPES, session=session):
        payload = record.payload
        if isinstance(payload, ToolIntent):
            intents[payload.id] = payload
        elif isinstance(payload, logs.ToolIntentValidated):
            checked[payload.intent_id] = payload
        elif isinstance(payload, logs.PermissionRequested) and payload.intent_id in intents:
            found[payload.intent_id] = _make_question(
                record, payload, intents[payload.intent_id], checked.get(payload.intent_id)
            )
        else:
            found.pop(getattr(payload, "intent_id", ""), None)
    return list(found.values())


def _make_question(
    record: logs.LogRecord,
    asked: logs.PermissionRequested,
    intent: ToolIntent,
    checked: logs.ToolIntentValidated | None,
) -> Question:
    question = Question(
        session=record.session,
        intent_id=intent.id,
        tool_name=intent.tool_name,
        input=intent.input,
        asked_at=record.timestamp,
        seq=record.seq,
        reason=asked.reason,
        rule=asked.rule,
    )
    if checked is None:
        return question
    return replace(question, side_effect=checked.side_effect, paths=checked.paths)


def answer_question(
    log: logs.EventLog, session: str, intent_id: str, decision: Decision
) -> logs.LogRecord:
    """Answer an open question of a session that runs in another process.

    The first answer counts. Raise ``SessionError`` if the question is not open or was answered
    before, or if the name of the decider is reserved for this process. ``log`` may be
    open for reading only.
    """
    if is_machine(decision.by):
        raise SessionError(f"{decision.by!r} is not the name of a person")
    if not any(question.intent_id == intent_id for question in find_questions(log, session)):
        raise SessionError(f"session {session!r} has no open question about {intent_id!r}")
    facts = {name: value for name, value in asdict(decision).items() if name != "rule"}
    with _open_answers(log, readonly=False) as answers:
        assert answers is not None
        name = name_answers(session)
        record = answers.append_sync(name, logs.PermissionAnswered(intent_id=intent_id, **facts))
        # the order of the log decides, since others may have answered at the same time
        for earlier in answers.read(name):
            given = earlier.payload
            if isinstance(given, logs.PermissionAnswered) and given.intent_id == intent_id:
                if earlier.seq < record.seq:
                    raise SessionError(
                        f"{given.by!r} answered the question about {intent_id!r} before"
                    )
                break
        return record


def is_machine(by: str) -> bool:
    """Return whether a decision was made by rules or a hook, not by a person."""
    return by in ("policy", "nobody") or by.startswith("hook")


def name_answers(session: str) -> str:
    """Return the name of the session that stores the answers to another session's questions."""
    return f"{session}.answers"


@contextmanager
def _open_answers(log: logs.EventLog, *, readonly: bool) -> Iterator[logs.EventLog | None]:
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
    else:
        with logs.SqliteLog(path, readonly=readonly) as answers:
            yield answers


class RemoteApprover:
    """An approver that waits for an answer from another process.

    The answer comes from ``answer_question`` or ``dragoman log approve``.

    The approver ``also`` is asked at the same time, and the first answer counts. The log is
    polled every ``interval`` seconds.
    """

    def __init__(
        self, log: logs.EventLog, also: Approver | None = None, *, interval: float = 0.2
    ) -> None:
        self._log = log
        self._also = also
        self._interval = interval
        self._after: dict[str, int] = {}  # the number of the last answer that was read, by session
        self._answers: dict[str, logs.PermissionAnswered] = {}

    async def __call__(self, proposal: Proposal, verdict: Verdict) -> Decision:
        waiting = [asyncio.create_task(self._wait(proposal, verdict))]
        if self._also is not None:
            waiting.append(asyncio.create_task(ask(self._also, proposal, verdict)))
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _wait(self, proposal: Proposal, verdict: Verdict) -> Decision:
        while True:
            await asyncio.to_thread(self._read, proposal.session)
            answer = self._answers.pop(proposal.intent_id, None)
            if answer is not None:
                facts = {
                    name: value for name, value in asdict(answer).items() if name != "intent_id"
                }
                return Decision(**facts, rule=verdict.rule)
            await asyncio.sleep(self._interval)

    def _read(self, session: str) -> None:
        name = name_answers(session)
        try:
            with _open_answers(self._log, readonly=True) as answers:
                for record in (
                    answers.read(name, self._after.get(name, 0)) if answers is not None else ()
                ):
                    self._after[name] = record.seq
                    if isinstance(record.payload, logs.PermissionAnswered):
                        self._answers.setdefault(record.payload.intent_id, record.payload)
        except logs.LogError:
            pass  # the file is being created, or the server is briefly unavailable: poll again
