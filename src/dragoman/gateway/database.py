"""The gateway's SQL database: a SQLite file, or PostgreSQL for several machines.

Both run the same SQL statements, with ``?`` as the placeholder of a value. A transaction takes a
lock before its first statement, so that reading, checking and writing are atomic across processes.
If the connection to PostgreSQL is lost, the next statement opens a new one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from ..log.location import SCHEMES

BUSY_SECONDS = 2.0
"""How many seconds a transaction waits for a lock that another process holds."""

_CONNECT_SECONDS = 3
_STATEMENT_SECONDS = 5
_SETTINGS = (
    f"set lock_timeout = '{BUSY_SECONDS:g}s'; set statement_timeout = '{_STATEMENT_SECONDS}s'; "
    "set idle_in_transaction_session_timeout = '30s'"
)
# Connection settings for PostgreSQL. With the defaults, a statement would wait many minutes for a
# host that has disappeared.
_LINK: dict[str, Any] = {
    "connect_timeout": _CONNECT_SECONDS,
    "tcp_user_timeout": _STATEMENT_SECONDS * 1000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}


class Database(Protocol):
    """A connection to the database. Only one thread may use it at a time."""

    errors: tuple[type[Exception], ...]

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run a statement, in its own transaction unless one is open, and return its rows."""
        ...

    def transaction(self, *locks: str) -> AbstractContextManager[float]:
        """Run a ``with`` block as one transaction that holds the named locks.

        The ``with`` statement yields the current Unix time of the database.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def is_postgres(place: object) -> bool:
    """Return whether a location is the URL of a PostgreSQL database."""
    return isinstance(place, str) and place.startswith(SCHEMES)


def open_database(place: str | Path, schema: Sequence[str]) -> Database:
    """Open a SQLite file, ``:memory:``, or a ``postgresql://`` URL, and create the missing tables.

    ``{bytes}`` and ``{serial}`` in the schema are replaced by the database's own column types.
    """
    if not is_postgres(place):
        return _Sqlite(
            place,
            [
                each.format(bytes="blob", serial="integer primary key autoincrement")
                for each in schema
            ],
        )
    types = {"bytes": "bytea", "serial": "bigint generated always as identity primary key"}
    return _Postgres(str(place), [each.format(**types) for each in schema])


class _Sqlite:
    errors: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, path: str | Path, schema: Sequence[str]) -> None:
        if str(path) != ":memory:":
            # A new file is for its owner only: it has hashes of keys, or the messages of clients.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self._base = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        if str(path) != ":memory:":
            self._base.execute("pragma journal_mode = wal")
            self._base.execute("pragma synchronous = normal")
        for statement in schema:
            self._base.execute(statement)

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._base.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def transaction(self, *locks: str) -> Iterator[float]:
        self._base.execute("begin immediate")  # "immediate" locks the complete file at once
        try:
            yield time.time()
            self._base.execute("commit")
        except BaseException:
            if self._base.in_transaction:  # SQLite rolls back by itself after some failures
                self._base.execute("rollback")
            raise

    def close(self) -> None:
        self._base.close()


class _Postgres:
    def __init__(self, url: str, schema: Sequence[str]) -> None:
        try:
            import psycopg  # lazy import: an optional dependency
        except ImportError as error:
            raise ImportError(
                "PostgreSQL needs its extra: pip install 'dragoman[postgres]'"
            ) from error
        self.errors: tuple[type[Exception], ...] = (psycopg.Error,)
        self._connect: Callable[[], Any] = lambda: psycopg.connect(url, autocommit=True, **_LINK)
        self._base = self._open()
        # The lock is needed: if two processes create the same table at once, one of them fails, in
        # spite of "if not exists".
        with self.transaction("schema"):
            for statement in schema:
                self.run(statement)

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        if self._base.closed:
            self._base = self._open()
        cursor = self._base.execute(statement.replace("?", "%s"), values)
        return list(cursor.fetchall()) if cursor.description is not None else []

    @contextlib.contextmanager
    def transaction(self, *locks: str) -> Iterator[float]:
        now = self._begin(locks)
        try:
            yield now
            self._base.execute("commit")
        except BaseException:
            if not self._base.closed:
                with contextlib.suppress(*self.errors):
                    self._base.execute("rollback")
            raise

    def close(self) -> None:
        self._base.close()

    def _open(self) -> Any:
        connection = self._connect()
        connection.execute(_SETTINGS)
        return connection

    def _begin(self, locks: Sequence[str]) -> float:
        """Begin a transaction and take the locks.

        If the connection has been lost, open a new connection and begin again.
        """
        if not self._base.closed:
            try:
                return self._lock(locks)
            except self.errors:
                if not self._base.closed:
                    self._base.execute("rollback")
                    raise
        self._base = self._open()
        return self._lock(locks)

    def _lock(self, locks: Sequence[str]) -> float:
        wanted = "".join(["pg_advisory_xact_lock(hashtextextended(%s, 0)), " for _ in locks])
        query = f"select {wanted}extract(epoch from clock_timestamp())::float8"  # noqa: S608 - the query contains no values
        with self._base.pipeline():  # pipeline mode sends both statements in one round trip
            self._base.execute("begin")
            found = self._base.execute(query, [f"dragoman:{name}" for name in locks])
        return float(found.fetchone()[-1])
