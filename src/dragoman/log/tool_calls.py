"""Read how sound the tool calls in a log are: the outcome of each proposed call, by model call."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from msgspec import Struct

from ..calls import CallCompleted, CallFailed
from ..errors import InvalidResponseError
from ..events import ToolIntent
from ..messages import Assistant
from ..quality import FAULT_OF, SOUND, Rate, rate_calls
from .eventlog import EventLog
from .payloads import MessageRecorded, ToolIntentRejected
from .record import LogRecord

_TYPES = (
    "llm.call_completed", "llm.call_failed", "message.recorded", "tool_intent.proposed",
    "tool_intent.rejected",
)  # fmt: skip


def read_tool_calls(
    log: EventLog, session: str | None = None
) -> Iterator[tuple[LogRecord, dict[str, int]]]:
    """Yield every model call that proposed tools: its record, and the count of each outcome.

    The outcomes are ``sound`` and the faults of ``dragoman.quality``. A record without
    ``tool_outcomes``, of an earlier version, is judged by the ``tool_intent.*`` records of its
    call.
    """
    found = log.find(*_TYPES, session=session)
    for _, records in groupby(found, key=lambda record: record.session):
        ends: list[LogRecord] = []
        judged = _Intents()
        for record in records:
            if isinstance(record.payload, CallCompleted | CallFailed):
                ends.append(record)
            judged.add(record.payload)
        for record in ends:
            call: Any = record.payload
            outcomes = call.tool_outcomes or judged.count(call.request_id)
            if outcomes:
                yield record, outcomes


class ToolCallRates(Struct, frozen=True):
    """The rates of faulty tool calls of one model, or of another group of calls, on one server.

    ``rates`` has the rate of all faulty calls as ``faulty``, and that of each fault.
    """

    name: str
    server: str | None
    calls: int
    rates: dict[str, Rate]

    def to_data(self) -> dict[str, Any]:
        """Return the rates as plain data, each with its interval."""
        rates = {name: rate.to_data() for name, rate in self.rates.items()}
        return {"name": self.name, "server": self.server, "calls": self.calls, **rates}


def rate_tool_calls(
    log: EventLog,
    session: str | None = None,
    name: Callable[[LogRecord], str] | None = None,
) -> list[ToolCallRates]:
    """Return the rates of faulty tool calls per model and server, sorted by name.

    ``name`` returns the group of a call; by default, this is its ``provider:model``.
    """
    found: dict[tuple[str, str], Counter[str]] = {}
    for record, outcomes in read_tool_calls(log, session):
        call: Any = record.payload
        group = f"{call.provider}:{call.model}" if name is None else name(record)
        found.setdefault((group, call.server or ""), Counter()).update(outcomes)
    return [
        ToolCallRates(group, server or None, outcomes.total(), rate_calls(outcomes))
        for (group, server), outcomes in sorted(found.items())
    ]


class _Intents:
    """The outcomes of the tool calls of a session by its intents, for each model call."""

    def __init__(self) -> None:
        self._outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._requests: dict[str, str] = {}  # the model call of each intent
        self._unreadable: dict[str, int] = {}

    def add(self, payload: Any) -> None:
        if isinstance(payload, ToolIntent):
            self._requests[payload.id] = payload.source.request_id
            self._outcomes[payload.source.request_id][SOUND] += 1
        elif isinstance(payload, ToolIntentRejected) and payload.intent_id in self._requests:
            outcomes = self._outcomes[self._requests[payload.intent_id]]
            outcomes.subtract([SOUND])
            outcomes[FAULT_OF[payload.problem]] += 1
        elif isinstance(payload, MessageRecorded) and isinstance(payload.message, Assistant):
            calls = payload.message.tool_calls if payload.finish_reason == "error" else ()
            unreadable = [call for call in calls if call.arguments is None]
            self._unreadable[payload.request_id or ""] = len(unreadable)
        elif isinstance(payload, CallFailed) and payload.category == InvalidResponseError.category:
            # An interrupted reply has another category; its calls are cut off, not invalid.
            unread = self._unreadable.get(payload.request_id, 0)
            self._outcomes[payload.request_id]["invalid_json"] += unread

    def count(self, request_id: str) -> dict[str, int]:
        """Return the outcomes of one model call."""
        return {name: n for name, n in self._outcomes[request_id].items() if n}
