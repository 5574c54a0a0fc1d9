"""A log in PostgreSQL, for teams: many processes write to one log.

It needs the extra ``dragoman[postgres]``. An advisory lock serialises the writers of a session,
and a unique key on (session, seq) guarantees that two writers cannot fork a chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..database import load_driver
from ..errors import scrub
from .errors import (
    LogCorruptError,
    LogError,
    LogFullError,
    LogLockedError,
    LogReadOnlyError,
    LogStorageError,
)
from .eventlog import EventLog, hand_over
from .record import Head, LogRecord, Row, to_row
from .sql import Dialect, SqlView, check_version, migrate
from .writer import WriterThread

if TYPE_CHECKING:
    import psycopg

# Migration n upgrades a database from version n-1 to n. Never change a released migration; add
# another one. Names are compared by their bytes (collation "C"), as in SQLite. The payload is
# text, because jsonb would change its bytes.
_MIGRATIONS = (
    (
        """CREATE TABLE dragoman_log (
            session text COLLATE "C" NOT NULL,
            seq bigint NOT NULL,
            id text NOT NULL,
            turn text,
            parent text,
            type text NOT NULL,
            actor text NOT NULL,
            sensitivity text NOT NULL,
            timestamp bigint NOT NULL,
            payload text NOT NULL,
            previous bytea NOT NULL,
            hash bytea NOT NULL,
            PRIMARY KEY (session, seq)
        )""",
    ),
)

_COPY = """
COPY dragoman_log (session, seq, id, turn, parent, type, actor, sensitivity, timestamp, payload, previous, hash)
FROM STDIN"""
_REPLACE = "UPDATE dragoman_log SET type = %s, payload = %s WHERE session = %s AND seq = %s"
_HEADS = """
SELECT name, seq, hash FROM unnest(?::text[]) AS name,
    LATERAL (SELECT seq, hash FROM dragoman_log WHERE session = name ORDER BY seq DESC LIMIT 1) AS head"""
_ENDS = """
SELECT session, seq, id, turn, parent, type, actor, sensitivity, timestamp, ''::bytea, previous, hash
FROM unnest(?::text[]) AS name, LATERAL (
    (SELECT * FROM dragoman_log WHERE session = name ORDER BY seq LIMIT 1)
    UNION ALL
    (SELECT * FROM dragoman_log WHERE session = name ORDER BY seq DESC LIMIT 1)
) AS ends ORDER BY session, seq"""

# A batch may affect many sessions, but the server's lock table is limited, so sessions with the
# same hash share a lock.
_SPACE = 0x44524147
# A lease is an advisory lock with a 64-bit key, which cannot collide with the other locks. The key
# depends on the table, so that schemas do not share leases.
_KEY = "hashtextextended(%s, 'dragoman_log'::regclass::oid::bigint)"
_LEASE = f"SELECT pg_try_advisory_lock({_KEY})"
_UNLEASE = f"SELECT pg_advisory_unlock({_KEY})"
_LOCKS = 64
_SCHEMA_LOCK = _LOCKS


class PostgresLog(EventLog):
    """A log in the database that ``conninfo`` names (a ``postgresql://`` URL or a libpq string).

    Missing tables are created. Any number of processes may write. If the connection is lost, the
    pending appends fail, and the next append reconnects.
    """

    def __init__(self, conninfo: str, *, readonly: bool = False) -> None:
        super().__init__()
        self._conninfo = conninfo
        self._secrets = _find_secrets(conninfo)
        self._connection: psycopg.Connection[Any] | None = None
        self._idle: list[psycopg.Connection[Any]] = []
        self._leased: set[str] = set()
        if readonly:
            with self._view() as view:
                if _find_version(view.connection, readonly=True) is None:
                    raise LogReadOnlyError("the database has no log to read")
        else:
            self._connection = self._open()
            self._writer = WriterThread(self._write, self._finish)

    def __repr__(self) -> str:  # repr omits the connection string, which may contain a password
        return f"PostgresLog({'' if self._writer else 'readonly=True'})"

    # --- opening and closing the log ------------------------------------------------------------

    def reopen(self) -> PostgresLog:
        """Open the same database again, for writing."""
        return PostgresLog(self._conninfo)

    def _open(self) -> psycopg.Connection[Any]:
        """Connect for writing, and create or migrate the tables."""
        with self._explained():
            connection = _connect(self._conninfo)
            try:
                # With synchronous_commit off, the server acknowledges a record before it is on
                # disk, and may lose it.
                if connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
                    connection.execute("SET synchronous_commit TO on")
                # With TCP keep-alive, the leases of a host that has disappeared end after 90
                # seconds.
                for setting in ("idle = 60", "interval = 10", "count = 3"):
                    connection.execute(f"SET tcp_keepalives_{setting}")
                _migrate(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def _finish(self) -> None:
        for connection in (self._connection, *self._idle):
            if connection is not None:
                connection.close()

    def close(self) -> None:
        """Write the queued records and close the connections."""
        super().close()
        if self._writer is None:
            self._finish()

    # --- writing records ------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection[Any]]:
        if self._connection is None or self._connection.closed:
            self._connection = self._open()
            self._leased.clear()  # leases are locks that end with their connection
        with self._explained(), self._connection.transaction():
            yield self._connection

    @contextmanager
    def _change(self, sessions: set[str] | None) -> Iterator[_PostgresView]:
        with self._transaction() as connection:
            for session in ((sessions or set()) & self._held.keys()) - self._leased:
                # acquire the lease again after a takeover or a lost connection
                self._try_lease(connection, session)
            if sessions is None:
                _lock(connection, set(range(_LOCKS)))
            else:
                digests = [hashlib.sha256(session.encode()).digest() for session in sessions]
                _lock(connection, {digest[0] % _LOCKS for digest in digests})
            yield _PostgresView(connection)

    # --- leases of sessions ---------------------------------------------------------------------

    async def _lease(self, session: str, *, held: bool) -> bool:
        task = partial(self._take_lease if held else self._drop_lease, session)
        return bool(await hand_over(self._offer, task))

    def _take_lease(self, session: str) -> bool:
        with self._transaction() as connection:
            return self._try_lease(connection, session)

    def _drop_lease(self, session: str) -> bool:
        connection = self._connection
        if session in self._leased and connection is not None and not connection.closed:
            self._leased.discard(session)
            with self._explained():
                connection.execute(_UNLEASE, (session,))
        return True

    def _try_lease(self, connection: psycopg.Connection[Any], session: str) -> bool:
        # This is a session-level lock and not a transaction-level one: the server releases it when
        # the process dies.
        if session not in self._leased:
            [(is_free,)] = connection.execute(_LEASE, (session,)).fetchall()
            if is_free:
                self._leased.add(session)
        return session in self._leased

    # --- reading records ------------------------------------------------------------------------

    @contextmanager
    def _view(self) -> Iterator[_PostgresView]:
        self._check_open()
        with self._explained():
            with ExitStack() as stack:
                connection = self._begin_reading(stack)
                try:
                    yield _PostgresView(connection)
                except BaseException:
                    # close the connection, since its state is unknown after an error
                    connection.close()
                    raise
            if self._closed:
                connection.close()
            else:
                self._idle.append(connection)

    def _begin_reading(self, stack: ExitStack) -> psycopg.Connection[Any]:
        """Begin a transaction on an idle connection that still works, or on a new one."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took the last idle connection
                break
            try:
                stack.enter_context(connection.transaction())
            except _driver().Error:
                # the idle connection is broken, for example after a server restart
                connection.close()
            else:
                return connection
        connection = _connect(self._conninfo)
        connection.execute("SET default_transaction_read_only TO on")
        connection.execute("SET default_transaction_isolation TO 'repeatable read'")
        stack.enter_context(connection.transaction())
        return connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert the driver's errors to log errors, without the password."""
        try:
            yield
        except _driver().Error as error:
            state = error.sqlstate or ""
            kind, advice = _STATES.get(state, (LogStorageError, _UNREACHABLE))
            words = " ".join(scrub(str(error), self._secrets).split())
            _empty(error)
            raise kind(f"{words}{f' (SQLSTATE {state})' if state else ''}. {advice}") from None


class _PostgresView(SqlView):
    dialect = Dialect(
        "dragoman_log", "?", "convert_to(payload, 'UTF8')",
        "jsonb_array_elements_text(?::jsonb)", "ILIKE",
    )  # fmt: skip

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        cursor = self.connection.execute(statement.replace("?", "%s").encode(), values)
        return cursor.fetchall() if cursor.description is not None else []

    def ends(self) -> list[tuple[Row, Row]]:
        rows = self.run(_ENDS, (self.names(),))
        return list(zip(rows[::2], rows[1::2], strict=True))

    def heads(self, sessions: set[str]) -> dict[str, Head]:
        rows = self.run(_HEADS, (sorted(sessions),))
        return {session: Head(seq, digest.hex()) for session, seq, digest in rows}

    def insert(self, records: Sequence[LogRecord]) -> None:
        with self.connection.cursor() as cursor, cursor.copy(_COPY) as copy:
            for record in records:
                row = to_row(record)
                copy.write_row((*row[:9], row[9].decode(), *row[10:]))

    def replace(self, rows: Sequence[Row]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(
                _REPLACE, [(row[5], row[9].decode(), row[0], row[1]) for row in rows]
            )

    def delete(self, sessions: Sequence[str]) -> None:
        self.run("DELETE FROM dragoman_log WHERE session = ANY(?::text[])", (list(sessions),))


# --- the connection to the database ------------------------------------------------------------


def _driver() -> ModuleType:
    try:
        return load_driver()
    except ImportError as error:
        raise LogError(str(error)) from None


def _find_secrets(conninfo: str) -> tuple[str, ...]:
    """Return the passwords in a connection string, plain and percent-encoded.

    A string that the driver would misparse is rejected here, because the driver's own error quotes
    the failing part, which may be the password.
    """
    driver = _driver()
    try:
        parts = driver.conninfo.conninfo_to_dict(conninfo)
    except driver.Error as error:
        _empty(error)
        raise LogStorageError(f"the connection string cannot be read. {_ENCODE}") from None
    # A host may begin with "@", which means an abstract socket.
    if any("@" in str(parts.get(name, ""))[1:] for name in ("host", "dbname")):
        raise LogStorageError(f"the connection string has an @ in its host or database. {_ENCODE}")
    if not all(
        port.strip().isdigit() for port in str(parts.get("port") or "1").split(",") if port
    ):
        raise LogStorageError(f"the connection string has a port that is not a number. {_ENCODE}")
    found = [str(parts[name]) for name in ("password", "sslpassword") if parts.get(name)]
    return (*found, *[quote(secret, safe="") for secret in found])


def _empty(error: BaseException) -> None:
    """Remove everything from a driver's error that may contain the password.

    That is the connection, the message and the traceback. Python keeps the original error as the
    context of the error that is raised in its place.
    """
    error.args = ()
    error.__traceback__ = error.__cause__ = error.__context__ = None
    for name in vars(error):
        setattr(error, name, None)


def _connect(conninfo: str) -> psycopg.Connection[Any]:
    connection: psycopg.Connection[Any] = _driver().connect(
        conninfo, autocommit=True, application_name="dragoman-log", client_encoding="utf8"
    )  # fmt: skip
    return connection


def _lock(connection: psycopg.Connection[Any], numbers: set[int]) -> None:
    # Locks are taken in sorted order, so that two writers that share several sessions cannot
    # deadlock.
    sql = "SELECT pg_advisory_xact_lock(%s, number) FROM unnest(%s::int[]) AS number"
    connection.execute(sql, (_SPACE, sorted(numbers)))


def _migrate(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction():
        _lock(connection, {_SCHEMA_LOCK})
        if (version := _find_version(connection)) is None:
            connection.execute("CREATE TABLE dragoman_log_version (version int PRIMARY KEY)")
        migrate(
            lambda statement: connection.execute(statement.encode()),
            "dragoman_log_version", _MIGRATIONS, version or 0,
        )  # fmt: skip


def _find_version(connection: psycopg.Connection[Any], *, readonly: bool = False) -> int | None:
    """Return the version of the tables; ``None`` if the tables are missing."""
    row = connection.execute("SELECT to_regclass('dragoman_log_version') IS NOT NULL").fetchone()
    if row != (True,):
        return None
    found = connection.execute("SELECT max(version) FROM dragoman_log_version").fetchone()
    version = (found[0] if found else 0) or 0
    return check_version(version, _MIGRATIONS, "the database", readonly=readonly)


_UNREACHABLE = (
    "The server failed or cannot be reached; records in flight may or may not have been stored"
)
_ENCODE = (
    "In a URL, characters of a password such as % @ / : must be percent-encoded (%25 %40 %2F %3A)"
)
_STATES: dict[str, tuple[type[LogError], str]] = {
    "53100": (LogFullError, "Nothing was written; free some space and append again"),
    "25006": (LogReadOnlyError, "This server or role may only read"),
    "42501": (LogReadOnlyError, "The role may not do this"),
    "23505": (LogLockedError, "Another writer appended to the session first; append again"),
    "XX001": (LogCorruptError, "The server reports damaged data"),
    "XX002": (LogCorruptError, "The server reports a damaged index"),
    "42P01": (LogCorruptError, "The log's tables are gone"),
}
