"""Write the records of the gateway's calls to an event log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from ..calls import CallFailed, RoutingSwitched
from ..log import EventLog, LogError, MessageRecorded, Payload, SessionFinished, SessionStarted
from ..messages import Message, new_ulid
from ..middleware.attempts import CallEnd

log = logging.getLogger("dragoman")


def hide_messages(records: Sequence[CallEnd]) -> list[CallEnd]:
    """Return the records without error messages, which may repeat parts of the conversation."""
    return [
        replace(record, error_message_redacted="(not logged)")
        if isinstance(record, CallFailed)
        else record
        for record in records
    ]


class CallLog:
    """Write the records of calls to an event log, as one session per run of a gateway process.

    Records are written in the background; ``close`` waits for the pending ones. The conversation
    and error messages are written only with ``include_content``.
    """

    def __init__(self, events: EventLog, *, include_content: bool = False) -> None:
        self.include_content = include_content
        self._log = events
        self._session: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def put(
        self,
        records: Sequence[CallEnd],
        switches: Sequence[RoutingSwitched] = (),
        messages: Sequence[Message] = (),
    ) -> None:
        """Write the records of a call; with ``include_content``, write its messages too."""
        request_id = records[-1].request_id
        shown = messages if self.include_content else ()
        payloads: list[Payload] = [
            *[MessageRecorded(message, request_id=request_id) for message in shown],
            *switches,
            *(records if self.include_content else hide_messages(records)),
        ]
        if self._session is None:
            self._session = f"gateway_{new_ulid()}"
            payloads.insert(0, SessionStarted(kind="gateway"))
        task = asyncio.get_running_loop().create_task(
            self._write(self._session, payloads, request_id)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait until all records are written, and record the end of the session."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        session, self._session = self._session, None
        if session is not None:
            await self._write(session, [SessionFinished("completed")], None)

    async def _write(self, session: str, payloads: Sequence[Payload], turn: str | None) -> None:
        for payload in payloads:
            try:
                await self._log.append(session, payload, turn=turn)
            except LogError as error:
                log.warning("a record of the call %s could not be logged: %s", turn, error)
