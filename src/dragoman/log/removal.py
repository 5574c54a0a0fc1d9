"""Remove old sessions, and erase the content of records; the log records what was removed.

The row of an erased record keeps its hash and all that is not content. Its hash can then no longer
be computed from it: the ``log.erased`` record in the session ``dragoman.log`` vouches for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TypeAlias

import msgspec

from .errors import InvalidRecordError, LogCorruptError
from .payloads import LogErased, LogPruned, RecordErased, encode_payload
from .record import ADMINISTRATION, LogRecord, Row, draft_record, hash_record, read_row
from .view import LogChange, LogView, link_drafts, read_entry

_PAGE = 500
_LARGEST = 2**62  # number of a record

Erased: TypeAlias = frozenset[tuple[str, int, str]]
"""The session, number and hash of each erased record."""


def prune_sessions(change: LogChange, before: datetime) -> tuple[LogPruned, ...]:
    """Remove the sessions that ended before a time."""
    pruned = _select_old(change.ends(), before)
    change.delete([gone.session for gone in pruned])
    link_drafts([draft_record(ADMINISTRATION, gone) for gone in pruned], change)
    return tuple(pruned)


def _select_old(ends: Sequence[tuple[Row, Row]], before: datetime) -> list[LogPruned]:
    """Return a ``log.pruned`` record for each session that ended before a time."""
    return [
        LogPruned(
            session=entry.session,
            records=entry.records,
            first_id=entry.first_id,
            last_id=entry.last_id,
            head=entry.head,
            before=before,
        )
        for entry in map(read_entry, ends)
        if entry.updated < before and entry.session != ADMINISTRATION
    ]


def erase_records(
    change: LogChange, session: str, numbers: Collection[int], reason: str
) -> LogErased:
    """Erase the content of records of a session; those that are erased already stay so."""
    if session == ADMINISTRATION:
        raise InvalidRecordError(f"session: the records of {ADMINISTRATION!r} cannot be erased")
    wanted = sorted(numbers)
    # a number that no database holds would stop the writer
    asked = [number for number in wanted if 0 < number <= _LARGEST]
    rows = [row for number in asked for row in change.page(session, number - 1, 1)]
    if [row[1] for row in rows] != wanted:
        found = {row[1] for row in rows}
        absent = next(number for number in wanted if number not in found)
        raise InvalidRecordError(f"session {session!r} has no record {absent}")
    kept = [row for row in rows if row[5] != RecordErased.type]
    change.replace([_empty(row) for row in kept])
    done = LogErased(
        session=session,
        numbers=tuple([row[1] for row in kept]),
        hashes=tuple([row[11].hex() for row in kept]),
        reason=reason,
    )
    if kept:
        link_drafts([draft_record(ADMINISTRATION, done)], change)
    return done


def note_erased(change: LogChange, records: Sequence[LogRecord]) -> None:
    """Record which imported records of a session were erased in the log that they come from."""
    gone = [record for record in records if record.type == RecordErased.type]
    if gone:
        done = LogErased(
            session=gone[0].session,
            numbers=tuple([record.seq for record in gone]),
            hashes=tuple([record.hash for record in gone]),
            reason="imported",
        )
        link_drafts([draft_record(ADMINISTRATION, done)], change)


def _empty(row: Row) -> Row:
    """Return a row without its content."""
    entry, payload = encode_payload(RecordErased(was=row[5]))
    return (*row[:5], entry.type, *row[6:9], payload, *row[10:])


def list_erased(view: LogView) -> Erased | None:
    """Return the records that were erased by the account of the log; ``None`` for a log that keeps no account.

    An export of one session has no account.
    """
    found: set[tuple[str, int, str]] = set()
    after = 0
    while rows := view.page(ADMINISTRATION, after, _PAGE):
        for row in rows:
            if row[5] == LogErased.type:
                found |= _read_erased(row)
        after += len(rows)
    return frozenset(found) if after else None


def _read_erased(row: Row) -> set[tuple[str, int, str]]:
    """Return the records that a record of the log names, if its own hash is correct."""
    try:
        record = read_row(row)
        if record.hash != hash_record(record):
            return set()
        erased = msgspec.json.decode(record.raw, type=LogErased)
    except (LogCorruptError, msgspec.DecodeError):
        return set()  # the chain of that session is checked as well, and reports why
    places = zip(erased.numbers, erased.hashes, strict=False)
    return {(erased.session, number, digest) for number, digest in places}
