"""The agent loop, which records evidence from each intent to its observation.

Box: agent.

::

    async with SqliteLog("log.db") as log:
        session = Session(provider, tools, policy, log, budget=Budget(steps=20, cost_usd="0.50"))
        outcome = await session.run("Find out why the tests fail and fix them.")

The provider proposes. The session records the proposal, gets permission, executes it and records
the observation, so that the log shows what happened and why. After a crash, ``Session.resume``
continues from the log and runs nothing twice.
"""

from __future__ import annotations

from .answers import answer, observe
from .budget import Budget, SharedBudget, Spending
from .cancelling import cancel_waiting
from .context import (
    ContextPolicy,
    ContextView,
    DropOldToolResults,
    KeepAll,
    NativeCompaction,
    Part,
    Projection,
    Summarise,
    Window,
)
from .hooks import HookError, hook
from .ids import ToolIds
from .outcome import Outcome, SessionError, Step
from .pending import Pending
from .remote_approval import Question, RemoteApprover, answer_question, find_questions
from .session import Session
from .state import IntentState, State, reduce_records
from .subsession import SessionTool
from .telemetry import SessionTelemetry

__all__ = [
    "Budget", "ContextPolicy", "ContextView", "DropOldToolResults", "HookError", "IntentState",
    "KeepAll", "NativeCompaction", "Outcome", "Part", "Pending", "Projection", "Question",
    "RemoteApprover", "Session", "SessionError", "SessionTelemetry", "SessionTool", "SharedBudget",
    "Spending", "State", "Step", "Summarise", "ToolIds", "Window", "answer", "answer_question", "cancel_waiting", "find_questions", "hook",
    "observe", "reduce_records",
]  # fmt: skip
