"""Close what is open when a session stops: model calls, intents and unanswered tool calls."""

from __future__ import annotations

from ..log import ToolIntentClosed
from .journal import Journal
from .records import end_lost_call, record_result
from .results import describe_end


async def close_open(
    journal: Journal, reason: str, *, keep: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Close the open model call and the open intents, and return the ids of these intents.

    Calls without a result get a tool result that explains why. The intents in ``keep`` stay open,
    and then no call of their reply gets its result yet.
    """
    await _close_call(journal, reason)
    closed = await close_intents(journal, reason, keep=keep)
    if keep:
        return closed
    await answer_calls(journal)
    return closed


async def close_intents(
    journal: Journal, reason: str, *, keep: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Record that the open intents will not run, except ``keep``, and return their ids."""
    found = [kept for kept in journal.state.open_intents if kept.intent.id not in keep]
    for kept in found:
        closed = ToolIntentClosed(kept.intent.id, reason, kept.intent.tool_name, kept.started)
        await journal.write(closed, parent=kept.record, turn=kept.turn)
    return tuple([kept.intent.id for kept in found])


async def answer_calls(journal: Journal, problem: str | None = None) -> None:
    """Add a tool result to the conversation for every call of the last reply, in order.

    A call whose intent is still open gets no result yet. ``problem`` is the text of the result
    for calls that never became intents.
    """
    state = journal.state
    for call, intent_id in state.unanswered():
        kept = state.intents.get(intent_id or "")
        if kept is not None and kept.is_open:
            continue
        content, is_error = (
            describe_end(kept) if kept is not None or problem is None else (problem, True)
        )
        result = record_result(call, intent_id, content, is_error=is_error)
        await journal.write(result, parent=kept.record if kept else None, turn=state.turn)


async def _close_call(journal: Journal, reason: str) -> None:
    """Record what is known about a call that was interrupted when the session stopped."""
    call = journal.state.call
    if call is None:
        return
    end = end_lost_call(call.started, call.reply, f"its end was not recorded: {reason}")
    await journal.write(end, parent=call.record, turn=call.turn)
