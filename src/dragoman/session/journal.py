"""Write a session's records: each before the action it describes, by one process at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from ..log import Actor, EventLog, LogRecord, Payload
from ..log.writer import finish_writing
from .state import State

log = logging.getLogger("dragoman")

Watcher: TypeAlias = Callable[[LogRecord], object]


class Journal:
    """Append to one session and keep its state in sync.

    Every append passes the ``seq`` of the last record that the state includes. If another process
    has continued the session, the append raises ``LogConflictError``. This stops the process
    before it runs a tool, because no tool runs before its ``tool.started`` is written.
    """

    def __init__(
        self, log: EventLog, session: str, state: State, watch: Watcher | None = None
    ) -> None:
        self.log = log
        self.session = session
        self.state = state
        self._watch = watch
        self.reported: set[tuple[str | None, ...]] = set()  # losses in the program's log
        self._turn = asyncio.Lock()  # concurrent tools write one after the other

    async def write(
        self,
        payload: Payload,
        *,
        parent: str | None = None,
        turn: str | None = None,
        actor: Actor | None = None,
    ) -> LogRecord:
        """Append a record and wait until it is durable.

        A cancellation does not end the wait, so that it is known whether the record was written.

        Without a ``parent``, the parent is the session's first record.
        """
        parent = parent or self.state.root
        return await finish_writing(self._append(payload, turn=turn, parent=parent, actor=actor))

    async def _append(self, payload: Payload, **facts: Any) -> LogRecord:
        async with self._turn:
            record = await self.log.append(
                self.session, payload, expected=self.state.last_seq, **facts
            )
            self.state.apply(record)
            if self._watch is not None:
                self.notify(self._watch, record)
        return record

    def notify(self, subscriber: Callable[[Any], object], news: object) -> None:
        """Call a subscriber with a record or an event; log the error if it fails."""
        try:
            subscriber(news)
        except Exception:
            log.warning("a subscriber of session %s failed", self.session, exc_info=True)
