"""What a session waits for: decisions about tool calls, and results of calls that run elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from ..log import EventLog
from ..tools import ExecutableTool
from .state import IntentState, State, reduce_records


class Pending(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tool call that waits: for a decision whether it may run, or for its result.

    ``question`` is a text for the person who answers. ``schema`` is the JSON Schema of the tool's
    input, which an edited input must satisfy too. ``since`` is when the session began to wait.
    ``dragoman.session.answer`` answers a decision, ``observe`` gives a result. An ``attempt``
    above 1 means that the call was interrupted, and whether it may run again.
    """

    kind: Literal["decision", "result"]
    intent_id: str
    tool_name: str
    input: dict[str, Any]
    session: str
    question: str
    schema: dict[str, Any]
    since: datetime
    side_effect: str = "execute"
    paths: tuple[str, ...] = ()
    rule: str | None = None
    attempt: int = 1


def list_pending(
    log: EventLog, session: str, state: State, tools: Iterable[ExecutableTool] = ()
) -> tuple[Pending, ...]:
    """Return what a session in this state waits for, in the order of the calls.

    A call that runs a session waits for what that session waits for, which is read from the log.
    """
    known = {tool.name: tool for tool in tools}
    pending: list[Pending] = []
    for kept in state.open_intents:
        tool = known.get(kept.intent.tool_name)
        if kept.waits_for is not None:
            schema = tool.description.parameters if tool is not None else {}
            pending.append(_describe(session, kept, schema))
        for child in kept.children:
            below = reduce_records(log.read(child))
            if below.finished is not None and below.finished.outcome == "waiting":
                pending += list_pending(log, child, below, getattr(tool, "tools", ()))
    return tuple(pending)


def _describe(session: str, kept: IntentState, schema: dict[str, Any]) -> Pending:
    kind = kept.waits_for
    assert kind is not None
    name = kept.intent.tool_name
    question = f"What is the result of {name}?"
    if kind == "decision":
        reason = kept.asked.reason if kept.asked is not None else ""
        again = " again" if kept.started else ""
        question = f"May {name} run{again}?" + (f" {reason}" if reason else "")
    return Pending(
        kind=kind,
        intent_id=kept.intent.id,
        tool_name=name,
        input=kept.input,
        session=session,
        question=question,
        schema=schema,
        since=kept.since,
        side_effect=kept.side_effect or "execute",
        paths=kept.paths,
        rule=kept.asked.rule if kept.asked is not None else None,
        attempt=kept.asked.attempt if kept.asked is not None else 1,
    )


def describe_pending(pending: tuple[Pending, ...]) -> str:
    """Return what a session waits for as a phrase: ``waits for a decision about refund``."""
    decisions = [each.tool_name for each in pending if each.kind == "decision"]
    results = [each.tool_name for each in pending if each.kind == "result"]
    parts: list[str] = []
    if decisions:
        parts.append(f"a decision about {', '.join(decisions)}")
    if results:
        parts.append(f"the result of {', '.join(results)}")
    return f"waits for {' and '.join(parts)}"
