"""Approvals from another process: the open questions in a log, and an approver that waits."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .. import log as logs
from ..events import ToolIntent
from ..permission import Approver, Decision, Proposal, Verdict, ask
from .answers import make_answer, make_decision, read_answers, record_answer, refuse_machine
from .outcome import SessionError

_TYPES = (
    "tool_intent.proposed", "tool_intent.validated", "permission.requested", "permission.granted",
    "permission.denied", "tool_intent.closed",
)  # fmt: skip


class Question(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tool call that waits for permission; ``seq`` is the number of the record that asks.

    An ``attempt`` above 1 means that the call was interrupted, and whether it may run again.
    """

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
    attempt: int = 1


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
        attempt=asked.attempt,
    )
    if checked is None:
        return question
    return replace(question, side_effect=checked.side_effect, paths=checked.paths)


def answer_question(
    log: logs.EventLog, session: str, intent_id: str, decision: Decision
) -> logs.LogRecord:
    """Answer an open question, as ``answer`` does, but raise ``SessionError`` for a second answer."""
    refuse_machine(decision)
    questions = {question.intent_id: question for question in find_questions(log, session)}
    if intent_id not in questions:
        raise SessionError(f"session {session!r} has no open question about {intent_id!r}")
    given = make_answer(intent_id, decision, questions[intent_id].attempt)
    record, is_new = record_answer(log, session, given)
    if not is_new:
        by = record.data.get("by")
        raise SessionError(f"{by!r} answered the question about {intent_id!r} before")
    return record


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
        self._answers: dict[tuple[str, int], logs.PermissionAnswered] = {}

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
            answer = self._answers.pop((proposal.intent_id, proposal.attempt), None)
            if answer is not None:
                return replace(make_decision(answer), rule=verdict.rule)
            await asyncio.sleep(self._interval)

    def _read(self, session: str) -> None:
        try:
            found = read_answers(self._log, session, self._after.get(session, 0))
        except logs.LogError:
            return  # the file is being created, or the server is briefly unavailable: poll again
        self._after[session] = found.last
        self._answers = found.decisions | self._answers
