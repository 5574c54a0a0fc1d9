"""The calls of a log as ``reprice`` takes them."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import CallCompleted, CallFailed
from ..events import Usage
from ..prices import PricedUse
from .eventlog import EventLog

_FIELDS = (
    "input_tokens", "output_tokens", "cached_input_tokens", "cache_creation_input_tokens", "reasoning_tokens",
)  # fmt: skip


def read_uses(log: EventLog, session: str | None = None, *, failed: bool = False) -> Iterator[PricedUse]:
    """Every completed call: what it used, of which model, when, and what the log says it cost.

    With ``failed``, instead, the calls that failed after they had reported tokens: they may be billed.
    """
    kind = "llm.call_failed" if failed else "llm.call_completed"
    for record in log.find(kind, session=session):
        call = record.payload
        if isinstance(call, CallCompleted):
            usage = Usage(**{field: getattr(call, field) for field in _FIELDS}, estimated=call.estimated)
            yield PricedUse(usage, f"{call.provider}:{call.model}", record.timestamp, call.cost_usd)
        elif isinstance(call, CallFailed) and (call.input_tokens or call.output_tokens):
            usage = Usage(call.input_tokens, call.output_tokens)
            yield PricedUse(usage, f"{call.provider}:{call.model}", record.timestamp)
