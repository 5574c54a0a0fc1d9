"""The calls of a log as ``reprice`` takes them."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import CallCompleted, CallFailed
from ..events import Usage
from ..prices import PricedUse
from .eventlog import EventLog
from .record import LogRecord


def read_calls(log: EventLog, session: str | None = None) -> Iterator[tuple[LogRecord, PricedUse]]:
    """Yield every call that used tokens: its record, and how many of which model, when, and the recorded cost.

    A call that failed or was cancelled after its reply had begun is one of them: it is billed.
    """
    for record in log.find("llm.call_completed", "llm.call_failed", session=session):
        call = record.payload
        if isinstance(call, CallCompleted) or (isinstance(call, CallFailed) and call.usage != Usage()):
            sold_as = call.priced_as or f"{call.provider}:{call.model}"
            yield record, PricedUse(call.usage, sold_as, record.timestamp, call.cost_usd)


def read_uses(log: EventLog, session: str | None = None) -> Iterator[PricedUse]:
    """Yield every call that used tokens, as ``reprice`` takes it."""
    for _, use in read_calls(log, session):
        yield use
