"""The tools of a recorded run, to repeat the run without side effects."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..events import ToolIntent
from ..log import (
    EventLog,
    PermissionDenied,
    PermissionGranted,
    SessionResumed,
    SessionStarted,
    ToolFailed,
    ToolIntentValidated,
    ToolObserved,
    ToolsChanged,
    ToolStarted,
)
from ..messages import Tool
from ..permission import Decision

if TYPE_CHECKING:
    from ..tools import RecordedTool

_TOOLS = "dragoman.tools"  # tools are imported on first use, because viewing a run needs none
_TYPES = (
    "session.started", "session.resumed", "tools.changed", "tool_intent.proposed", "tool_intent.validated",
    "tool.started",
    "tool.observed", "tool.failed", "permission.granted", "permission.denied",
)  # fmt: skip


def recorded_tools(log: EventLog, session: str) -> list[RecordedTool]:
    """Return the tools of a recorded run: they return its observations and execute nothing.

    A call that ran several times returns its observations in order. If there are more calls than
    observations, a call without side effects repeats the last observation. A call that never ran,
    because it was not proposed, fails with ``not_recorded``. A call without a recorded outcome
    counts as never run. The session denies a call that was denied, and runs a call whose input was
    changed with that input, if the call has the same intent id, as with ``ReplayProvider``. Pass
    the tools to a ``Session`` with ``ReplayProvider`` or another model.
    """
    tools: Any = importlib.import_module(_TOOLS)
    described: dict[str, Tool] = {}
    intents: dict[str, ToolIntent] = {}
    started: dict[str, ToolStarted] = {}
    harmless: set[str] = set()
    runs: dict[str, list[Any]] = {}
    decisions: dict[str, Decision] = {}
    for record in log.find(*_TYPES, session=session):
        payload = record.payload
        if isinstance(payload, SessionStarted | SessionResumed | ToolsChanged):
            names = payload.tools if isinstance(payload, SessionStarted) else ()
            described |= {name: Tool(name, "", parameters={"type": "object"}) for name in names}
            described |= {tool.name: tool for tool in payload.definitions}
        elif isinstance(payload, ToolIntent):
            intents[payload.id] = payload
        elif isinstance(payload, ToolIntentValidated) and payload.side_effect in ("none", "read"):
            harmless.add(payload.intent_id)
        elif isinstance(payload, ToolStarted):
            started[payload.intent_id] = payload
        elif isinstance(payload, ToolObserved | ToolFailed) and payload.intent_id in started:
            run = started[payload.intent_id]
            proposed = intents[payload.intent_id].input if payload.intent_id in intents else None
            facts = {
                "repeatable": payload.intent_id in harmless,
                # A call whose input was edited is found by the proposed and the executed input.
                "proposed": proposed if proposed != run.input else None,
            }
            made = _make_run(tools, run.input, payload, facts)
            runs.setdefault(run.tool_name, []).append(made)
        elif isinstance(payload, PermissionDenied | PermissionGranted):
            # only a denial or a change of the input has an effect when the run is repeated
            changed = payload.input if isinstance(payload, PermissionGranted) else None
            if isinstance(payload, PermissionDenied) or changed is not None:
                decisions[payload.intent_id] = Decision(
                    changed is not None,
                    payload.by,
                    reason=payload.reason,
                    rule=payload.rule,
                    input=changed,
                )
    return [
        tools.RecordedTool(tool, runs.get(name, ()), decisions) for name, tool in described.items()
    ]


def _make_run(
    tools: Any, given: dict[str, Any], end: ToolObserved | ToolFailed, facts: dict[str, Any]
) -> Any:
    if isinstance(end, ToolFailed):
        return tools.RecordedRun(input=given, failure=(end.kind, end.message), **facts)
    seen = tools.Observation(
        end.content,
        is_error=end.is_error,
        truncated=end.truncated,
        exit_code=end.exit_code,
        duration_ms=end.duration_ms,
        details=end.details,
    )
    return tools.RecordedRun(input=given, observation=seen, **facts)
