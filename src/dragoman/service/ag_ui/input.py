"""Read the input of a run of AG-UI: the last message as a goal, and the answers to interrupts."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from ...errors import InvalidRequestError
from ...session import Pending
from ...trace.approval import GivenDecision
from ..bodies import MAX_GOAL, GivenResult

_Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
_MANY = 10_000


class InputMessage(Struct, frozen=True, kw_only=True):
    """A message of the thread; the session has its own record of the conversation."""

    id: _Id
    role: str
    content: Any = None


class ResumeEntry(Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to an interrupt."""

    interrupt_id: _Id
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunInput(Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of a request; other fields, such as the state of the page, are not used."""

    thread_id: _Id
    run_id: _Id
    messages: Annotated[tuple[InputMessage, ...], Meta(max_length=_MANY)] = ()
    resume: Annotated[tuple[ResumeEntry, ...], Meta(max_length=1000)] = ()

    def find_goal(self) -> tuple[str, str]:
        """Return the text of the last message, which must be of the user, and its id."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "user":
            raise InvalidRequestError(
                "messages: must end with a message of the user, or resume must answer an interrupt"
            )
        text = _read_text(last.content)
        if not 0 < len(text) <= MAX_GOAL:
            raise InvalidRequestError(
                f"messages: the last text must have 1 to {MAX_GOAL} characters"
            )
        return text, last.id


def _read_text(content: Any) -> str:
    """Return the text of a message; raise ``InvalidRequestError`` for parts of other kinds."""
    if isinstance(content, str):
        return content
    found: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise InvalidRequestError(
                f"messages: a goal is text; a part of type {kind} is not read"
            )
        found.append(part["text"])
    return "\n".join(found)


def read_resumed(entry: ResumeEntry, pending: Pending) -> GivenDecision | GivenResult:
    """Return the answer to an interrupt: a decision, or the result of a call."""
    payload = entry.payload
    is_cancelled = entry.status == "cancelled"
    if pending.kind == "result":
        if is_cancelled:
            return GivenResult(content="the user cancelled it", is_error=True)
        return GivenResult(content=payload)
    if is_cancelled:
        return GivenDecision(allowed=False, reason="cancelled")
    fields = {"approved": payload} if isinstance(payload, bool) else payload
    if not isinstance(fields, dict) or not isinstance(fields.get("approved"), bool):
        raise InvalidRequestError(
            "resume: the payload of a decision must have approved: true or false"
        )
    given = {"allowed" if name == "approved" else name: value for name, value in fields.items()}
    return msgspec.convert(given, GivenDecision)
