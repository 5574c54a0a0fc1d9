"""Write the records of the gateway's calls to an event log."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from datetime import timedelta

import msgspec
from msgspec.structs import replace

from ..calls import CallFailed, CallNote, CallStarted
from ..log import (
    EventLog,
    ForkedFrom,
    LogError,
    MessageRecorded,
    Payload,
    SessionFinished,
    SessionStarted,
)
from ..messages import Message, User, new_ulid
from ..middleware.attempts import CallEnd

log = logging.getLogger("dragoman")
_MAX_DEFINED = 10_000  # number of tool lists to remember, so that each is written only once
_DAY = 24 * 60 * 60
_MAX_RECORDS = 100_000  # of one session; after them the gateway begins the next one
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
    """Write the records of calls to an event log, as a chain of sessions of a gateway process.

    A session is removed as a whole, so a gateway begins a new one each day (UTC), and after
    ``_MAX_RECORDS``. Each names the last record of the one before it, whose hash covers all of it.
    With ``keep``, sessions that are older are removed then. A call of the playground is written
    to the session of its conversation. Records are written in the background; ``close`` waits
    for the pending ones. The conversation and error messages are written only with
    ``include_content``. With ``open_writer``, a file is open for writing only while records are
    written, so that other programs can write to it too; ``events`` is then only read.
    """

    def __init__(
        self,
        events: EventLog,
        *,
        include_content: bool = False,
        open_writer: Callable[[], EventLog] | None = None,
        keep: timedelta | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.include_content = include_content
        self.events = events
        self._open_writer = open_writer
        # a file has one writer at a time, and the turns of a conversation are written in order
        self._turn = asyncio.Lock()
        self._keep = keep
        self._clock = clock
        self._session: str | None = None
        self._day = 0  # when the session began, in days since 1970
        self._count = 0  # number of records that were given to the session
        self._opening: asyncio.Task[None] | None = None  # writes the start of the session
        self._defined: set[str] = set()  # the digests of tools that the session has
        self._recorded: dict[str, int] = {}  # number of messages of each conversation
        # the starts of sessions that could not be written; each precedes the next record
        self._unopened: dict[str, SessionStarted] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def put(
        self,
        records: Sequence[CallEnd],
        notes: Sequence[CallNote] = (),
        messages: Sequence[Message] = (),
        conversation: str = "",
        start: CallStarted | None = None,
    ) -> str:
        """Write the records of a call; with ``include_content``, write its messages too.

        Return the name of the session. The messages of a ``conversation`` are written once, and
        so are the definitions of equal tools in the ``start`` of calls without one.
        """
        request_id = records[-1].request_id
        self._change_session()
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
            *notes,
            *(records if self.include_content else hide_messages(records)),
        ]
        writing = self._write(session, payloads, request_id, recorded)
        if session == self._session:
            self._count += len(payloads)
            if self._opening is not None:
                writing = _follow(self._opening, writing)
        self._start(writing)
        return session

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start work that ``close`` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _change_session(self) -> None:
        """Begin the next session of the gateway if the present one is of another day, or full."""
        day = int(self._clock() // _DAY)
        earlier = self._session
        if earlier is not None and (day != self._day or self._count >= _MAX_RECORDS):
            self._session = f"gateway_{new_ulid()}"
            self._count = 0
            self._defined.clear()
            self._opening = self._start(self._succeed(earlier, self._session, [*self._tasks]))
        self._day = day

    async def _succeed(
        self, earlier: str, session: str, writing: Iterable[asyncio.Task[None]]
    ) -> None:
        """End a session after what is ``writing``, and begin the one that follows it."""
        for task in writing:
            await asyncio.wait([task])
        await self._finish(earlier)
        last = None
        try:
            last = await asyncio.to_thread(self._find_last, earlier)
        except LogError as error:
            log.warning("the end of the session %s could not be read: %s", earlier, error)
        await self._write(session, [SessionStarted(kind="gateway", follows=last)], None)
        if self._keep is None:
            return
        try:
            await asyncio.to_thread(self.events.retain, self._keep)
        except LogError as error:
            log.warning("old sessions of the log could not be removed: %s", error)

    def _find_last(self, session: str) -> ForkedFrom | None:
        """Return the last record of a session of the log; None if it has no records."""
        for entry in self.events.sessions():
            if entry.session == session:
                return ForkedFrom(session, entry.records, entry.head)
        return None

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
            await self._finish(session)

    async def _finish(self, session: str) -> None:
        """Record the end of a session, unless the log lacks its start, and so all of it."""
        if self._unopened.pop(session, None) is None:
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
                        await self._append(events, session, payload, turn)
                    except LogError as error:
                        self._forget(session, payload, recorded)
                        log.warning("a record of the call %s could not be logged: %s", turn, error)

    async def _append(
        self, events: EventLog, session: str, payload: Payload, turn: str | None
    ) -> None:
        """Append a record, after the start of its session if that could not be written before."""
        start = self._unopened.pop(session, None)
        if start is not None:
            try:
                await events.append(session, start)
            except LogError:
                self._unopened[session] = start
                raise
        await events.append(session, payload, turn=turn)

    def _forget(self, session: str, payload: Payload, recorded: int) -> None:
        """Undo what ``put`` has noted about a record that could not be written.

        The next call then writes it again. ``recorded`` is the number of messages that the
        conversation had before.
        """
        self._defined.clear()  # the log may lack definitions that were not written
        if isinstance(payload, SessionStarted):
            self._unopened[session] = payload
        elif isinstance(payload, MessageRecorded) and session in self._recorded:
            self._recorded[session] = min(self._recorded[session], recorded)


async def _follow(earlier: asyncio.Task[None], work: Coroutine[None, None, None]) -> None:
    """Do some work after a task has ended."""
    await asyncio.wait([earlier])
    await work
