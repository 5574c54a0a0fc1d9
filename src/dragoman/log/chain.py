"""Checking a chain: the first thing wrong in each session, named exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from .errors import LogCorruptError
from .record import Row, check_payload, genesis, hash_record, read_row

Problem: TypeAlias = Literal["hash mismatch", "gap", "wrong previous", "unreadable", "cut short"]

_PAGE = 500


class Break(Struct, frozen=True):
    """The first broken link of a session.

    ``id`` is the id of the record at fault, or of the one found in place of a missing record, or
    ``None`` when there is none to name. Damage that belongs to no session has ``session`` empty.
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


class ChainReport(Struct, frozen=True):
    """What ``verify`` found. One break per session: what follows a break proves nothing."""

    sessions: int
    records: int
    breaks: tuple[Break, ...] = ()

    @property
    def ok(self) -> bool:
        """Is every chain whole?"""
        return not self.breaks

    @property
    def first(self) -> Break | None:
        """The first break, if there is one."""
        return self.breaks[0] if self.breaks else None

    def __str__(self) -> str:
        records, sessions = "record" + "s" * (self.records != 1), "session" + "s" * (self.sessions != 1)
        counted = f"{self.records} {records} in {self.sessions} {sessions}"
        return "\n".join([f"{counted}: {'whole' if self.ok else 'BROKEN'}", *[str(found) for found in self.breaks]])


Page: TypeAlias = Callable[[str, int, int], Sequence[Row]]


def check_log(
    names: Callable[[], list[str]], page: Page, count: Callable[[], int], known: Mapping[str, str]
) -> ChainReport:
    """Walk every session's chain, and see that none of the stored records lies outside of them."""
    checks = [check_session(name, page, known.get(name)) for name in sorted({*names(), *known})]
    records = sum(held for held, _ in checks)
    breaks = [found for _, found in checks if found is not None]
    if not breaks and (total := count()) != records:
        # An index that lost its way to a chain's last record leaves a chain that looks whole.
        breaks = [found_nowhere(f"{total} records are stored and the sessions lead to {records}: the index is damaged")]
    return ChainReport(len(checks), records, tuple(breaks))


def found_nowhere(detail: str) -> Break:
    """Damage that belongs to no session."""
    return _found("", 0, None, "unreadable", detail)


def check_session(session: str, page: Page, known: str | None = None) -> tuple[int, Break | None]:
    """Walk a session's chain; return how many records hold, and the first that does not.

    ``known`` is a hash the chain had at some earlier time: a chain that was cut shorter than that
    is whole in itself, and only the hash tells.
    """
    count, previous, seen = 0, _genesis(session), known is None
    for row in _walk(session, page):
        if isinstance(row, LogCorruptError):
            return count, _found(session, count + 1, None, "unreadable", str(row))
        problem = _check(row, count + 1, previous)
        if problem is not None:
            return count, _found(session, count + 1, row[2], *problem)
        count, previous = count + 1, row[11].hex()
        seen = seen or previous == known
    if not seen:
        return count, _found(session, count + 1, None, "cut short", f"the known hash {known} is not in the chain")
    return count, None


def _genesis(session: str) -> str:
    """The genesis, also of a name whose bytes are damaged."""
    return genesis(_printable(session))


def _walk(session: str, page: Page) -> Iterator[Row | LogCorruptError]:
    """Yield rows in order, and at the end the error that stopped the reading, if one did."""
    after, size = 0, _PAGE
    while True:
        try:
            rows = page(session, after, size)
        except LogCorruptError as error:
            if size == 1:
                yield error
                return
            size = 1  # one damaged page of the file spoils a whole query: go on record by record up to it
            continue
        if not rows:
            return
        yield from rows
        last = rows[-1][1]
        if type(last) is not int or last <= after:
            return  # its seq is no number: the caller has seen that and stopped
        after = last


def _check(row: Row, expected: int, previous: str) -> tuple[Problem, str] | None:
    if row[1] != expected:
        return "gap", f"it is missing; the next one found is record {row[1]}"
    try:
        record = read_row(row)
        ought = hash_record(record)
    except (LogCorruptError, UnicodeError, TypeError, ValueError) as error:
        return "unreadable", str(error)
    if record.hash != ought:
        return "hash mismatch", "its content is not what was written"
    if record.previous != previous:
        return "wrong previous", f"it does not follow from record {expected - 1}: one of the two was replaced"
    try:
        check_payload(record.raw)
    except LogCorruptError as error:  # the hash is right, so the writer made it so: a payload that is not an object
        return "unreadable", str(error)
    return None


def _found(session: str, seq: int, identity: object, problem: Problem, detail: str) -> Break:
    name = identity if isinstance(identity, str) else None
    return Break(_printable(session), seq, _printable(name) if name else None, problem, _printable(detail))


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
