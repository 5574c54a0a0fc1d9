"""The results of turns and sessions."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ..events import Parsed, Response, ToolIntent
from ..log import PermissionDenied
from ..messages import Assistant
from ..tools import Toolbox
from .budget import Spending
from .pending import Pending, list_pending
from .state import State

Ending: TypeAlias = Literal["completed", "failed", "cancelled", "exhausted", "waiting"]


class SessionError(RuntimeError):
    """The requested operation is not possible in the session's current state."""


class Outcome(Struct, Generic[Parsed], frozen=True, kw_only=True):
    """How a run of a session ended.

    ``text`` is the model's last text; ``exhausted`` means that a budget ended the session, and
    ``waiting`` that it continues after a decision
    or a result from outside: ``pending`` lists the calls that need one. ``denied`` has the tool calls that were not permitted, each with
    the reason.
    """

    session: str
    outcome: Ending
    text: str
    detail: str | None
    spent: Spending
    parsed: Parsed | None = None
    denied: tuple[PermissionDenied, ...] = ()
    pending: tuple[Pending, ...] = ()

    @property
    def output(self) -> Parsed:
        """The structured final answer; raise ``SessionError`` if there is none.

        It is an instance of the type that the session received as ``output``.
        """
        if self.parsed is None:
            why = self.detail or "the session was not given output="
            raise SessionError(f"the session {self.outcome} without a structured answer: {why}")
        return self.parsed


class Step(Struct, frozen=True):
    """One turn: the model's reply, its intents, and the outcome if it was the last turn."""

    number: int
    response: Response | None
    intents: tuple[ToolIntent, ...] = ()
    outcome: Outcome | None = None


def find_ending(finish_reason: str) -> tuple[Ending, str | None]:
    """Return how a session ends after a reply without tool calls.

    If the reply is incomplete, also return the reason.
    """
    if finish_reason == "stop":
        return "completed", None
    if finish_reason == "length":
        return "exhausted", "the model's reply was cut off at its token limit"
    return "failed", f"the reply ended with {finish_reason}"


def make_outcome(
    session: str,
    state: State,
    ending: Ending,
    detail: str | None,
    parsed: Any = None,
    tools: Toolbox | None = None,
) -> Outcome[Any]:
    """Return the outcome of a session in this state."""
    last = state.messages[-1].message if state.messages else None
    text = last.text if isinstance(last, Assistant) else ""
    ends = [intent.end for intent in state.intents.values()]
    denied = tuple([end for end in ends if isinstance(end, PermissionDenied)])
    return Outcome(
        session=session,
        outcome=ending,
        text=text,
        detail=detail,
        spent=replace(state.spent),
        parsed=parsed,
        denied=denied,
        pending=list_pending(session, state, tools) if ending == "waiting" else (),
    )
