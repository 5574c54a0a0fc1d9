"""The results of turns and sessions."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeAlias

from msgspec import Struct

from ..events import Parsed, Response, ToolIntent
from ..log import PermissionDenied
from ..messages import Assistant
from .budget import Spending
from .pending import Pending
from .state import State

Ending: TypeAlias = Literal["completed", "failed", "cancelled", "exhausted", "waiting"]


class SessionError(RuntimeError):
    """The requested operation is not possible in the session's current state."""


class Outcome(Struct, Generic[Parsed], frozen=True, kw_only=True):
    """How a run of a session ended.

    ``text`` is the model's last text; ``exhausted`` means that a budget ended the session, and
    ``waiting`` that it continues after a decision or a result from outside: ``pending`` lists the
    calls that need one. ``denied`` has the tool calls that were not permitted, each with the
    reason. ``spent`` includes the sessions that tool calls of this one have run.
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


StepKind: TypeAlias = Literal[
    "call", "permission", "execution", "observation", "answer", "waiting", "end"
]


class _Reply(Struct, frozen=True):
    number: int
    response: Response | None


class Step(_Reply, frozen=True, kw_only=True):
    """One step of a session; ``number`` is the number of the turn that it belongs to.

    The ``kind`` is what was done: ``call``: the model was called, and ``intents`` has the calls
    that it proposes, none of which has been processed; ``permission``: it was decided, or asked,
    whether a call may run, or the call was rejected; ``execution``: a call ran, or was handed out;
    ``observation``: the result of a call that runs elsewhere was recorded. The last step has the
    ``outcome`` of the run. Its kind is ``answer`` if the model answered, ``waiting`` if a decision
    or a result must come from outside, and otherwise ``end``.
    """

    intents: tuple[ToolIntent, ...] = ()
    outcome: Outcome | None = None
    kind: StepKind = "call"


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
    *,
    spent: Spending,
    parsed: Any = None,
    pending: tuple[Pending, ...] = (),
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
        spent=spent,
        parsed=parsed,
        denied=denied,
        pending=pending,
    )
