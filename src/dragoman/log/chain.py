"""Verify hash chains and find the first break of each session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from .errors import LogCorruptError, LogLockedError
from .payloads import RecordErased
from .record import Head, LogRecord, Row, check_payload, genesis, hash_record, read_row

Problem: TypeAlias = Literal["hash mismatch", "gap", "wrong previous", "unreadable", "cut short"]

_PAGE = 500


class Break(Struct, frozen=True, kw_only=True):
    """The first broken link of a session.

    ``id`` is the id of the invalid record, or of the record found in place of a missing one;
    ``None`` if there is neither. ``session`` is empty if the damaged data does not belong to any
    session.
    """

    session: str
    seq: int
    id: str | None
    problem: Problem
    detail: str

    def __str__(self) -> str:
        if not self.session:
            return f"{self.problem}: {self.detail}"
        name = f", {self.id}" if self.id else ""
        return f"session {self.session}, record {self.seq}{name}: {self.problem}: {self.detail}"


class ChainReport(Struct, frozen=True, kw_only=True):
    """The result of ``verify``, with at most one break per session.

    Records after a break cannot be verified. ``unreadable`` lists records whose hash is correct
    and whose payload cannot be read: they were written so, and were not changed since. ``erased``
    counts the records whose content was removed by ``EventLog.erase``.
    """

    sessions: int
    records: int
    breaks: tuple[Break, ...] = ()
    unreadable: tuple[Break, ...] = ()
    erased: int = 0

    @property
    def ok(self) -> bool:
        """Whether every chain is intact, and every record can be read."""
        return not self.breaks and not self.unreadable

    @property
    def first(self) -> Break | None:
        """The first break, or ``None`` if there is none."""
        return self.breaks[0] if self.breaks else None

    def __str__(self) -> str:
        records = "record" + "s" * (self.records != 1)
        sessions = "session" + "s" * (self.sessions != 1)
        state = "BROKEN" if self.breaks else "whole"
        if self.erased:
            state += f", with the content of {self.erased} erased"
        if self.unreadable:
            state += f", and {len(self.unreadable)} cannot be read although the hash is correct"
        counted = f"{self.records} {records} in {self.sessions} {sessions}: {state}"
        return "\n".join([counted, *map(str, self.breaks), *map(str, self.unreadable)])


Page: TypeAlias = Callable[[str, int, int], Sequence[Row]]


def check_log(
    names: Callable[[], list[str]],
    page: Page,
    count: Callable[[], int],
    known: Mapping[str, str],
    erased: Collection[tuple[str, int, str]] | None = None,
) -> ChainReport:
    """Verify every session's chain, and check that every stored record belongs to a chain."""
    # The name of a damaged record may be of another type; such a record is counted, not reached.
    stored = {name for name in names() if isinstance(name, str)}
    checks = [
        check_session(name, page, known.get(name), erased) for name in sorted({*stored, *known})
    ]
    records = sum([each.records for each in checks])
    breaks = [found for each in checks for found in each.breaks]
    unreadable = [found for each in checks for found in each.unreadable]
    if not breaks and (total := count()) != records:
        # If the index is damaged, the last records of a chain may be missing, and the rest of the
        # chain looks complete.
        breaks = [
            found_nowhere(
                f"{total} records are stored and only {records} are reachable by session: the "
                "index or the name of a session is damaged"
            )
        ]
    gone = sum([each.erased for each in checks])
    return ChainReport(
        sessions=len(checks),
        records=records,
        breaks=tuple(breaks),
        unreadable=tuple(unreadable),
        erased=gone,
    )


def found_nowhere(detail: str) -> Break:
    """Return a ``Break`` that reports damaged data which does not belong to any session."""
    return _found("", 0, None, "unreadable", detail)


