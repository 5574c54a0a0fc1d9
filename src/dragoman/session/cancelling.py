"""Cancel a session that no process runs, from its log alone."""

from __future__ import annotations

import asyncio

from .. import log as logs
from .closing import close_open
from .journal import Journal
from .outcome import SessionError
from .state import reduce_records


async def cancel_waiting(
    log: logs.EventLog, session: str, reason: str = "cancelled by the caller"
) -> bool:
    """End a session that waits, or that was interrupted; return ``False`` if it has ended.

    Its open calls are closed, and the model receives the reason if the session gets another goal.
    The sessions that its calls wait for are cancelled too. Raise ``LogLockedError`` if a process
    runs the session: cancel it there.
    """
    async with log.hold(session):
        state = await asyncio.to_thread(lambda: reduce_records(log.read(session)))
        if state.root is None:
            raise SessionError(f"there is no session {session!r} in this log")
        if state.finished is not None and state.finished.outcome != "waiting":
            return False
        children = [child for kept in state.open_intents for child in kept.children]
        for child in children:
            await cancel_waiting(log, child, reason)
        journal = Journal(log, session, state)
        await close_open(journal, reason)
        await journal.write(logs.SessionFinished("cancelled", reason, state.spent.turns))
    return True
