"""A tool that runs a session: an agent that another agent can call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..log import SideEffect
from ..messages import Tool
from ..permission import Policy
from ..provider import Provider
from ..tools import (
    DEFAULT_OUTPUT_LIMIT,
    CallWaits,
    ExecutableTool,
    Observation,
    ToolFailure,
    Tools,
    gather_tools,
)
from ..tools.runtime import OnResume
from .budget import Budget, SharedBudget
from .parent import PARENT
from .session import Session

_TASK = {"type": "string", "description": "What to do, with everything that is needed for it."}
_PARAMETERS = {"type": "object", "properties": {"task": _TASK}, "required": ["task"]}
_EFFECTS: tuple[SideEffect, ...] = ("none", "read", "write", "network", "execute")


class SessionTool(ExecutableTool):
    """A tool that runs a session, with a model, tools and instructions of its own.

    ::

        expert = SessionTool(
            "ask_expert", "Ask the expert for returns.", large, [look_up], system="...",
            budget=Budget(steps=10),
        )
        session = Session(small, [expert, refund], policy, log)

    The result of a call is the answer of the session, which is in the same log. What it spends
    counts for the budget of the parent too, and each of its calls must also be permitted by the
    parent's policy; the parent's approver is asked. If it waits, the parent waits; if the parent
    is cancelled, so is it; and a parent that is resumed resumes it. ``settings`` are those of
    ``Session``.

    With ``hands_off``, the answer of the session is the answer to the user: the parent's model is
    not called again. ``side_effect`` is by default the strongest one of ``tools``.
    """

    on_resume: OnResume | None = "run"

    def __init__(
        self,
        name: str,
        description: str,
        provider: Provider,
        tools: Tools = None,
        policy: Policy | None = None,
        *,
        budget: Budget | SharedBudget | None = None,
        hands_off: bool = False,
        side_effect: SideEffect | None = None,
        timeout: float | None = None,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
        **settings: Any,
    ) -> None:
        for each in ("log", "session_id"):
            if each in settings:
                raise TypeError(f"SessionTool: {each} is that of the session that calls the tool")
        self.tools = gather_tools(tools)
        effects: list[SideEffect] = ["none", *[tool.side_effect for tool in self.tools]]
        strongest = max(effects, key=_EFFECTS.index)
        super().__init__(
            Tool(name, description, parameters=_PARAMETERS),
            side_effect=side_effect or strongest,
            timeout=timeout,
            output_limit=output_limit,
        )
        self._provider = provider
        self._policy = policy
        self._hands_off = hands_off
        self._settings = {**settings, "budget": budget}
        Session(provider, self.tools, policy, **self._settings)  # reject wrong settings now

    async def execute(self, arguments: Mapping[str, Any]) -> Observation:
        parent = PARENT.get()
        if parent is None:
            raise ToolFailure("not_started", f"{self.name} runs only as a tool of a session")
        key = parent.kept.intent.id
        name = f"session_{key.removeprefix('tu_')}"
        log = parent.journal.log
        session = await Session.open(
            self._provider, self.tools, self._policy, log, name, **self._settings
        )
        outcome = await session.run(arguments["task"], key=key)
        if outcome.outcome == "waiting":
            raise CallWaits(f"{self.name}: {outcome.detail}")
        spent = msgspec.to_builtins(outcome.spent, enc_hook=str)
        details = {"session": name, "outcome": outcome.outcome, "spent": spent}
        if outcome.outcome != "completed":
            why = f"The session {outcome.outcome}: {outcome.detail}"
            text = f"{why}\n{outcome.text}" if outcome.text else why
            return Observation(text, is_error=True, details=details)
        if self._hands_off:
            details["hands_off"] = True
        return Observation(outcome.text, details=details)
