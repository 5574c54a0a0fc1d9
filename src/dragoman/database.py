"""SQL databases: a SQLite file, or PostgreSQL for several machines.

Both run the same SQL statements, with ``?`` as the placeholder of a value. A transaction takes a
lock before its first statement, so that reading, checking and writing are atomic across processes.
If the connection to PostgreSQL is lost, the next statement opens a new one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeGuard

from .errors import advise_import

log = logging.getLogger("dragoman")

__all__ = [
    "BUSY_SECONDS", "Database", "create_private", "is_postgres", "load_driver", "open_database",
    "transaction",
]  # fmt: skip

BUSY_SECONDS = 2.0
"""How many seconds a transaction waits for a lock that another process holds."""

# Python raises these errors for a value that a driver cannot convert.
_INVALID = (ArithmeticError, TypeError, ValueError)
_CONNECT_SECONDS = 3
_STATEMENT_SECONDS = 5
_SETTINGS = (
    f"set lock_timeout = '{BUSY_SECONDS:g}s'; set statement_timeout = '{_STATEMENT_SECONDS}s'; "
    "set idle_in_transaction_session_timeout = '30s'"
)
# Connection settings for PostgreSQL. With the defaults, a statement would wait many minutes for a
# host that has disappeared. In a database with the encoding SQL_ASCII, which initdb makes in the
# locale C, texts would be read as bytes.
_LINK: dict[str, Any] = {
    "client_encoding": "utf8",
    "connect_timeout": _CONNECT_SECONDS,
    "tcp_user_timeout": _STATEMENT_SECONDS * 1000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}


class Database(Protocol):
    """A connection to the database. Only one thread may use it at a time."""

    errors: tuple[type[Exception], ...]
    invalid: tuple[type[Exception], ...]
    """The errors about values that the database can never store. Some of them are in ``errors``."""

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


def is_postgres(place: object) -> TypeGuard[str]:
    """Return whether a location is the URL of a PostgreSQL database."""
    return isinstance(place, str) and place.startswith(("postgresql://", "postgres://"))


def load_driver() -> ModuleType:
    """Import psycopg; raise ``ImportError`` with the name of the extra if it is missing."""
    with advise_import("PostgreSQL needs the extra: pip install 'dragoman[postgres]'"):
        import psycopg  # lazy import: an optional dependency that takes 400 ms to load
    return psycopg


def create_private(path: str | Path) -> None:
    """Create a file that only its owner may read and write; keep one that exists."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run a ``with`` block as one transaction of SQLite, which locks the complete file at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite rolls back by itself after some failures. If the rollback fails, the first error
        # is reported.
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


def open_database(
    place: str | Path, schema: Sequence[str], *, busy_seconds: float | None = None
) -> Database:
    """Open a SQLite file, ``:memory:``, or a ``postgresql://`` URL, and create the missing tables.

    ``{bytes}`` and ``{serial}`` in the schema are replaced by the database's own column types, and
    ``{clustered}`` after a table by the option of SQLite that stores rows in the primary key.
    ``busy_seconds`` is how long SQLite waits for a lock, by default ``BUSY_SECONDS``.
    """
    if not is_postgres(place):
        types = {
            "bytes": "blob",
            "serial": "integer primary key autoincrement",
            "clustered": "without rowid",
        }
        return _Sqlite(place, [each.format(**types) for each in schema], busy_seconds)
    types = {
        "bytes": "bytea",
        "serial": "bigint generated always as identity primary key",
        "clustered": "",
    }
    return _Postgres(place, [each.format(**types) for each in schema])


class _Sqlite:
    errors: tuple[type[Exception], ...] = (sqlite3.Error,)
    invalid: tuple[type[Exception], ...] = (*_INVALID, sqlite3.DataError, sqlite3.IntegrityError)

    def __init__(self, path: str | Path, schema: Sequence[str], busy: float | None) -> None:
        if str(path) != ":memory:":
            # A new file is for its owner only: it has hashes of keys, or the messages of clients.
            create_private(path)
        self._base = sqlite3.connect(
            path, timeout=busy or BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        if str(path) != ":memory:":
            self._write_ahead(time.monotonic() + (busy or BUSY_SECONDS))
            self._base.execute("pragma synchronous = normal")
        for statement in schema:
            self._base.execute(statement)
        self._path = None if str(path) == ":memory:" else Path(path)
        self._inode = self._find_inode()
        self._is_lost = False

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._base.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def transaction(self, *locks: str) -> Iterator[float]:
        if not self._is_lost and self._find_inode() != self._inode:
            self._is_lost = True
            log.error(
                "%s was moved or deleted; what is written now is lost at the end of this process, "
                "so restart it",
                self._path,
            )
        with transaction(self._base):
            yield time.time()

    def _find_inode(self) -> int | None:
        """Return the number of the file under the path of the database, if there is one."""
        try:
            return None if self._path is None else self._path.stat().st_ino
        except OSError:
            return None

    def close(self) -> None:
        self._base.close()

    def _write_ahead(self, deadline: float) -> None:
        # SQLite itself does not wait here: it raises an error if two processes open a new file.
        while True:
            try:
                self._base.execute("pragma journal_mode = wal")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return


class _Postgres:
    def __init__(self, url: str, schema: Sequence[str]) -> None:
        psycopg = load_driver()
        self.errors: tuple[type[Exception], ...] = (psycopg.Error,)
        self.invalid: tuple[type[Exception], ...] = (
            *_INVALID,
            psycopg.DataError,
            psycopg.IntegrityError,
        )
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
