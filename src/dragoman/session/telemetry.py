"""Report a session's run as OpenTelemetry spans: one for the agent, one for each tool run.

The durations of both are metrics, too.

::

    telemetry = OpenTelemetry()
    session = Session(Observe(model, telemetry), tools, on_record=SessionTelemetry(telemetry))

The spans of the model's calls, which ``Observe`` reports, become children of the agent's span,
too. Spans are built from the records of the log, so only recorded actions have one: a tool call
that was denied has no span.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ..calls import CallCompleted, CallFailed, redact
from ..log import (
    LogRecord,
    SessionFinished,
    SessionStarted,
    ToolFailed,
    ToolObserved,
    ToolRestarted,
    ToolStarted,
)
from ..middleware.otel import NAMES, OpenTelemetry, find_provider_name

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_COUNTS = ("input_tokens", "output_tokens")


class SessionTelemetry:
    """Report sessions as OpenTelemetry spans; pass an instance as ``Session(on_record=...)``.

    One instance can serve many sessions. ``agent`` is the name of the agent. Arguments and
    results of tools are in the spans only with ``include_content``.
    """

    def __init__(
        self, telemetry: OpenTelemetry, *, agent: str | None = None, include_content: bool = False
    ) -> None:
        # opentelemetry is an optional dependency, so it is imported on first use.
        from opentelemetry import trace

        self._trace = trace
        self._telemetry = telemetry
        self._agent = agent
        self._include_content = include_content
        self._runs: dict[str, _Run] = {}

    def __call__(self, record: LogRecord) -> None:
        """Start or end the spans that a record affects."""
        payload = record.payload
        run = self._runs.get(record.session)
        if run is None:
            if isinstance(payload, SessionFinished):
                return  # no span was started, because the session's start was not observed
            run = self._runs[record.session] = self._start(record)
        if isinstance(payload, SessionStarted):
            run.served = _describe(payload)
            _set(run.agent, run.served)
            run.descriptions = {tool.name: tool.description for tool in payload.definitions}
        elif isinstance(payload, CallCompleted | CallFailed):
            run.add_call(payload)
        elif isinstance(payload, ToolStarted | ToolRestarted):
            self._start_tool(run, record, payload)
        elif isinstance(payload, ToolObserved | ToolFailed):
            self._end_tool(run, record, payload)
        elif isinstance(payload, SessionFinished):
            del self._runs[record.session]
            self._finish(run, record, payload)

    def _start(self, record: LogRecord) -> _Run:
        """Start the agent's span, as a child of OpenTelemetry's current span."""
        name = "invoke_agent" if self._agent is None else f"invoke_agent {self._agent}"
        facts = {"operation": "invoke_agent", "agent": self._agent, "session_id": record.session}
        span = self._telemetry.tracer.start_span(
            name, attributes=_name(facts), start_time=_moment(record)
        )
        self._telemetry.adopt(record.session, self._trace.set_span_in_context(span))
        return _Run(span, record.timestamp)

    def _start_tool(
        self, run: _Run, record: LogRecord, started: ToolStarted | ToolRestarted
    ) -> None:
        facts = {
            "operation": "execute_tool",
            "tool": started.tool_name,
            "tool_type": "function",
            "tool_description": run.descriptions.get(started.tool_name),
            "call_id": started.intent_id,
            "agent": self._agent,
            "session_id": record.session,
            "call_arguments": _write(started.input) if self._include_content else None,
        }
        run.began[started.intent_id] = record.timestamp
        run.tools[started.intent_id] = self._telemetry.tracer.start_span(
            f"execute_tool {started.tool_name}",
            context=self._trace.set_span_in_context(run.agent),
            attributes=_name(facts),
            start_time=_moment(record),
        )

    def _end_tool(self, run: _Run, record: LogRecord, end: ToolObserved | ToolFailed) -> None:
        span = run.tools.pop(end.intent_id, None)
        if span is None:
            return
        error: str | None = None
        if isinstance(end, ToolFailed):
            error = end.kind
            self._fail(span, error, end.message)
        else:
            if self._include_content:
                _set(span, {"call_result": _write(end.content)})
            if end.is_error:
                error = "tool_error"
                self._fail(span, error, "the tool returned an error")
        span.end(_moment(record))
        seconds = (record.timestamp - run.began.pop(end.intent_id)).total_seconds()
        facts = {
            "operation": "execute_tool",
            "tool": end.tool_name,
            "tool_type": "function",
            "agent": self._agent,
            "error": error,
        }
        self._telemetry.time("tool_duration", seconds, facts)

    def _finish(self, run: _Run, record: LogRecord, finished: SessionFinished) -> None:
        for span in run.tools.values():
            self._fail(span, "interrupted", "the session ended before the tool")
            span.end(_moment(record))
        _set(run.agent, {"outcome": finished.outcome, **run.counts})
        if finished.outcome == "failed":
            self._fail(run.agent, "failed", finished.detail or "")
        run.agent.end(_moment(record))
        error = "failed" if finished.outcome == "failed" else None
        facts = {"operation": "invoke_agent", "agent": self._agent, "error": error, **run.served}
        seconds = (record.timestamp - run.started).total_seconds()
        self._telemetry.time("agent_duration", seconds, facts)

    def _fail(self, span: Span, kind: str, message: str) -> None:
        _set(span, {"error": kind})
        span.set_status(self._trace.StatusCode.ERROR, redact(message))


class _Run:
    """The open spans of one session, and the tokens that its calls have used."""

    def __init__(self, agent: Span, started: datetime) -> None:
        self.agent = agent
        self.started = started
        self.served: dict[str, Any] = {}
        self.began: dict[str, datetime] = {}
        self.tools: dict[str, Span] = {}
        self.descriptions: dict[str, str] = {}
        self.counts: dict[str, int] = {}

    def add_call(self, call: CallCompleted | CallFailed) -> None:
        for name in _COUNTS:
            count = getattr(call, name)
            if count is not None:
                self.counts[name] = self.counts.get(name, 0) + count
        self.served = _describe(call)
        _set(self.agent, self.served)


def _describe(payload: SessionStarted | CallCompleted | CallFailed) -> dict[str, Any]:
    vendor = payload.provider
    return {"model": payload.model, "provider": vendor and find_provider_name(vendor)}


def _moment(record: LogRecord) -> int:
    return int(record.timestamp.timestamp() * 1e9)


def _name(facts: dict[str, Any]) -> dict[str, Any]:
    """Return attributes under their names in OpenTelemetry's conventions; omit unknown values."""
    return {NAMES[name]: value for name, value in facts.items() if value is not None}


def _set(span: Span, facts: dict[str, Any]) -> None:
    span.set_attributes(_name(facts))


def _write(value: Any) -> str:
    return msgspec.json.encode(value).decode()
