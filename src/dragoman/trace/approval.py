"""Decisions made in the trace viewer: the open questions, and answers to them."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ..log import EventLog
from ..permission import Decision
from ..session import SessionError, answer_question, find_questions
from .queries import NotOpenError

MAX_REASON = 10_000
"""The most characters in the reason of a decision."""


class GivenDecision(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of a request that decides about a tool call.

    ``input`` replaces the proposed input; ``scope`` is what else is allowed in the session.
    """

    allowed: bool
    reason: Annotated[str, Meta(max_length=MAX_REASON)] = ""
    scope: Literal["once", "session", "path", "prefix"] = "once"
    prefix: str | None = None
    input: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.allowed and (self.input is not None or self.scope != "once"):
            raise ValueError("a denial takes neither an input nor a scope")
        if self.prefix is not None and self.scope != "prefix":
            raise ValueError("prefix: is for the scope 'prefix' only")

    def decide(self, by: str) -> Decision:
        """Return the decision as one that ``by`` made."""
        return Decision(**{name: getattr(self, name) for name in _DECIDED}, by=by)


_DECIDED = GivenDecision.__struct_fields__


class ApprovalAnswer(GivenDecision, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of an HTTP request that answers a question: which question, and the decision."""

    session: str
    intent: str


class Approvals:
    """List the open questions in a log, and record the answers of the user ``by``.

    Every answer must include ``token``.
    """

    def __init__(self, log: EventLog, by: str) -> None:
        self._log = log
        self._by = by
        self.token = secrets.token_urlsafe(24)

    def list_questions(self) -> list[dict[str, Any]]:
        """Return the open questions, each with the complete input of its tool call."""
        return [msgspec.to_builtins(each) for each in find_questions(self._log)]

    def answer(self, body: bytes) -> dict[str, Any]:
        """Record an answer; raise ``NotOpenError`` if the question is not open."""
        given = msgspec.json.decode(body, type=ApprovalAnswer)
        decision = given.decide(self._by)
        intent = given.intent
        try:
            record = answer_question(self._log, given.session, intent, decision)
        except SessionError as error:
            raise NotOpenError(str(error)) from error
        return {"intent": intent, "allowed": decision.allowed, "by": self._by, "seq": record.seq}
