"""Tools that return recorded results.

They have no side effects, so a run with them can be repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ..messages import Tool
from .runtime import ExecutableTool, FailureKind, Observation, ToolFailure

_UNLIMITED = 10**9  # recorded output is not truncated again: the original tool applied its limit


class RecordedRun(Struct, frozen=True):
    """One recorded run of a tool: its input, and its observation or failure.

    ``repeatable`` is whether the same call may be replayed any number of times, because the tool
    only reads.
    """

    input: dict[str, Any]
    observation: Observation | None = None
    failure: tuple[FailureKind, str] | None = None
    repeatable: bool = False


class RecordedTool(ExecutableTool):
    """A tool that returns recorded observations in order, and rejects unrecorded calls."""

    def __init__(self, description: Tool, runs: Iterable[RecordedRun] = ()) -> None:
        super().__init__(description, side_effect="none", timeout=None, output_limit=_UNLIMITED)
        self._runs: dict[bytes, deque[RecordedRun]] = {}
        for run in runs:
            self._runs.setdefault(_key(run.input), deque()).append(run)

    async def execute(self, arguments: Mapping[str, Any]) -> Observation:
        runs = self._runs.get(_key(arguments))
        if not runs:
            raise ToolFailure(
                "not_recorded", f"{self.name} never ran with this input in the recorded session"
            )
        run = runs[0] if len(runs) == 1 and runs[0].repeatable else runs.popleft()
        if run.failure is not None:
            raise ToolFailure(*run.failure)
        assert run.observation is not None
        return run.observation


def _key(arguments: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(arguments, order="deterministic")
