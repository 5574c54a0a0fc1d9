"""The log as its users see it, whatever stores it."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias, TypeVar, cast

from msgspec import Struct

from .chain import ChainReport, Page, check_log, check_session, found_nowhere
from .errors import (
    InvalidRecordError,
    LogClosedError,
    LogConflictError,
    LogCorruptError,
    LogError,
    LogLockedError,
    LogReadOnlyError,
)
from .payloads import Actor, LogPruned, Payload, Sensitivity
from .record import ADMINISTRATION, Draft, Head, LogRecord, Row, draft_record, genesis, link_record, read_row
from .writer import Writer

_PAGE = 500

_Log = TypeVar("_Log", bound="EventLog")

Progress: TypeAlias = Callable[[int, int], object]
"""Told now and then how many records of how many are done; the second number may be a guess."""


class SessionEntry(Struct, frozen=True):
    """A session in the log: its length, its first and last moment, and the hash its chain ends in."""

    session: str
    records: int
    first_id: str
    last_id: str
    started: datetime
    updated: datetime
    head: str


class LogView(Protocol):
    """What a store shows of itself at one moment, however long one looks."""

    def names(self) -> list[str]:
        """Every session's name, sorted."""
        ...

    def count(self) -> int:
        """How many records there are, found without the index the other methods go by."""
        ...

    def length(self, session: str) -> int:
        """The highest ``seq`` of a session; 0 when it has none."""
        ...

    def page(self, session: str, after: int, size: int) -> Sequence[Row]:
        """The next rows of a session, in order."""
        ...

    def select(self, session: str, types: Sequence[str], after: int, size: int) -> Sequence[Row]:
        """The next rows of a session that are of one of these types, in order."""
        ...

    def search(self, session: str, text: str, after: int, size: int) -> Sequence[Row]:
        """The next rows of a session whose payload contains a text, in any case of its letters, in order.

        The text consists of ASCII letters, digits and spaces.
        """
        ...

    def ends(self) -> list[tuple[Row, Row]]:
        """The first and last row of every session, sorted by name, without their payloads."""
        ...


