"""Translate what happens in a session into chunks of a UI message stream.

A tool call has the id of its intent, and so has the request for its approval.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...session import Pending
from ..narration import (
    CallEnded,
    CallProposed,
    Delta,
    PartEnded,
    Progress,
    RunEnded,
    Told,
    TurnBegan,
)

_REASONS = {"completed": "stop", "waiting": "tool-calls", "exhausted": "length"}


class SessionChunks:
    """The chunks of one run; without a message id, the client continues its last message."""

    def __init__(self, session: str, message_id: str | None) -> None:
        self._session = session
        self._message_id = message_id
        self._part: str | None = None
        self._is_in_step = False

    def start(self) -> list[dict[str, Any]]:
        """Return the chunks that begin the run."""
        named = {} if self._message_id is None else {"messageId": self._message_id}
        return [{"type": "start", **named, "messageMetadata": {"session": self._session}}]

    def convert(self, told: Told) -> Iterator[dict[str, Any]]:
        """Yield the chunks for what happened; the end of the run has its own method."""
        if isinstance(told, Delta):
            if self._part != told.id:
                self._part = told.id
                yield {"type": f"{told.kind}-start", "id": told.id}
            yield {"type": f"{told.kind}-delta", "id": told.id, "delta": told.text}
        elif isinstance(told, PartEnded):
            self._part = None
            yield {"type": f"{told.kind}-end", "id": told.id}
        elif isinstance(told, TurnBegan):
            yield from self._end_step()
            self._is_in_step = True
            yield {"type": "start-step"}
        elif isinstance(told, CallProposed):
            yield {
                "type": "tool-input-available",
                "toolCallId": told.id,
                "toolName": told.tool_name,
                "input": told.input,
            }
        elif isinstance(told, CallEnded):
            yield _write_end(told)
        elif isinstance(told, Progress):
            yield {"type": "data-tool-progress", "id": told.id, "data": told.progress}

    def finish(self, ended: RunEnded, pending: Sequence[Pending]) -> Iterator[dict[str, Any]]:
        """Yield the chunks that end the run; ``pending`` is what the session waits for."""
        for each in pending:
            if each.kind == "decision":
                call = {"approvalId": each.intent_id, "toolCallId": each.intent_id}
                yield {"type": "tool-approval-request", **call}
        yield from self._end_step()
        if ended.outcome == "failed":
            yield {"type": "error", "errorText": ended.detail or "the session failed"}
        elif ended.outcome == "cancelled":
            yield {"type": "abort", "reason": ended.detail or "cancelled"}
        else:
            metadata = {"session": self._session, "outcome": ended.outcome, "detail": ended.detail}
            reason = _REASONS.get(ended.outcome, "other")
            yield {"type": "finish", "finishReason": reason, "messageMetadata": metadata}

    def _end_step(self) -> Iterator[dict[str, Any]]:
        if self._is_in_step:
            self._is_in_step = False
            yield {"type": "finish-step"}


def _write_end(told: CallEnded) -> dict[str, Any]:
    call = {"toolCallId": told.id}
    if told.is_denied:
        return {"type": "tool-output-denied", **call}
    if told.is_error:
        return {"type": "tool-output-error", **call, "errorText": told.text}
    return {"type": "tool-output-available", **call, "output": told.text}
