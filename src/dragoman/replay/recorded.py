"""The tools of a recorded run, to repeat the run without side effects."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..events import ToolIntent
from ..log import (
    EventLog,
    SessionResumed,
    SessionStarted,
    ToolFailed,
    ToolIntentValidated,
    ToolObserved,
    ToolStarted,
)
from ..messages import Tool

if TYPE_CHECKING:
    from ..tools import RecordedTool

_TOOLS = "dragoman.tools"  # tools are imported on first use, because viewing a run needs none
_TYPES = (
    "session.started", "session.resumed", "tool_intent.proposed", "tool_intent.validated",
    "tool.started",
    "tool.observed", "tool.failed",
)  # fmt: skip


def recorded_tools(log: EventLog, session: str) -> list[RecordedTool]:
    """Return the tools of a recorded run: they return its observations and execute nothing.

    A call that ran several times returns its observations in order. If there are more calls than
    observations, a call without side effects repeats the last observation. A call that never ran,
    because it was denied or not proposed, fails with ``not_recorded``. A call without a recorded
    outcome counts as never run. Pass the tools to a ``Session`` with ``ReplayProvider`` or another
    model.
    """
    tools: Any = importlib.import_module(_TOOLS)
    described: dict[str, Tool] = {}
    intents: dict[str, ToolIntent] = {}
    started: dict[str, ToolStarted] = {}
    harmless: set[str] = set()
    runs: dict[str, list[Any]] = {}
    for record in log.find(*_TYPES, session=session):
        payload = record.payload
        if isinstance(payload, SessionStarted | SessionResumed):
            names = payload.tools if isinstance(payload, SessionStarted) else ()
            described |= {name: Tool(name, "", {"type": "object"}) for name in names}
            described |= {tool.name: tool for tool in payload.definitions}
        elif isinstance(payload, ToolIntent):
            intents[payload.id] = payload
        elif isinstance(payload, ToolIntentValidated) and payload.side_effect in ("none", "read"):
            harmless.add(payload.intent_id)
        elif isinstance(payload, ToolStarted):
            started[payload.intent_id] = payload
        elif isinstance(payload, ToolObserved | ToolFailed) and payload.intent_id in started:
            run = started[payload.intent_id]
            proposed = (
                intents[payload.intent_id].input if payload.intent_id in intents else run.input
            )
            # A call whose input was edited is found by the proposed and by the executed input.
            for given in [run.input, *([proposed] if proposed != run.input else [])]:
                made = _make_run(tools, given, payload, repeatable=payload.intent_id in harmless)
                runs.setdefault(run.tool_name, []).append(made)
    return [tools.RecordedTool(tool, runs.get(name, ())) for name, tool in described.items()]


def _make_run(
    tools: Any, given: dict[str, Any], end: ToolObserved | ToolFailed, *, repeatable: bool
) -> Any:
    if isinstance(end, ToolFailed):
        return tools.RecordedRun(given, failure=(end.kind, end.message), repeatable=repeatable)
    seen = tools.Observation(
        end.content, end.is_error, end.truncated, end.exit_code, end.duration_ms, end.details
    )
    return tools.RecordedRun(given, seen, repeatable=repeatable)