class EventLog(ABC):
    """An append-only log of sessions, each a chain of records.

    ``append`` returns when the record is on disk. Everything that reads blocks, briefly: hand it to
    a thread (``asyncio.to_thread(log.verify)``) when an event loop must not wait. Safe to use from
    any number of threads and tasks; close it, or use ``with`` or ``async with``.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._writer: Writer | None = None
        self._closed = False
        self._held: dict[str, object] = {}

    # --- writing ------------------------------------------------------------------------------------

    async def append(
        self,
        session: str,
        payload: Payload,
        *,
        turn: str | None = None,
        parent: str | None = None,
        actor: Actor | None = None,
        sensitivity: Sensitivity | None = None,
        expected: int | None = None,
    ) -> LogRecord:
        """Write one event and return its record once it is durable.

        The payload's class decides the type; actor and sensitivity default to what the catalogue
        says of it. Cancelling stops the waiting, not the writing. With ``expected``, the ``seq`` of
        the session's last record as you know it (0 for a new session), the append is atomic with the
        check that this is still so; if not, nothing is written and ``LogConflictError`` is raised.
        """
        draft = _make_draft(
            session, payload, turn=turn, parent=parent, actor=actor, sensitivity=sensitivity, expected=expected
        )  # fmt: skip
        while True:
            accepted, future = self._offer(draft)
            result = await asyncio.wrap_future(future)
            if accepted:
                return cast("LogRecord", result)

    def append_sync(
        self,
        session: str,
        payload: Payload,
        *,
        turn: str | None = None,
        parent: str | None = None,
        actor: Actor | None = None,
        sensitivity: Sensitivity | None = None,
        expected: int | None = None,
    ) -> LogRecord:
        """Do what ``append`` does, and block until it is done."""
        draft = _make_draft(
            session, payload, turn=turn, parent=parent, actor=actor, sensitivity=sensitivity, expected=expected
        )  # fmt: skip
        return cast("LogRecord", self._wait(draft))

    @asynccontextmanager
    async def hold(self, session: str, *, takeover: bool = False) -> AsyncIterator[None]:
        """Hold the lease of a session while it runs; it ends with the block, or with the process.

        ``LogLockedError`` if the session runs elsewhere. With ``takeover`` the session is held all the
        same; the other runner notices at its next append with ``expected``. The lease prevents two
        runners from starting; that they cannot both write is guaranteed by ``expected`` alone.
        """
        token = object()
        if takeover:
            self._held[session] = token
        elif self._held.setdefault(session, token) is not token:
            raise _still_running(session)
        try:
            if not await self._lease(session, held=True) and not takeover:
                raise _still_running(session)
            yield
        finally:
            if self._held.get(session) is token:
                del self._held[session]
                with suppress(LogError):  # a log that was closed, or lost its server, holds nothing any more
                    await self._lease(session, held=False)

    async def _lease(self, session: str, *, held: bool) -> bool:
        """Take or give back the lease where other processes see it; return whether it could be taken.

        A store that only one process can write to has no need to.
        """
        return True

    def retain(self, older_than: timedelta | datetime) -> tuple[LogPruned, ...]:
        """Remove every session whose last record is older than that, whole, and record the removal.

        What was removed is named in the session ``"dragoman.log"``, one ``log.pruned`` per session
        with the hash its chain ended in; that session itself is never removed.
        """
        before = datetime.now(UTC) - older_than if isinstance(older_than, timedelta) else older_than
        if before.tzinfo is None:
            raise InvalidRecordError("older_than: the time has no time zone")
        before = before.astimezone(UTC)
        return cast("tuple[LogPruned, ...]", self._wait(lambda: self._prune(before)))

    def restore(self, source: EventLog, session: str | None = None, *, progress: Progress | None = None) -> int:
        """Take over the records of another log, or of an export, as they are; return how many were new.

        Every chain is verified first. What is here already is passed over, and a session that went on
        differently here is refused. The other log's own records (``"dragoman.log"``) stay there.
        """
        report = source.verify(session)
        if report.first is not None:
            raise LogCorruptError(f"nothing is taken over from a log that is not whole: {report.first}")
        names = [entry.session for entry in source.sessions() if session in (None, entry.session)]
        done = 0
        for name in [name for name in names if name != ADMINISTRATION]:
            present = _count_shared(self, source, name)
            records = source.read(name, present)
            while batch := list(islice(records, _PAGE)):
                self._wait(partial(self._restore, batch))
                done += len(batch)
                if progress is not None:
                    progress(done, max(report.records, done))
        return done

    def _offer(self, item: Draft | Callable[[], Any]) -> tuple[bool, Future[Any]]:
        if self._writer is None:
            raise LogReadOnlyError("this log was opened for reading only")
        if self._process != os.getpid():
            # A forked child has the object and not the thread: it would wait for ever.
            raise LogClosedError("this log was opened in another process; open it again after a fork")
        return self._writer.offer(item)

    def _wait(self, item: Draft | Callable[[], Any]) -> Any:
        while True:
            accepted, future = self._offer(item)
            result = future.result()
            if accepted:
                return result

    # --- reading ------------------------------------------------------------------------------------

    def read(self, session: str, after: int = 0) -> Iterator[LogRecord]:
        """Yield a session's records in order, from ``after`` on, as far as they go now.

        To follow a session, call again with the last ``seq`` you saw.
        """
        after = max(after, 0)
        with self._view() as view:
            last = view.length(session)
        while after < last:
            # Each page is a view of its own: a slow consumer holds nothing open meanwhile.
            with self._view() as view:
                rows = view.page(session, after, min(_PAGE, last - after))
            yield from _in_order(session, after, rows)
            after += len(rows)

    def sessions(self) -> tuple[SessionEntry, ...]:
        """Every session, sorted by name."""
        with self._view() as view:
            ends = view.ends()
        return tuple([_entry(read_row(first), read_row(last)) for first, last in ends])

    def find(self, *types: str, session: str | None = None) -> Iterator[LogRecord]:
        """Yield the records of these types, of one session or of all, sorted by session and ``seq``.

        Quicker than reading everything when you want a few kinds of it: ``log.find("llm.call_completed")``.
        """
        return _collect(self, session, lambda view, name, after: view.select(name, types, after, _PAGE))

    def search(self, text: str, session: str | None = None) -> Iterator[LogRecord]:
        """Yield the records that hold a text in one of their values, in any case of its letters.

        The order is by session and ``seq``. Names of fields, types and the data of attachments do not count.
        """
        needle = text.casefold()
        # The store compares ASCII alone, and knows nothing of how JSON escapes quotes or line breaks: it
        # preselects by the longest plain part of the text, and every record it finds is then decoded.
        part = max(re.findall("[A-Za-z0-9 ]+", text), key=len, default="")
        for record in _collect(self, session, lambda view, name, after: view.search(name, part, after, _PAGE)):
            if any(needle in value.casefold() for value in find_texts(record.data)):
                yield record

    def verify(
        self, session: str | None = None, *, known: Mapping[str, str] | None = None, progress: Progress | None = None
    ) -> ChainReport:
        """Check every hash of one session, or of all, and name the first broken link of each.

        A chain cannot show that its own end was cut off. ``known`` maps sessions to hashes you
        noted earlier (``SessionEntry.head``); a session that no longer has its hash is ``cut short``.
        """
        try:
            with self._view() as view:
                page = _counting(view, session, progress)
                if session is None:
                    return check_log(view.names, page, view.count, known or {})
                count, found = check_session(session, page, (known or {}).get(session))
                return ChainReport(1 if count or found else 0, count, (found,) if found else ())
        except LogCorruptError as error:
            return ChainReport(0, 0, (found_nowhere(str(error)),))

    def export(
        self, target: str | Path | BinaryIO, session: str | None = None, *, progress: Progress | None = None
    ) -> int:
        """Write records as lines of JSON, sorted by session and ``seq``; return how many.

        The same records give the same bytes. A file appears whole or not at all.
        """
        if not isinstance(target, str | Path):
            return _write_lines(self, target, session, progress)
        path = Path(target)
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=path.name, delete=False) as file:
            try:
                count = _write_lines(self, cast("BinaryIO", file), session, progress)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                Path(file.name).unlink()
                raise
        Path(file.name).replace(path)
        return count

    # --- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is still queued and let the log go."""
        self._closed = True
        if self._writer is not None and self._process == os.getpid():
            self._writer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosedError("the log is closed")

    def __enter__(self: _Log) -> _Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self: _Log) -> _Log:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # --- what a store provides ----------------------------------------------------------------------

    @abstractmethod
    def _write(self, drafts: Sequence[Draft]) -> Sequence[LogRecord | LogConflictError]:
        """Link and store a group in one transaction. Runs in the writer's thread.

        A draft whose expectation fails is not stored and gets its error; the others are stored.
        """

    @abstractmethod
    def _restore(self, records: Sequence[LogRecord]) -> None:
        """Store records of one session that are linked already, after its last; whole or not at all."""

    @abstractmethod
    def _prune(self, before: datetime) -> tuple[LogPruned, ...]:
        """Remove old sessions and record it, in one transaction. Runs in the writer's thread."""

    @abstractmethod
    def _view(self) -> AbstractContextManager[LogView]:
        """Look at what is stored; any number of threads may at once."""


