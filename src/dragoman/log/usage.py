"""Read the model calls in a log, in the form that ``reprice`` accepts."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import CallCompleted, CallFailed
from ..events import Usage
from ..prices import PricedUse
from .eventlog import EventLog
from .record import LogRecord


def read_calls(log: EventLog, session: str | None = None) -> Iterator[tuple[LogRecord, PricedUse]]:
    """Yield every call that used tokens: its record, tokens, model, time and recorded cost.

    This includes calls that failed or were cancelled after the reply began, since they are billed.
    """
    for record in log.find("llm.call_completed", "llm.call_failed", session=session):
        call = record.payload
        if isinstance(call, CallCompleted) or (
            isinstance(call, CallFailed) and call.usage != Usage()
        ):
            sold_as = call.priced_as or f"{call.provider}:{call.model}"
            yield record, PricedUse(call.usage, sold_as, record.timestamp, call.cost_usd)


def read_uses(log: EventLog, session: str | None = None) -> Iterator[PricedUse]:
    """Yield every call that used tokens, in the form that ``reprice`` accepts."""
    for _, use in read_calls(log, session):
        yield use
