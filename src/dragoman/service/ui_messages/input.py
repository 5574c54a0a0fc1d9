"""Read the request of a chat: the last message as a goal, or the answers in its tool parts."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from ...errors import InvalidRequestError
from ...session import Pending
from ...trace.approval import GivenDecision
from ..bodies import MAX_GOAL, GivenResult

_Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]


class ChatMessage(Struct, frozen=True, kw_only=True):
    """A message of the chat; the session has its own record of the conversation."""

    id: Annotated[str, Meta(max_length=200)]
    role: str
    parts: Annotated[tuple[dict[str, Any], ...], Meta(max_length=10_000)] = ()


class ChatInput(Struct, frozen=True, kw_only=True):
    """The body of a request; further fields are not used."""

    id: _Id
    messages: Annotated[tuple[ChatMessage, ...], Meta(min_length=1, max_length=10_000)]
    trigger: str = "submit-message"

    @property
    def is_answer(self) -> bool:
        """Whether the last message is one of the session, with answers in its tool parts."""
        return self.messages[-1].role == "assistant"

    def find_goal(self) -> tuple[str, str]:
        """Return the text of the last message, which must be of the user, and its id."""
        last = self.messages[-1]
        if self.trigger != "submit-message":
            raise InvalidRequestError(
                f"trigger: {self.trigger[:40]!r} is not possible; a session keeps what it has done"
            )
        if last.role != "user":
            raise InvalidRequestError("messages: must end with a message of the user")
        others = [part.get("type") for part in last.parts if part.get("type") != "text"]
        if others:
            raise InvalidRequestError(
                f"messages: a goal is text; a part of type {others[0]} is not read"
            )
        text = "\n".join([str(part.get("text", "")) for part in last.parts])
        if not 0 < len(text) <= MAX_GOAL:
            raise InvalidRequestError(
                f"messages: the last text must have 1 to {MAX_GOAL} characters"
            )
        return text, last.id

    def find_answer(self, pending: Pending) -> GivenDecision | GivenResult | None:
        """Return the answer to what a session waits for, if the last message has one."""
        for part in self.messages[-1].parts:
            if part.get("toolCallId") != pending.intent_id:
                continue
            state = part.get("state")
            if pending.kind == "decision" and state == "approval-responded":
                return _read_approval(part.get("approval"))
            if pending.kind == "result" and state == "output-available":
                return GivenResult(content=part.get("output"))
            if pending.kind == "result" and state == "output-error":
                return GivenResult(content=str(part.get("errorText")), is_error=True)
        return None


def _read_approval(approval: Any) -> GivenDecision:
    if not isinstance(approval, dict) or not isinstance(approval.get("approved"), bool):
        raise InvalidRequestError("messages: an approval must have approved: true or false")
    return GivenDecision(allowed=approval["approved"], reason=str(approval.get("reason") or ""))
