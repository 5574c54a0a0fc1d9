"""An append-only log of sessions, each record chained to the previous one by hash.

Box: agent.

::

    async with SqliteLog("log.db") as log:
        started = await log.append("s1", SessionStarted(goal="Fix the tests"))
        await log.append("s1", TurnStarted(1), parent=started.id)
        for record in log.read("s1"):
            print(record.seq, record.type, record.payload)
        assert log.verify().ok

Once ``append`` returns, the record is on disk. ``dragoman.log.payloads`` lists the payloads.
"""

from __future__ import annotations

from pathlib import Path

from ..calls import (
    CallCompleted,
    CallFailed,
    CallStarted,
    GuardJudged,
    ProviderRecovered,
    ProviderUnavailable,
    RoutingChosen,
    RoutingSwitched,
    StopReason,
)
from ..database import is_postgres
from .actions import (
    PermissionAnswered,
    PermissionDenied,
    PermissionGranted,
    PermissionRequested,
    SessionDelegated,
    SideEffect,
    ToolAnswered,
    ToolFailed,
    ToolIntentClosed,
    ToolIntentRejected,
    ToolIntentValidated,
    ToolObserved,
    ToolProgress,
    ToolRestarted,
    ToolStarted,
)
from .chain import Break, ChainReport
from .conversation import Conversation, Sent
from .errors import (
    InvalidRecordError,
    LogClosedError,
    LogConflictError,
    LogCorruptError,
    LogError,
    LogFullError,
    LogLockedError,
    LogReadOnlyError,
    LogStorageError,
    LogVersionError,
    UnknownTypeError,
)
from .eventlog import EventLog, Progress, read_last
from .jsonl import ExportedLog
from .location import find_place, name_place
from .memory import MemoryLog
from .payloads import (
    CATALOGUE,
    Actor,
    BudgetExceeded,
    CalledBy,
    ContextProjected,
    ContextSummarised,
    Entry,
    ForkedFrom,
    LeftOut,
    LlmExchangeKept,
    LogErased,
    LogPruned,
    MessageRecorded,
    ModelSwapped,
    Payload,
    PolicyInForce,
    RecordErased,
    Routing,
    Sensitivity,
    SessionFinished,
    SessionResumed,
    SessionStarted,
    ToolsChanged,
    TurnStarted,
    parse_payload,
)
from .postgres import PostgresLog
from .record import ADMINISTRATION, MAX_PAYLOAD, LogRecord, find_texts, genesis, hash_record
from .sqlite import SqliteLog
from .tool_calls import ToolCallRates, rate_tool_calls, read_tool_calls
from .usage import read_calls, read_uses
from .view import SessionEntry

__all__ = [
    "ADMINISTRATION", "CATALOGUE", "MAX_PAYLOAD", "Actor", "Break", "BudgetExceeded",
    "CallCompleted", "CallFailed", "CallStarted", "CalledBy", "ChainReport", "ContextProjected",
    "ContextSummarised", "Conversation", "Entry", "EventLog", "ExportedLog", "ForkedFrom", "GuardJudged",
    "InvalidRecordError", "LeftOut", "LlmExchangeKept", "LogClosedError", "LogConflictError",
    "LogCorruptError", "LogErased", "LogError", "LogFullError", "LogLockedError", "LogPruned",
    "LogReadOnlyError", "LogRecord", "LogStorageError", "LogVersionError", "MemoryLog",
    "MessageRecorded", "ModelSwapped", "Payload", "PermissionAnswered", "PermissionDenied",
    "PermissionGranted", "PermissionRequested", "PolicyInForce", "PostgresLog", "Progress", "ProviderRecovered",
    "ProviderUnavailable", "RecordErased", "Routing", "RoutingChosen", "RoutingSwitched", "Sensitivity", "Sent",
    "SessionDelegated", "SessionEntry", "SessionFinished", "SessionResumed", "SessionStarted", "SideEffect",
    "SqliteLog", "StopReason", "ToolAnswered", "ToolCallRates", "ToolFailed", "ToolIntentClosed",
    "ToolIntentRejected", "ToolIntentValidated", "ToolObserved", "ToolProgress", "ToolRestarted",
    "ToolStarted", "ToolsChanged", "TurnStarted", "UnknownTypeError", "find_place", "find_texts", "genesis", "hash_record", "name_place",
    "open_log", "parse_payload", "rate_tool_calls", "read_calls", "read_last", "read_tool_calls", "read_uses",
]  # fmt: skip


def open_log(where: str | Path, *, readonly: bool = False) -> EventLog:
    """Open the log in a file, at a ``postgresql://`` URL, or in an export, which is read-only."""
    if is_postgres(where):
        return PostgresLog(where, readonly=readonly)
    if str(where).endswith(".jsonl"):
        if not readonly:
            raise LogReadOnlyError(f"{where}: an export is read-only")
        return ExportedLog(where)
    return SqliteLog(where, readonly=readonly)
