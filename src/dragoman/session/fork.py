"""Fork a session: continue it as a new session, and leave the original unchanged."""

from __future__ import annotations

from itertools import takewhile

from msgspec.structs import replace

from ..log import Actor, EventLog, ForkedFrom, LogRecord, MessageRecorded, SessionStarted
from ..messages import User
from .outcome import SessionError
from .records import record_result
from .results import describe_end, describe_stop
from .state import State, reduce_records


async def write_fork(log: EventLog, session: str, at: int | None, name: str) -> None:
    """Begin a session with a copy of another session's conversation up to record ``at``.

    Messages are copied, and so are the records of which messages a context policy omits. Model
    calls and their costs are not copied, so that nothing is counted twice. A tool call that has no
    result yet gets one that describes what is known about it.
    """
    records = list(takewhile(lambda record: at is None or record.seq <= at, log.read(session)))
    if not records or (at is not None and records[-1].seq != at):
        raise SessionError(f"session {session!r} has no record {at}")
    if next(iter(log.read(name)), None) is not None:
        raise SessionError(f"there is a session {name!r} in this log already; choose another id")
    state = reduce_records(records)
    place = ForkedFrom(session, records[-1].seq, records[-1].hash)
    root = await log.append(name, _start(records, place), expected=0)
    written = root
    # Maps the number of each original record to the number of its copy.
    numbers: dict[int, int] = {}
    for seq, change, is_goal in state.conversation.list_changes():
        if isinstance(change, MessageRecorded):
            change = replace(
                change,
                request_id=None,
                usage=None,
                cost_usd=None,
                latency_ms=None,
                warnings=(),
                key=None,
            )
        else:
            known = [each for each in change.left_out if each.seq in numbers]
            change = replace(
                change, left_out=tuple([replace(each, seq=numbers[each.seq]) for each in known])
            )
        actor: Actor | None = "user" if is_goal else None
        if not is_goal and isinstance(getattr(change, "message", None), User):
            actor = "system"
        written = await log.append(name, change, parent=root.id, actor=actor, expected=written.seq)
        numbers[seq] = written.seq
    await _answer(log, name, state, root, written)


def _start(records: list[LogRecord], place: ForkedFrom) -> SessionStarted:
    first = records[0].payload
    if not isinstance(first, SessionStarted):
        raise SessionError(f"session {place.session!r} does not begin with session.started")
    return replace(first, forked_from=place, called_by=None)


async def _answer(
    log: EventLog, name: str, state: State, root: LogRecord, last: LogRecord
) -> None:
    """Add a tool result for every call that has none in the copied conversation."""
    for call, intent in state.unanswered():
        kept = state.intents.get(intent or "")
        content, is_error = describe_end(kept)
        if kept is not None and kept.is_open:
            why = "the session was forked before this came to an end"
            content = describe_stop(kept, why)
        result = record_result(call, intent, content, is_error=is_error)
        last = await log.append(name, result, parent=root.id, expected=last.seq)
