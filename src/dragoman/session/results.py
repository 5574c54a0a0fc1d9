"""The tool result that the model receives for each end of a call."""

from __future__ import annotations

from typing import cast

import msgspec

from .. import log as logs
from ..messages import Text, UserBlock
from .state import IntentState


def describe_end(kept: IntentState | None) -> tuple[object, bool]:
    """Return the tool result for a call, and whether it is an error.

    If the call ran with a different input than the model proposed, a note with that input comes
    first.
    """
    content, is_error = _describe_end(kept)
    if kept is None or kept.edited is None or not kept.started:
        return content, is_error
    note = (
        "[The user changed the input of this call; it ran with "
        f"{msgspec.json.encode(kept.edited).decode()}]"
    )
    if isinstance(content, str):
        return f"{note}\n{content}", is_error
    return (Text(note), *cast("tuple[UserBlock, ...]", content)), is_error


def _describe_end(kept: IntentState | None) -> tuple[object, bool]:
    end = kept.end if kept is not None else None
    if isinstance(end, logs.ToolObserved):
        return end.content, end.is_error
    if isinstance(end, logs.ToolFailed):
        return f"The tool did not come to an end ({end.kind}): {end.message}", True
    if isinstance(end, logs.PermissionDenied):
        why = f": {end.reason}" if end.reason else ""
        if kept is not None and kept.started:
            return f"{_UNKNOWN}; {end.by} did not allow it to run again{why}", True
        return f"Not run: permission denied by {end.by}{why}", False
    if isinstance(end, logs.ToolIntentRejected):
        return f"Not run: {end.detail or end.problem}", True
    if isinstance(end, logs.ToolIntentClosed):
        return describe_stop(kept, end.reason), True
    return "Not run: the call could not be used", True


def describe_stop(kept: IntentState | None, reason: str) -> str:
    """Return the tool result for a call that was stopped, or never started."""
    began = kept is not None and kept.started
    return f"{_UNKNOWN if began else 'Not run'}: {reason}"


_UNKNOWN = "Interrupted, and what it did is not known"
