"""The interface of a log, independent of how it is stored."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar, cast

from .chain import (
    ChainReport,
    Page,
    check_follows,
    check_log,
    check_session,
    found_nowhere,
    in_order,
)
from .errors import (
    InvalidRecordError,
    LogClosedError,
    LogConflictError,
    LogCorruptError,
    LogError,
    LogLockedError,
    LogReadOnlyError,
)
from .payloads import Actor, LogErased, LogPruned, Payload, Sensitivity
from .record import (
    ADMINISTRATION,
    Draft,
    LogRecord,
    Row,
    draft_record,
    find_texts,
    read_row,
)
from .removal import erase_records, list_erased, note_erased, prune_sessions
from .view import LogChange, LogView, SessionEntry, link_drafts, read_entry
from .writer import WriterThread

_PAGE = 500

_Log = TypeVar("_Log", bound="EventLog")
_Done = TypeVar("_Done")

Progress: TypeAlias = Callable[[int, int], object]
"""A progress callback. It receives the number of records processed so far, and the total number,
which may be an estimate."""


class EventLog(ABC):
    """An append-only log of sessions, each a chain of records.

    ``append`` returns when the record is on disk. Reading methods block briefly; call them in a
    thread (``asyncio.to_thread(log.verify)``) when the event loop must not wait. The log is
    thread-safe. Close it, or use ``with`` or ``async with``.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._writer: WriterThread | None = None
        self._closed = False
        self._held: dict[str, object] = {}

    # --- writing records ------------------------------------------------------------------------

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

        The payload's class determines the type; actor and sensitivity default to the catalogue's
        values. If the caller is cancelled, the event is still written. ``expected`` is the ``seq``
        of the session's last known record (0 for a new session). The check and the append are
        atomic; if another record was appended since, nothing is written and ``LogConflictError``
        is raised.
        """
        draft = _make_draft(
            session, payload, turn=turn, parent=parent, actor=actor, sensitivity=sensitivity,
            expected=expected
        )  # fmt: skip
        return cast("LogRecord", await hand_over(self._offer, draft))

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
        """Append an event as ``append`` does, but block until it is durable."""
        draft = _make_draft(
            session, payload, turn=turn, parent=parent, actor=actor, sensitivity=sensitivity,
            expected=expected
        )  # fmt: skip
        return cast("LogRecord", _wait(self._offer, draft))

    @asynccontextmanager
    async def hold(self, session: str, *, takeover: bool = False) -> AsyncIterator[None]:
        """Hold the lease of a session until the end of the block or of the process.

        Raise ``LogLockedError`` if the session runs elsewhere. With ``takeover`` the lease is
        taken anyway; the other runner notices at its next append with ``expected``. The lease
        keeps a second runner from starting; only ``expected`` guarantees that two runners cannot
        both write.
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
                # a log that was closed, or that lost its server, has no lease to release
                with suppress(LogError):
                    await self._lease(session, held=False)

    async def _lease(self, session: str, *, held: bool) -> bool:
        """Acquire or release the lease that other processes check; return whether it is held.

        A store that only one process can write to needs no lease.
        """
        return True

    def retain(self, older_than: timedelta | datetime) -> tuple[LogPruned, ...]:
        """Remove sessions whose last record is older than a given age or time; record the removal.

        The session ``"dragoman.log"`` gets one ``log.pruned`` record per removed session, with the
        last hash of its chain; that session itself is never removed.
        """
        before = (
            datetime.now(UTC) - older_than if isinstance(older_than, timedelta) else older_than
        )
        if before.tzinfo is None:
            raise InvalidRecordError("older_than: the time has no time zone")
        before = before.astimezone(UTC)
        work = partial(self._remove, partial(prune_sessions, before=before))
        return cast("tuple[LogPruned, ...]", _wait(self._offer, work))

    def erase(self, session: str, numbers: Iterable[int], *, reason: str = "") -> LogErased:
        """Erase the content of some records of a session, given by ``seq``, and record the erasure.

        Such a record keeps its place, time and hash, so the chain remains whole; ``verify``
        accepts it because ``"dragoman.log"`` has a ``log.erased`` record with its hash.
        """
        remove = partial(erase_records, session=session, numbers=frozenset(numbers), reason=reason)
        return cast("LogErased", _wait(self._offer, partial(self._remove, remove)))

    def restore(
        self, source: EventLog, session: str | None = None, *, progress: Progress | None = None
    ) -> int:
        """Import the records of another log or an export unchanged; return how many were new.

        Every chain is verified first. Records that exist in this log are skipped; a session whose
        records differ from those in this log is rejected. The other log's administrative records
        (``"dragoman.log"``) are not imported.
        """
        report = source.verify(session)
        if not report.ok:
            found = report.first or report.unreadable[0]
            raise LogCorruptError(f"a damaged log cannot be imported: {found}")
        names = [entry.session for entry in source.sessions() if session in (None, entry.session)]
        done = 0
        for name in [name for name in names if name != ADMINISTRATION]:
            present = _count_shared(self, source, name)
            records = source.read(name, present)
            while batch := list(islice(records, _PAGE)):
                _wait(self._offer, partial(restore_records, self, batch))
                done += len(batch)
                if progress is not None:
                    progress(done, max(report.records, done))
        return done

    def _write(self, drafts: Sequence[Draft]) -> Sequence[LogRecord | LogConflictError]:
        """Add drafts to the hash chains of their sessions, and store them in one transaction.

        A draft whose ``expected`` does not match is not stored and gets its error; the others are
        stored.
        """
        with self._change({draft.session for draft in drafts}) as change:
            return link_drafts(drafts, change)

    def _remove(self, remove: Callable[[LogChange], _Done]) -> _Done:
        """Remove records or their content, and record it, in one transaction."""
        with self._change(None) as change:
            return remove(change)

    def _offer(self, item: Draft | Callable[[], Any]) -> tuple[bool, Future[Any]]:
        if self._writer is None:
            raise LogReadOnlyError("this log was opened for reading only")
        if self._process != os.getpid():
            # A forked child process has this object but not its writer thread, and would wait
            # forever.
            raise LogClosedError(
                "this log was opened in another process; open it again after a fork"
            )
        return self._writer.offer(item)

    # --- reading records ------------------------------------------------------------------------

    def read(self, session: str, after: int = 0) -> Iterator[LogRecord]:
        """Yield the records of a session that follow the record ``after``, up to the current end.

        To follow a session, call again with the last ``seq`` you received.
        """
        after = max(after, 0)
        with self._view() as view:
            last = view.length(session)
        while after < last:
            # Read each page in its own view, so that a slow consumer does not keep a transaction
            # open.
            with self._view() as view:
                rows = view.page(session, after, min(_PAGE, last - after))
            yield from in_order(session, after, rows)
            after += len(rows)

    def sessions(self) -> tuple[SessionEntry, ...]:
        """Return all sessions, sorted by name."""
        with self._view() as view:
            return tuple(map(read_entry, view.ends()))

    def find(self, *types: str, session: str | None = None) -> Iterator[LogRecord]:
        """Yield the records of some types, in one or all sessions, sorted by session and ``seq``.

        This is faster than reading everything: ``log.find("llm.call_completed")``.
        """
        return _collect(
            self, session, lambda view, name, after: view.select(name, types, after, _PAGE)
        )

    def search(self, text: str, session: str | None = None) -> Iterator[LogRecord]:
        """Yield the records with a value that contains a string, ignoring case.

        Records are sorted by session and ``seq``. Field names, types and the data of attachments
        are not searched.
        """
        needle = text.casefold()
        # The store compares ASCII only and does not know JSON escapes (quotes, line breaks). It
        # therefore preselects by the longest plain part of the string, and every candidate is then
        # decoded and compared.
        part = max(re.findall("[A-Za-z0-9 ]+", text), key=len, default="")
        for record in _collect(
            self, session, lambda view, name, after: view.search(name, part, after, _PAGE)
        ):
            if any(needle in value.casefold() for value in find_texts(record.data)):
                yield record

    def verify(
        self,
        session: str | None = None,
        *,
        known: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> ChainReport:
        """Check every hash of one session, or of all, and report the first broken link of each.

        A chain alone cannot reveal that its end was cut off. ``known`` maps sessions to hashes
        that you stored earlier (``SessionEntry.head``); a session without its known hash is ``cut
        short``.
        """
        try:
            with self._view() as view:
                page = _counting(view, session, progress)
                erased = list_erased(view)
                if session is None:
                    return check_log(view.names, page, view.count, known or {}, erased)
                return check_session(session, page, (known or {}).get(session), erased)
        except LogCorruptError as error:
            return ChainReport(sessions=0, records=0, breaks=(found_nowhere(str(error)),))

    def export(
        self,
        target: str | Path | BinaryIO,
        session: str | None = None,
        *,
        progress: Progress | None = None,
    ) -> int:
        """Write records as JSON Lines, sorted by session and ``seq``; return their number.

        The same records give the same bytes. A file is written atomically.
        """
        if not isinstance(target, str | Path):
            return _write_lines(self, target, session, progress)
        path = Path(target)
        with tempfile.NamedTemporaryFile(
            "wb", dir=path.parent, prefix=path.name, delete=False
        ) as file:
            try:
                count = _write_lines(self, cast("BinaryIO", file), session, progress)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                Path(file.name).unlink()
                raise
        Path(file.name).replace(path)
        return count

    # --- closing the log ------------------------------------------------------------------------

    def close(self) -> None:
        """Write the queued records and release the log."""
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

    # --- methods that a store implements --------------------------------------------------------

    @abstractmethod
    def _change(self, sessions: set[str] | None) -> AbstractContextManager[LogChange]:
        """Open a transaction that appends to the given sessions, or that changes any session.

        This runs in the writer's thread.
        """

    @abstractmethod
    def _view(self) -> AbstractContextManager[LogView]:
        """Open a snapshot of the stored records; several threads may do so at once."""


def read_last(log: EventLog, session: str) -> LogRecord | None:
    """Return the last record of a session, or ``None`` if the log does not have the session."""
    with log._view() as view:
        rows = view.page(session, view.length(session) - 1, 1)
    return read_row(rows[0]) if rows else None


async def hand_over(offer: Callable[[Any], tuple[bool, Future[Any]]], item: Any) -> Any:
    """Offer an item to the writer until it is accepted; return the result."""
    while True:
        accepted, future = offer(item)
        result = await asyncio.wrap_future(future)
        if accepted:
            return result


def _wait(offer: Callable[[Any], tuple[bool, Future[Any]]], item: Any) -> Any:
    """Do the same as ``hand_over``, but block."""
    while True:
        accepted, future = offer(item)
        result = future.result()
        if accepted:
            return result


def _make_draft(session: str, payload: Payload, **facts: Any) -> Draft:
    draft = draft_record(session, payload, **facts)
    if draft.session == ADMINISTRATION:
        raise InvalidRecordError(f"session: only the log itself writes to {ADMINISTRATION!r}")
    return draft


def _collect(
    log: EventLog, session: str | None, select: Callable[[LogView, str, int], Sequence[Row]]
) -> Iterator[LogRecord]:
    """Yield the results of a query in one session or in all, page by page."""
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


def _count_shared(log: EventLog, source: EventLog, session: str) -> int:
    """Return how many records of a session two logs share; raise an error if they diverge."""
    with log._view() as view:
        present = view.length(session)
        rows = view.page(session, present - 1, 1) if present else ()
    if not present:
        return 0
    imported = next(source.read(session, present - 1), None)
    if imported is None or not rows or read_row(rows[0]).hash != imported.hash:
        where = f"diverges at record {present} or earlier"
        raise InvalidRecordError(
            f"session {session!r} {'is longer here' if imported is None else where}: it is "
            "another session, or was continued here"
        )
    return present


def restore_records(log: EventLog, records: Sequence[LogRecord]) -> None:
    """Store records that already have hashes, atomically, at the end of their session."""
    session = records[0].session
    with log._change({session, ADMINISTRATION}) as change:
        check_follows(records, change.heads({session}).get(session))
        change.insert(records)
        note_erased(change, records)


def _write_lines(
    log: EventLog, stream: BinaryIO, session: str | None, progress: Progress | None
) -> int:
    """Write records as JSON Lines; return the number of records."""
    count = 0
    with log._view() as view:
        page = _counting(view, session, progress)
        for name in view.names() if session is None else [session]:
            after = 0
            while rows := page(name, after, _PAGE):
                for record in in_order(name, after, rows):
                    stream.write(record.line + b"\n")
                after += len(rows)
            count += after
    return count


def _counting(view: LogView, session: str | None, progress: Progress | None) -> Page:
    """Return a function that reads a page of records and calls ``progress``, if it is given."""
    if progress is None:
        return view.page
    try:
        total = view.count() if session is None else view.length(session)
    except LogCorruptError:
        total = 0  # damaged data is reported later, when the pages are read
    done = 0

    def page(name: str, after: int, size: int) -> Sequence[Row]:
        nonlocal done
        rows = view.page(name, after, size)
        done += len(rows)
        progress(done, max(total, done))
        return rows

    return page


def _still_running(session: str) -> LogLockedError:
    return LogLockedError(
        f"session {session!r} is still running, in another process or task; stop that one first, "
        "or take the session over"
    )
