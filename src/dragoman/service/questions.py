"""The queue of questions over all sessions of a service: what waits, and who answered what, when."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from .. import log as logs
from ..events import ToolIntent
from ..session import Pending
from ..session.answers import find_answered, open_answers
from ..tools import Toolbox
from .agents import Agent
from .rows import Row, Rows

_ANSWERS = ".answers"
_REMEMBERED = 1000
_NO_TOOLS = Toolbox([])


class OpenQuestion(Struct, frozen=True, kw_only=True):
    """A tool call that waits, and the session that its answer continues."""

    id: str
    session: str
    agent: str
    owner: str
    by: str
    pending: Pending


class AnsweredQuestion(Struct, frozen=True, kw_only=True):
    """An answer that counts: who gave it, and when. ``allowed`` is missing for a result."""

    id: str
    session: str
    agent: str
    owner: str
    kind: Literal["decision", "result"]
    intent_id: str
    tool_name: str
    allowed: bool | None
    reason: str
    answered_by: str
    answered_at: datetime


class Questions:
    """Read the questions of the sessions of a service. The methods block: call them in a thread."""

    def __init__(self, log: logs.EventLog, rows: Rows, agents: dict[str, Agent]) -> None:
        self._log = log
        self._rows = rows
        self._agents = agents
        self._pending: OrderedDict[str, tuple[int, tuple[Pending, ...]]] = OrderedDict()
        self._roots: dict[
            str, str | None
        ] = {}  # the session of the service above each sub-session

    def list_open(self, visible: Any) -> list[OpenQuestion]:
        """Return what sessions wait for, the oldest first; ``visible(row)`` chooses the sessions."""
        found: list[OpenQuestion] = []
        for session in self._rows.list_ids():
            row = self._rows.find(session)
            if row.status == "waiting" and visible(row):
                found += [_ask(row, each) for each in self.list_pending(row)]
        return sorted(found, key=lambda each: (each.pending.since, each.id))

    def list_pending(self, row: Row, *, answered: bool = False) -> list[Pending]:
        """Return what a session waits for; with ``answered``, also what was answered since."""
        known = self._pending.get(row.id)
        if known is None or known[0] != row.seq:
            agent = self._agents.get(row.agent)
            details = self._rows.show(row.id, agent.tools if agent is not None else _NO_TOOLS)
            known = self._pending[row.id] = row.seq, details.pending
            if len(self._pending) > _REMEMBERED:
                self._pending.popitem(last=False)
        gone = [] if answered else find_answered(self._log, known[1])
        return [each for each in known[1] if each not in gone]

    def list_answered(self, visible: Any) -> list[AnsweredQuestion]:
        """Return the answers that count, the newest first."""
        found: dict[tuple[str, str, int], AnsweredQuestion] = {}
        with open_answers(self._log, readonly=True) as answers:
            if answers is None:
                return []
            for record in answers.find("permission.answered", "tool.answered"):
                given = record.payload
                if isinstance(given, logs.PermissionAnswered | logs.ToolAnswered):
                    place = (record.session, given.intent_id, getattr(given, "attempt", 0))
                    if place not in found and (made := self._describe(record, given, visible)):
                        found[place] = made
        return sorted(found.values(), key=lambda each: each.id, reverse=True)

    def _describe(
        self,
        record: logs.LogRecord,
        given: logs.PermissionAnswered | logs.ToolAnswered,
        visible: Any,
    ) -> AnsweredQuestion | None:
        asking = record.session.removesuffix(_ANSWERS)
        root = self._find_root(asking)
        row = None if root is None else self._rows.find(root)
        if row is None or not visible(row):
            return None
        is_decision = isinstance(given, logs.PermissionAnswered)
        return AnsweredQuestion(
            id=record.id,
            session=row.id,
            agent=row.agent,
            owner=row.owner,
            kind="decision" if is_decision else "result",
            intent_id=given.intent_id,
            tool_name=self._find_tool(asking, given.intent_id),
            allowed=getattr(given, "allowed", None),
            reason=getattr(given, "reason", ""),
            answered_by=given.by,
            answered_at=record.timestamp,
        )

    def _find_root(self, session: str) -> str | None:
        """Return the session of the service in whose calls a session runs, or the session itself."""
        if session not in self._roots:
            first = next(self._log.read(session), None)
            started = None if first is None else first.payload
            root = None
            if isinstance(started, logs.SessionStarted) and started.called_by is not None:
                root = self._find_root(started.called_by.session)
            elif self._rows.has(session):
                root = session
            self._roots[session] = root
        return self._roots[session]

    def _find_tool(self, session: str, intent_id: str) -> str:
        for record in self._log.find("tool_intent.proposed", session=session):
            intent = record.payload
            if isinstance(intent, ToolIntent) and intent.id == intent_id:
                return intent.tool_name
        return ""


def _ask(row: Row, pending: Pending) -> OpenQuestion:
    return OpenQuestion(
        id=pending.intent_id, session=row.id, agent=row.agent, owner=row.owner, by=row.by,
        pending=pending,
    )  # fmt: skip