def check_session(
    session: str,
    page: Page,
    known: str | None = None,
    erased: Collection[tuple[str, int, str]] | None = None,
) -> ChainReport:
    """Verify a session's chain; count its valid records, and report the first break.

    ``known`` is a hash that the chain contained earlier. If the end of a chain was cut off, the
    remaining chain is valid, and only the missing hash reveals the loss. ``erased`` are the
    records of all sessions whose content the log has removed; ``None`` if it has no account.
    """
    # the name of the session may be damaged, and then cannot be encoded
    count = 0
    previous = genesis(_printable(session))
    seen = known is None
    unreadable: list[Break] = []
    broken: Break | None = None
    gone = 0
    for row in _walk(session, page):
        if isinstance(row, LogCorruptError):
            broken = _found(session, count + 1, None, "unreadable", str(row))
            break
        problem = _check(row, count + 1, previous, erased)
        if problem is not None:
            broken = _found(session, count + 1, row[2], *problem)
            break
        count += 1
        previous = row[11].hex()
        seen = seen or previous == known
        gone += row[5] == RecordErased.type
        # The hash is correct, so the payload was invalid when it was written.
        if (reason := _find_unreadable(row)) is not None:
            unreadable.append(_found(session, count, row[2], "unreadable", reason))
    if broken is None and not seen:
        broken = _found(
            session, count + 1, None, "cut short", f"the known hash {known} is not in the chain"
        )
    breaks = () if broken is None else (broken,)
    return ChainReport(
        sessions=1 if count or breaks else 0,
        records=count,
        breaks=breaks,
        unreadable=tuple(unreadable),
        erased=gone,
    )


def _walk(session: str, page: Page) -> Iterator[Row | LogCorruptError]:
    """Yield a session's rows in order, then the error that stopped the reading, if any."""
    after = 0
    size = _PAGE
    while True:
        try:
            rows = page(session, after, size)
        except LogCorruptError as error:
            if size == 1:
                yield error
                return
            size = 1  # a damaged page makes the query fail, so read one record at a time up to it
            continue
        if not rows:
            return
        yield from rows
        last = rows[-1][1]
        if type(last) is not int or last <= after:
            return  # the record's seq is not a number, which the caller has already reported
        after = last


def _check(
    row: Row,
    expected: int,
    previous: str,
    erased: Collection[tuple[str, int, str]] | None,
) -> tuple[Problem, str] | None:
    if row[1] != expected:
        return "gap", f"it is missing; the next one found is record {row[1]}"
    try:
        record = read_row(row)
        ought = hash_record(record)
    except LogCorruptError as error:
        return "unreadable", str(error)
    place = (record.session, record.seq, record.hash)
    is_erased = record.type == RecordErased.type and (erased is None or place in erased)
    if record.hash != ought and not is_erased:
        return "hash mismatch", "its content is not what was written"
    if record.previous != previous:
        return (
            "wrong previous",
            f"it does not follow from record {expected - 1}: one of the two was replaced",
        )
    return None


def _find_unreadable(row: Row) -> str | None:
    """Return why the payload of a row cannot be read, or ``None`` if it can."""
    try:
        check_payload(read_row(row).raw)
    except LogCorruptError as error:
        return str(error)
    return None


def _found(session: str, seq: int, identity: object, problem: Problem, detail: str) -> Break:
    name = identity if isinstance(identity, str) else None
    return Break(
        session=_printable(session),
        seq=seq,
        id=_printable(name) if name else None,
        problem=problem,
        detail=_printable(detail),
    )


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def check_follows(records: Sequence[LogRecord], head: Head | None) -> None:
    """Reject imported records that do not follow the last record of the chain."""
    seq, previous = (head.seq, head.hash) if head is not None else (0, genesis(records[0].session))
    if (records[0].seq, records[0].previous) != (seq + 1, previous):
        raise LogLockedError(
            f"session {records[0].session!r} changed during the import; run the import again"
        )


def in_order(session: str, after: int, rows: Sequence[Row]) -> Iterator[LogRecord]:
    """Yield the records of the rows that follow record ``after``; raise an error at a gap."""
    for expected, record in enumerate(map(read_row, rows), after + 1):
        if record.seq != expected:
            raise _missing(session, expected)
        yield record
    if not rows:
        raise _missing(session, after + 1)


def _missing(session: str, seq: int) -> LogCorruptError:
    return LogCorruptError(
        f"session {session!r}: record {seq} is missing; pruned during the read, or damaged: run "
        "verify"
    )
