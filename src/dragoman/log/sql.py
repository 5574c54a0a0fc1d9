"""What the logs in SQLite and PostgreSQL share: the queries, and the versions of their tables.

The logs do not use ``open_database``: each commit is synced to the disk, each reader has a
snapshot on a connection of its own, leases end with their connection, and errors state what was
stored.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from .errors import LogVersionError
from .record import Row
from .view import LogChange

_PAGE = """
SELECT session, seq, id, turn, parent, type, actor, sensitivity, timestamp, {its.payload}, previous, hash
FROM {its.table} WHERE session = {its.session} AND seq > ? ORDER BY seq LIMIT ?"""
_SELECT = _PAGE.replace("ORDER BY", "AND type IN (SELECT {its.values}) ORDER BY")
_SEARCH = _PAGE.replace("ORDER BY", "AND payload {its.like} ? ORDER BY")
# A loose index scan: find the next greater name repeatedly, one step per session instead of per
# record.
_NAMES = """
WITH RECURSIVE names (name) AS (
    SELECT min(session) FROM {its.table}
    UNION ALL
    SELECT (SELECT min(session) FROM {its.table} WHERE session > name) FROM names WHERE name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL"""


class Dialect(NamedTuple):
    """The parts of the queries that differ between databases; ``?`` is a value's placeholder."""

    table: str
    session: str  # the name of a session
    payload: str  # the payload as bytes
    values: str  # the values of a JSON list
    like: str  # the operator that ignores the case of ASCII letters
    unindexed: str = ""  # count the records without the index


class SqlView(LogChange):
    """A snapshot of the stored records."""

    dialect: ClassVar[Dialect]

    @abstractmethod
    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run a query with ``?`` as the placeholder of a value; return its rows."""

    def bind(self, session: str) -> str | bytes:
        """Return the name of a session as the value of a query."""
        return session

    def names(self) -> list[str]:
        return [name for (name,) in self._ask(_NAMES)]

    def count(self) -> int:
        return int(self._ask("SELECT count(*) FROM {its.table} {its.unindexed}")[0][0])

    def length(self, session: str) -> int:
        rows = self._ask("SELECT max(seq) FROM {its.table} WHERE session = {its.session}", session)
        return rows[0][0] or 0

    def page(self, session: str, after: int, size: int) -> list[Row]:
        return self._ask(_PAGE, session, after, size)

    def select(self, session: str, types: Sequence[str], after: int, size: int) -> list[Row]:
        return self._ask(_SELECT, session, after, json.dumps(types), size)

    def search(self, session: str, text: str, after: int, size: int) -> list[Row]:
        return self._ask(_SEARCH, session, after, f"%{text}%", size)

    def _ask(self, statement: str, session: str | None = None, *values: Any) -> list[Any]:
        given = () if session is None else (self.bind(session), *values)
        return self.run(statement.format(its=self.dialect), given)


Migrations = Sequence[Sequence[str]]
"""Migration n upgrades a log from version n-1 to n, by SQL statements."""


def migrate(
    run: Callable[[str], object], table: str, migrations: Migrations, version: int
) -> None:
    """Upgrade a log from ``version`` to the newest one, and record each version in ``table``."""
    for number, statements in enumerate(migrations[version:], version + 1):
        for statement in statements:
            run(statement)
        run(f"INSERT INTO {table} VALUES ({number})")  # noqa: S608 - both are our own


def check_version(version: int, migrations: Migrations, place: str, *, readonly: bool) -> int:
    """Return the version of a log; raise an error if this package cannot use the log."""
    newest = len(migrations)
    if version > newest:
        raise LogVersionError(
            f"{place} has version {version}, but this package reads up to {newest}"
        )
    if readonly and version < newest:
        raise LogVersionError(
            f"{place} has an older version; open it for writing once to migrate it"
        )
    return version
