"""Write the records of the gateway's calls to an event log."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import msgspec
from msgspec.structs import replace

from ..calls import CallFailed, CallStarted, RoutingSwitched
from ..log import EventLog, LogError, MessageRecorded, Payload, SessionFinished, SessionStarted
from ..messages import Message, User, new_ulid
from ..middleware.attempts import CallEnd

log = logging.getLogger("dragoman")
_MAX_DEFINED = 10_000  # number of tool lists to remember, so that each is written only once
_GOAL = 2000  # maximum length of a conversation's title, which is the first question


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

    A call of the playground is written to the session of its conversation. Records are written in
    the background; ``close`` waits for the pending ones. The conversation and error messages are
    written only with ``include_content``. With ``open_writer``, a file is open for writing only
    while records are written, so that other programs can write to it too; ``events`` is then
    only read.
    """

    def __init__(
        self,
        events: EventLog,
        *,
        include_content: bool = False,
        open_writer: Callable[[], EventLog] | None = None,
    ) -> None:
        self.include_content = include_content
        self.events = events
        self._open_writer = open_writer
        # a file has one writer at a time, and the turns of a conversation are written in order
        self._turn = asyncio.Lock()
        self._session: str | None = None
        self._defined: set[str] = set()  # the digests of tools that the session has
        self._recorded: dict[str, int] = {}  # number of messages of each conversation
        self._tasks: set[asyncio.Task[None]] = set()

    def put(
        self,
        records: Sequence[CallEnd],
        switches: Sequence[RoutingSwitched] = (),
        messages: Sequence[Message] = (),
        conversation: str = "",
        start: CallStarted | None = None,
    ) -> str:
        """Write the records of a call; with ``include_content``, write its messages too.

        Return the name of the session. The messages of a ``conversation`` are written once, and
        so are the definitions of equal tools in the ``start`` of calls without one.
        """
        request_id = records[-1].request_id
        shown = messages if self.include_content else ()
        session, started = self._find_session(conversation, shown, records[-1])
        recorded = 0
        if conversation:
            recorded, self._recorded[conversation] = self._recorded[conversation], len(messages)
            shown = shown[recorded:]
        elif start is not None:
            started.append(self._define(start))
        payloads: list[Payload] = [
            *started,
            *[MessageRecorded(message=message, request_id=request_id) for message in shown],
            *switches,
            *(records if self.include_content else hide_messages(records)),
        ]
        task = asyncio.get_running_loop().create_task(
            self._write(session, payloads, request_id, recorded)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return session

    def _define(self, start: CallStarted) -> CallStarted:
        """Return a record with the digest of its tools, without definitions that the log has."""
        if not start.definitions:
            return start
        digest = hashlib.sha256(msgspec.json.encode(start.definitions)).hexdigest()
        if digest in self._defined:
            return replace(start, tools_digest=digest, definitions=())
        if len(self._defined) >= _MAX_DEFINED:
            self._defined.clear()
        self._defined.add(digest)
        return replace(start, tools_digest=digest)

    def has_conversation(self, session: str) -> bool:
        """Return whether a session is a conversation that this process has begun."""
        return session in self._recorded

    def _find_session(
        self, conversation: str, messages: Sequence[Message], record: CallEnd
    ) -> tuple[str, list[Payload]]:
        """Return the session for the records of a call, and the record of its start if it is new."""
        if not conversation:
            if self._session is not None:
                return self._session, []
            self._session = f"gateway_{new_ulid()}"
            return self._session, [SessionStarted(kind="gateway")]
        if conversation in self._recorded:
            return conversation, []
        self._recorded[conversation] = 0
        goal = next((each.text for each in messages if isinstance(each, User)), "")[:_GOAL]
        started = SessionStarted(
            goal=goal or None, model=record.model, provider=record.provider, kind="chat"
        )
        return conversation, [started]

    async def close(self) -> None:
        """Wait until all records are written, and record the end of the session."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        sessions = [*self._recorded]
        if self._session is not None:
            sessions.insert(0, self._session)
        self._session = None
        self._recorded = {}
        self._defined.clear()
        for session in sessions:
            await self._write(session, [SessionFinished("completed")], None)

    async def _write(
        self, session: str, payloads: Sequence[Payload], turn: str | None, recorded: int = 0
    ) -> None:
        write_to = self._open_writer
        is_alone = write_to is None and session not in self._recorded
        async with nullcontext() if is_alone else self._turn:
            try:
                opened = None if write_to is None else await asyncio.to_thread(write_to)
            except LogError as error:
                for payload in payloads:
                    self._forget(session, payload, recorded)
                log.warning("the call %s could not be logged: %s", turn, error)
                return
            with nullcontext(self.events) if opened is None else opened as events:
                for payload in payloads:
                    try:
                        await events.append(session, payload, turn=turn)
                    except LogError as error:
                        self._forget(session, payload, recorded)
                        log.warning("a record of the call %s could not be logged: %s", turn, error)

    def _forget(self, session: str, payload: Payload, recorded: int) -> None:
        """Undo what ``put`` has noted about a record that could not be written.

        The next call then writes it again. ``recorded`` is the number of messages that the
        conversation had before.
        """
        self._defined.clear()  # the log may lack definitions that were not written
        if isinstance(payload, SessionStarted):
            self._recorded.pop(session, None)
            if self._session == session:
                self._session = None
        elif isinstance(payload, MessageRecorded) and session in self._recorded:
            self._recorded[session] = min(self._recorded[session], recorded)