def _make_draft(session: str, payload: Payload, **facts: Any) -> Draft:
    draft = draft_record(session, payload, **facts)
    if draft.session == ADMINISTRATION:
        raise InvalidRecordError(f"session: only the log itself writes to {ADMINISTRATION!r}")
    return draft


def _collect(
    log: EventLog, session: str | None, select: Callable[[LogView, str, int], Sequence[Row]]
) -> Iterator[LogRecord]:
    """Yield what a query finds in one session or in all, page by page."""
    with log._view() as view:
        names = view.names() if session is None else [session]
    for name in names:
        after = 0
        while True:
            with log._view() as view:
                rows = select(view, name, after)
            yield from map(read_row, rows)
            if len(rows) < _PAGE:
                break
            after = rows[-1][1]


_NOT_TEXT = ("type", "role", "base64_data")


def find_texts(value: Any) -> Iterator[str]:
    """Yield the texts of a payload: its values, without types, roles and the data of attachments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _NOT_TEXT or not isinstance(item, str):
                yield from find_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from find_texts(item)


def _count_shared(log: EventLog, source: EventLog, session: str) -> int:
    """Return how many records of a session both logs hold; refuse a session that differs."""
    with log._view() as view:
        present = view.length(session)
        rows = view.page(session, present - 1, 1) if present else ()
    if not present:
        return 0
    theirs = next(source.read(session, present - 1), None)
    if theirs is None or not rows or read_row(rows[0]).hash != theirs.hash:
        longer = "is longer here" if theirs is None else f"differs from record {present} on, or before"
        raise InvalidRecordError(f"session {session!r} {longer}: it is not the same session, or went on here")
    return present


def _write_lines(log: EventLog, stream: BinaryIO, session: str | None, progress: Progress | None) -> int:
    """Write records as lines; return how many."""
    count = 0
    with log._view() as view:
        page = _counting(view, session, progress)
        for name in view.names() if session is None else [session]:
            after = 0
            while rows := page(name, after, _PAGE):
                for record in _in_order(name, after, rows):
                    stream.write(record.line + b"\n")
                after += len(rows)
            count += after
    return count


def _counting(view: LogView, session: str | None, progress: Progress | None) -> Page:
    """How the view is read page by page: as it is, or telling each time how far it has come."""
    if progress is None:
        return view.page
    try:
        total = view.count() if session is None else view.length(session)
    except LogCorruptError:
        total = 0  # what is wrong will be found on the way
    done = 0

    def page(name: str, after: int, size: int) -> Sequence[Row]:
        nonlocal done
        rows = view.page(name, after, size)
        done += len(rows)
        progress(done, max(total, done))
        return rows

    return page


def link_group(drafts: Sequence[Draft], heads: dict[str, Head]) -> list[LogRecord | LogConflictError]:
    """Link drafts onto their sessions' heads, in order; ``heads`` moves along.

    A draft that expects another head than there is gets an error in place of a record.
    """
    linked: list[LogRecord | LogConflictError] = []
    for draft in drafts:
        head = heads.get(draft.session)
        last = head.seq if head is not None else 0
        if draft.expected is not None and draft.expected != last:
            linked.append(_conflict(draft, last))
            continue
        record = link_record(draft, head)
        heads[draft.session] = Head(record.seq, record.hash)
        linked.append(record)
    return linked


def only_records(linked: Sequence[LogRecord | LogConflictError]) -> list[LogRecord]:
    """Return what ``link_group`` could link."""
    return [record for record in linked if isinstance(record, LogRecord)]


def _conflict(draft: Draft, last: int) -> LogConflictError:
    return LogConflictError(
        f"session {draft.session!r}: {draft.type} was to follow record {draft.expected}, and the session ends at"
        f" record {last}: it was continued elsewhere. Nothing was written; resume the session to go on with it"
    )


def _still_running(session: str) -> LogLockedError:
    return LogLockedError(
        f"session {session!r} is still running, in another process or task; stop that one first, or take the"
        " session over"
    )


def _entry(first: LogRecord, last: LogRecord) -> SessionEntry:
    return SessionEntry(last.session, last.seq, first.id, last.id, first.timestamp, last.timestamp, last.hash)


def select_old(ends: Sequence[tuple[Row, Row]], before: datetime) -> list[LogPruned]:
    """Say which sessions ended before a time, as they will be recorded once they are gone."""
    entries = [_entry(read_row(first), read_row(last)) for first, last in ends]
    return [
        LogPruned(entry.session, entry.records, entry.first_id, entry.last_id, entry.head, before)
        for entry in entries
        if entry.updated < before and entry.session != ADMINISTRATION
    ]


def check_follows(records: Sequence[LogRecord], head: Head | None) -> None:
    """Refuse linked records that do not follow from where the chain ends now."""
    seq, previous = (head.seq, head.hash) if head is not None else (0, genesis(records[0].session))
    if (records[0].seq, records[0].previous) != (seq + 1, previous):
        raise LogLockedError(f"session {records[0].session!r} was written to meanwhile; take it over again")


def _in_order(session: str, after: int, rows: Sequence[Row]) -> Iterator[LogRecord]:
    """The records of the rows that follow ``after``, and an error where one is missing."""
    for expected, record in enumerate(map(read_row, rows), after + 1):
        if record.seq != expected:
            raise _missing(session, expected)
        yield record
    if not rows:
        raise _missing(session, after + 1)


def _missing(session: str, seq: int) -> LogCorruptError:
    return LogCorruptError(f"session {session!r}: record {seq} is missing; it was pruned meanwhile, or see verify()")
