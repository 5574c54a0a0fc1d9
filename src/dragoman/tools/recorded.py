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
from ..permission import Decision
from .runtime import ExecutableTool, FailureKind, Observation, ToolFailure

_UNLIMITED = 10**9  # recorded output is not truncated again: the original tool applied its limit


class RecordedRun(Struct, frozen=True, kw_only=True):
    """One recorded run of a tool: its input, and its observation or failure.

    ``repeatable`` is whether the same call may be replayed any number of times, because the tool
    only reads. ``proposed`` is the input that the model proposed, if another input ran.
    """

    input: dict[str, Any]
    observation: Observation | None = None
    failure: tuple[FailureKind, str] | None = None
    repeatable: bool = False
    proposed: dict[str, Any] | None = None


class RecordedTool(ExecutableTool):
    """A tool that returns recorded observations in order, and rejects unrecorded calls.

    ``decisions`` are the recorded denials and changes of input, by the ids of their intents. A
    session applies them to the intents that its own policy allows.
    """

    def __init__(
        self,
        description: Tool,
        runs: Iterable[RecordedRun] = (),
        decisions: Mapping[str, Decision] | None = None,
    ) -> None:
        super().__init__(description, side_effect="none", timeout=None, output_limit=_UNLIMITED)
        self.decisions = decisions or {}
        self._runs: dict[bytes, deque[RecordedRun]] = {}
        for run in runs:
            for key in _list_keys(run):
                self._runs.setdefault(key, deque()).append(run)

    async def execute(self, arguments: Mapping[str, Any]) -> Observation:
        asked = _key(arguments)
        runs = self._runs.get(asked)
        if not runs:
            raise ToolFailure(
                "not_recorded", f"{self.name} never ran with this input in the recorded session"
            )
        run = runs[0] if len(runs) == 1 and runs[0].repeatable else runs.popleft()
        for key in _list_keys(run) - {asked}:
            if run in self._runs[key]:  # a later call with that input is another run
                self._runs[key].remove(run)
        if run.failure is not None:
            raise ToolFailure(*run.failure)
        assert run.observation is not None
        return run.observation


def _list_keys(run: RecordedRun) -> set[bytes]:
    """Return the keys of the executed input and of the proposed input, by which a run is found."""
    return {_key(run.input), _key(run.input if run.proposed is None else run.proposed)}


def _key(arguments: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(arguments, order="deterministic")
