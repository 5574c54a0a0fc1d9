"""Translate what happens in a session into events of AG-UI.

A tool call has the id of its intent. A run that waits ends with the outcome ``interrupt``, and
each interrupt has the id of the intent that it is about; a ``resume`` entry of the next run
answers it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ...session import Pending
from ..narration import (
    CallEnded,
    CallProposed,
    Delta,
    ModelUsed,
    PartEnded,
    Progress,
    RunEnded,
    Told,
    TurnBegan,
)

PROTOCOL = "1.0"
DECISION = "tool_approval"
RESULT = "tool_result"
_REASON = {"type": "string", "description": "Why, for the model."}


class RunEvents:
    """The events of one run of a thread, in order."""

    def __init__(self, thread: str, run: str) -> None:
        self._ids = {"threadId": thread, "runId": run}
        self._step: str | None = None
        self._part: str | None = None  # the message that is open
        self._usage: dict[tuple[str, str], dict[str, Any]] = {}

    def start(self) -> list[dict[str, Any]]:
        """Return the events that begin the run."""
        return [{"type": "RUN_STARTED", **self._ids, "protocolVersion": PROTOCOL}]

    def convert(self, told: Told) -> Iterator[dict[str, Any]]:
        """Yield the events for what happened; the end of the run has its own method."""
        if isinstance(told, Delta):
            yield from self._write_delta(told)
        elif isinstance(told, PartEnded):
            yield from self._end_part(told)
        elif isinstance(told, TurnBegan):
            yield from self._end_step()
            self._step = f"turn {told.number}"
            yield {"type": "STEP_STARTED", "stepName": self._step}
        elif isinstance(told, CallProposed):
            call = {"toolCallId": told.id}
            arguments = msgspec.json.encode(told.input).decode()
            yield {"type": "TOOL_CALL_START", **call, "toolCallName": told.tool_name}
            yield {"type": "TOOL_CALL_ARGS", **call, "delta": arguments}
            yield {"type": "TOOL_CALL_END", **call}
        elif isinstance(told, CallEnded):
            yield {
                "type": "TOOL_CALL_RESULT",
                "messageId": f"{told.id}-result",
                "toolCallId": told.id,
                "content": told.text,
                "role": "tool",
                "metadata": {"isError": told.is_error, "isDenied": told.is_denied},
            }
        elif isinstance(told, Progress):
            value = {"toolCallId": told.id, "tool": told.tool_name, "progress": told.progress}
            yield {"type": "CUSTOM", "name": "tool_progress", "value": value}
        elif isinstance(told, ModelUsed):
            self._add_usage(told)

    def finish(self, ended: RunEnded, pending: Sequence[Pending]) -> Iterator[dict[str, Any]]:
        """Yield the events that end the run; ``pending`` is what the session waits for."""
        yield from self._end_step()
        usage = {"usage": list(self._usage.values())} if self._usage else {}
        if ended.outcome in ("failed", "exhausted"):
            problem = ended.detail or ended.outcome
            yield {"type": "RUN_ERROR", "message": problem, "code": ended.outcome, **usage}
            return
        outcome: dict[str, Any] = {"type": "success"}
        if pending:
            outcome = {"type": "interrupt", "interrupts": list(map(write_interrupt, pending))}
        elif ended.outcome == "cancelled":
            outcome = {"type": "cancelled"}
        yield {"type": "RUN_FINISHED", **self._ids, "outcome": outcome, **usage}

    def _write_delta(self, told: Delta) -> Iterator[dict[str, Any]]:
        prefix = "TEXT_MESSAGE" if told.kind == "text" else "REASONING_MESSAGE"
        ids = {"messageId": told.id}
        if self._part != told.id:
            self._part = told.id
            if told.kind == "reasoning":
                yield {"type": "REASONING_START", **ids}
            role = "assistant" if told.kind == "text" else "reasoning"
            yield {"type": f"{prefix}_START", **ids, "role": role}
        yield {"type": f"{prefix}_CONTENT", **ids, "delta": told.text}

    def _end_part(self, told: PartEnded) -> Iterator[dict[str, Any]]:
        self._part = None
        ids = {"messageId": told.id}
        if told.kind == "text":
            yield {"type": "TEXT_MESSAGE_END", **ids}
        else:
            yield {"type": "REASONING_MESSAGE_END", **ids}
            yield {"type": "REASONING_END", **ids}

    def _end_step(self) -> Iterator[dict[str, Any]]:
        if self._step is not None:
            yield {"type": "STEP_FINISHED", "stepName": self._step}
            self._step = None

    def _add_usage(self, told: ModelUsed) -> None:
        facts = {"provider": told.provider, "model": told.model}
        found = self._usage.setdefault((told.provider, told.model), facts)
        counts = {"inputTokens": told.input_tokens, "outputTokens": told.output_tokens}
        for name, count in counts.items():
            if count is not None:
                found[name] = found.get(name, 0) + count


def write_interrupt(pending: Pending) -> dict[str, Any]:
    """Return what a session waits for as an interrupt, with the schema of the answer."""
    schema: dict[str, Any] = {}
    if pending.kind == "decision":
        properties = {
            "approved": {"type": "boolean"}, "reason": _REASON, "input": pending.schema or {},
        }  # fmt: skip
        schema = {"type": "object", "properties": properties, "required": ["approved"]}
    return {
        "id": pending.intent_id,
        "reason": DECISION if pending.kind == "decision" else RESULT,
        "message": pending.question,
        "toolCallId": pending.intent_id,
        "responseSchema": schema,
        "metadata": {
            "tool": pending.tool_name,
            "input": pending.input,
            "session": pending.session,
            "since": pending.since.isoformat(),
        },
    }
