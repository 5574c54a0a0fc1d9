"""The stored records as a log reads and changes them, independent of the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import Struct

from .errors import LogConflictError
from .record import Draft, Head, LogRecord, Row, link_record, read_row

_PAGE = 500


class SessionEntry(Struct, frozen=True, kw_only=True):
    """A session in the log: its length, the times of its first and last record, its last hash."""

    session: str
    records: int
    first_id: str
    last_id: str
    started: datetime
    updated: datetime
    head: str


class LogView(ABC):
    """A consistent snapshot of the stored records; a database answers queries by itself."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all sessions, sorted."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of records; count them without the index, which may be damaged."""

    @abstractmethod
    def length(self, session: str) -> int:
        """Return the highest ``seq`` of a session; 0 if it has no records."""

    @abstractmethod
    def page(self, session: str, after: int, size: int) -> Sequence[Row]:
        """Return at most ``size`` rows of a session after the record ``after``, in order."""

    def select(self, session: str, types: Sequence[str], after: int, size: int) -> Sequence[Row]:
        """Return at most ``size`` rows of the given types after the record ``after``, in order."""
        return self._filter(session, after, size, lambda row: row[5] in types)

    def search(self, session: str, text: str, after: int, size: int) -> Sequence[Row]:
        """Return at most ``size`` rows after the record ``after`` whose payload contains a string.

        The rows are in order, and case is ignored. The string consists of ASCII letters, digits
        and spaces.
        """
        needle = text.lower().encode()
        return self._filter(session, after, size, lambda row: needle in row[9].lower())

    def _filter(
        self, session: str, after: int, size: int, fits: Callable[[Row], bool]
    ) -> Sequence[Row]:
        found: list[Row] = []
        while len(found) < size and (rows := self.page(session, after, _PAGE)):
            found += [row for row in rows if fits(row)]
            after = rows[-1][1]
        return found[:size]

    @abstractmethod
    def ends(self) -> list[tuple[Row, Row]]:
        """Return the first and the last row of each session, sorted by session name.

        The payloads of the rows may be left empty.
        """


class LogChange(LogView):
    """A transaction that changes the stored records."""

    @abstractmethod
    def heads(self, sessions: set[str]) -> dict[str, Head]:
        """Return the last record of each of the sessions that has records."""

    @abstractmethod
    def insert(self, records: Sequence[LogRecord]) -> None:
        """Store records at the ends of their sessions."""

    @abstractmethod
    def replace(self, rows: Sequence[Row]) -> None:
        """Replace the types and payloads of stored records by those of some rows."""

    @abstractmethod
    def delete(self, sessions: Sequence[str]) -> None:
        """Remove all records of some sessions."""


def link_drafts(drafts: Sequence[Draft], change: LogChange) -> list[LogRecord | LogConflictError]:
    """Append drafts to the hash chains of their sessions, in order.

    A draft that expects another last record gets an error instead of a record.
    """
    heads = change.heads({draft.session for draft in drafts})
    linked: list[LogRecord | LogConflictError] = []
    for draft in drafts:
        head = heads.get(draft.session)
        last = head.seq if head is not None else 0
        if draft.expected is not None and draft.expected != last:
            problem = (
                f"session {draft.session!r}: {draft.type} was to follow record {draft.expected}, "
                f"but the session ends at record {last}: it was continued elsewhere. Nothing was "
                "written; resume the session to continue it"
            )
            linked.append(LogConflictError(problem))
            continue
        record = link_record(draft, head)
        heads[draft.session] = Head(record.seq, record.hash)
        linked.append(record)
    change.insert([record for record in linked if isinstance(record, LogRecord)])
    return linked


def read_entry(ends: tuple[Row, Row]) -> SessionEntry:
    """Return the entry of a session, given its first and last row."""
    first, last = map(read_row, ends)
    return SessionEntry(
        session=last.session,
        records=last.seq,
        first_id=first.id,
        last_id=last.id,
        started=first.timestamp,
        updated=last.timestamp,
        head=last.hash,
    )
