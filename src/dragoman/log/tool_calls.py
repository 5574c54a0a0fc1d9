"""Read how sound the tool calls in a log are: the outcome of each proposed call, by model call."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from ..calls import CallCompleted, CallFailed
from ..validate.quality import Rate, rate_calls
from .eventlog import EventLog
from .record import LogRecord


def read_tool_calls(
    log: EventLog, session: str | None = None
) -> Iterator[tuple[LogRecord, dict[str, int]]]:
    """Yield every model call that proposed tools: its record, and the count of each outcome.

    The outcomes are ``sound`` and the faults of ``dragoman.validate.quality``.
    """
    for record in log.find("llm.call_completed", "llm.call_failed", session=session):
        call = record.payload
        if isinstance(call, CallCompleted | CallFailed) and call.tool_outcomes:
            yield record, call.tool_outcomes


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
    group: Callable[[LogRecord, str], str] = lambda _, model: model,
) -> list[ToolCallRates]:
    """Return the rates of faulty tool calls per model and server, sorted by name.

    ``group`` returns the name of a call's group; it gets the record and ``provider:model``.
    """
    found: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for record, outcomes in read_tool_calls(log, session):
        call: Any = record.payload
        name = group(record, f"{call.provider}:{call.model}")
        found[name, call.server or ""].update(outcomes)
    return [
        ToolCallRates(name, server or None, outcomes.total(), rate_calls(outcomes))
        for (name, server), outcomes in sorted(found.items())
    ]
