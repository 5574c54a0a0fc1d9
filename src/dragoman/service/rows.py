"""The sessions of a service as rows: who started each, what state it is in, and what it waits for."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from .. import log as logs
from ..messages import new_ulid
from ..session import Budget, Pending, Spending, State, reduce_records
from ..session.pending import list_pending
from ..session.session import count_spent
from ..tools import Toolbox

PREFIX = "agent_"
"""The beginning of the ids of a service's sessions."""
ORIGIN = "service"
"""The entry of the metadata of a session's first record that has its ``Origin``."""
STOPPED = "the service was stopped"
"""Why a run ended that goes on when the service starts again."""
_TYPES = ("session.started", "session.resumed", "turn.started", "session.finished")
_REMEMBERED = 10_000  # rows that are kept in memory
_DIGITS = 26  # as many as a ULID has

Status: TypeAlias = Literal[
    "running", "waiting", "completed", "failed", "cancelled", "exhausted", "stopped"
]


class Origin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who started a session, and with what.

    ``owner`` is the id of the key, and empty for a person or a gateway without keys. ``key`` is
    the client's key of the first goal, ``limits`` the budget that the client asked for.
    """

    agent: str
    model: str
    by: str
    owner: str = ""
    user: str = ""
    team: str = ""
    key: str | None = None
    limits: dict[str, Any] = {}
    labels: dict[str, str] = {}


class Row(Struct, frozen=True, kw_only=True):
    """A session in a list. ``seq`` is the number of its last record."""

    id: str
    agent: str
    model: str
    status: Status
    detail: str | None
    goal: str | None
    key: str | None
    owner: str
    by: str
    user: str
    team: str
    labels: dict[str, str]
    started: datetime
    updated: datetime
    turns: int
    seq: int


class Details(Row, frozen=True, kw_only=True):
    """A session by itself: also its last text, what it has spent and what it waits for."""

    text: str
    spent: Spending
    pending: tuple[Pending, ...]


def make_id(owner: str, key: str | None) -> str:
    """Return the id of a new session; the same owner and key always have the same one."""
    if key is None:
        return PREFIX + new_ulid().lower()
    digest = hashlib.sha256(f"{owner}\0{key}".encode()).hexdigest()
    return PREFIX + digest[:_DIGITS]


class Rows:
    """Read the sessions of a service from its log. The methods block: call them in a thread."""

    def __init__(self, log: logs.EventLog) -> None:
        self._log = log
        self._origins: OrderedDict[str, tuple[Origin, str | None, datetime]] = OrderedDict()
        self._known: OrderedDict[str, tuple[int, Row]] = OrderedDict()

    def list_ids(self) -> list[str]:
        """Return the ids of all sessions of the service, the newest first."""
        entries = [each for each in self._log.sessions() if _is_ours(each.session)]
        entries.sort(key=lambda each: (each.started, each.session), reverse=True)
        return [each.session for each in entries]

    def has(self, session: str) -> bool:
        """Return whether the service started a session."""
        try:
            self._read_start(session)
        except LookupError:
            return False
        return True

    def find_origin(self, session: str) -> Origin:
        """Return who started a session; raise ``LookupError`` if the service did not start it."""
        return self._read_start(session)[0]

    def find(self, session: str) -> Row:
        """Return the row of a session; raise ``LookupError`` if there is none."""
        origin, goal, started = self._read_start(session)
        last = self.find_last(session)
        known = self._known.get(session)
        if known is not None and known[0] == last.seq:
            return known[1]
        status: Status = "running"
        detail = None
        turns = 0
        for record in self._log.find(*_TYPES, session=session):
            payload = record.payload
            if isinstance(payload, logs.TurnStarted):
                turns = payload.number
            finished = payload if isinstance(payload, logs.SessionFinished) else None
            status = "running" if finished is None else find_status(finished)
            detail = None if finished is None else finished.detail
        row = Row(
            id=session, status=status, detail=detail, goal=goal, started=started,
            updated=last.timestamp, turns=turns, seq=last.seq,
            **{name: getattr(origin, name) for name in _SHARED},
        )  # fmt: skip
        self._known[session] = last.seq, row
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return row

    def show(self, session: str, tools: Toolbox) -> Details:
        """Return a session by itself; ``tools`` have the schemas of what it waits for."""
        row = self.find(session)
        state = reduce_records(self._log.read(session))
        texts = [each.message.text for each in state.messages if each.message.role == "assistant"]
        pending: tuple[Pending, ...] = ()
        if row.status == "waiting":
            pending = list_pending(self._log, session, state, tools)
        facts = {name: getattr(row, name) for name in Row.__struct_fields__}
        return Details(
            **facts,
            text=texts[-1] if texts else "",
            spent=add_spent(self._log, session, state),
            pending=pending,
        )

    def find_last(self, session: str) -> logs.LogRecord:
        """Return the last record of a session; raise ``LookupError`` if there is none."""
        last = logs.read_last(self._log, session)
        if last is None:
            raise LookupError(f"there is no session {session!r}")
        return last

    def _read_start(self, session: str) -> tuple[Origin, str | None, datetime]:
        known = self._origins.get(session)
        if known is None:
            first = next(self._log.read(session), None) if _is_ours(session) else None
            known = None if first is None else read_start(first)
            if known is None:
                raise LookupError(f"there is no session {session!r}")
            self._origins[session] = known
            if len(self._origins) > _REMEMBERED:
                self._origins.popitem(last=False)
        return known


_SHARED = ("agent", "model", "key", "owner", "by", "user", "team", "labels")


def read_start(first: logs.LogRecord) -> tuple[Origin, str | None, datetime] | None:
    """Return the origin, the goal and the time of a first record, if a service wrote it."""
    started = first.payload
    if not isinstance(started, logs.SessionStarted) or ORIGIN not in started.metadata:
        return None
    try:
        origin = msgspec.convert(started.metadata[ORIGIN], Origin)
    except msgspec.ValidationError:
        return None
    return origin, started.goal, first.timestamp


def find_status(finished: logs.SessionFinished) -> Status:
    """Return the state of a session after a run that ended like this."""
    if finished.outcome == "cancelled" and finished.detail == STOPPED:
        return "stopped"
    return finished.outcome


def add_spent(log: logs.EventLog, session: str, state: State) -> Spending:
    """Return what a session and those that its calls have run have spent."""
    account = Budget().share()
    count_spent(account, log, session, state)
    return account.spent


def _is_ours(session: str) -> bool:
    return session.startswith(PREFIX) and not session.endswith(".answers")
