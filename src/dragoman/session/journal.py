"""The session's hand on the log: nothing counts as done before it is written, and what is written counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from ..log import Actor, EventLog, LogRecord, Payload
from .state import State

log = logging.getLogger("dragoman")

Watcher: TypeAlias = Callable[[LogRecord], object]


class Journal:
    """Appends to one session and keeps its state in step."""

    def __init__(self, log: EventLog, session: str, state: State, watch: Watcher | None = None) -> None:
        self.log = log
        self.session = session
        self.state = state
        self._watch = watch

    async def write(
        self, payload: Payload, *, parent: str | None = None, turn: str | None = None, actor: Actor | None = None
    ) -> LogRecord:
        """Append and wait until it is durable. A cancellation waits too: a record half known would be worse.

        Without a ``parent``, the record follows from the start of the session.
        """
        parent = parent or self.state.root
        appending = asyncio.ensure_future(
            self.log.append(self.session, payload, turn=turn, parent=parent, actor=actor)
        )  # fmt: skip
        cancelled: asyncio.CancelledError | None = None
        while not appending.done():
            try:
                await asyncio.wait([appending])
            except asyncio.CancelledError as error:
                cancelled = error
        record = appending.result()
        self.state.apply(record)
        self._tell(record)
        if cancelled is not None:
            raise cancelled
        return record

    def _tell(self, record: LogRecord) -> None:
        if self._watch is None:
            return
        try:
            self._watch(record)
        except Exception:
            log.warning("a watcher of session %s failed", self.session, exc_info=True)
