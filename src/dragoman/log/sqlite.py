"""A log in one SQLite file, without a server.

Only one connection, in the writer's thread, writes and checkpoints. Every read opens its own
read-only connection, so a reader never blocks the writer. SQLite before 3.51.3 can corrupt a
write-ahead log (WAL) when two connections checkpoint or write at once: do not open a live log for
writing with another program.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ..database import create_private, transaction
from .errors import (
    LogCorruptError,
    LogError,
    LogFullError,
    LogLockedError,
    LogReadOnlyError,
    LogStorageError,
)
from .eventlog import EventLog
from .lock import FileLock
from .record import Head, LogRecord, Row, to_row
from .sql import Dialect, SqlView, check_version, migrate
from .view import LogChange
from .writer import WriterThread

_Done = TypeVar("_Done")

# The application id "DRAG" in the file header marks our files, so that tables are never added to
# another program's database.
_APPLICATION = 0x44524147
# Migration n upgrades a file from version n-1 to n. Never change a released migration; add another
# one.
_MIGRATIONS = (
    (
        """CREATE TABLE records (
            session TEXT NOT NULL,
            seq INTEGER NOT NULL,
            id TEXT NOT NULL,
            turn TEXT,
            parent TEXT,
            type TEXT NOT NULL,
            actor TEXT NOT NULL,
            sensitivity TEXT NOT NULL,
            timestamp INTEGER NOT NULL,
            payload TEXT NOT NULL,
            previous BLOB NOT NULL,
            hash BLOB NOT NULL
        )""",
        "CREATE UNIQUE INDEX records_chain ON records (session, seq)",
    ),
)

_INSERT = """
INSERT INTO records
    (session, seq, id, turn, parent, type, actor, sensitivity, timestamp, payload, previous, hash)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT), ?, ?)"""
_REPLACE = """
UPDATE records SET type = ?, payload = CAST(? AS TEXT) WHERE session = ? AND seq = ?"""
_HEAD = "SELECT seq, hash FROM records WHERE session = ? ORDER BY seq DESC LIMIT 1"
_END = """
SELECT session, seq, id, turn, parent, type, actor, sensitivity, timestamp, x'', previous, hash
FROM records WHERE session = CAST(? AS TEXT) AND seq IN (
    (SELECT min(seq) FROM records WHERE session = CAST(? AS TEXT)),
    (SELECT max(seq) FROM records WHERE session = CAST(? AS TEXT))
) ORDER BY seq"""

_ERRORS: dict[str, type[LogError]] = {
    "SQLITE_FULL": LogFullError,
    # the disk has no space for the index of the write-ahead log
    "SQLITE_IOERR_SHMSIZE": LogFullError,
    "SQLITE_READONLY": LogReadOnlyError,
    "SQLITE_PERM": LogReadOnlyError,
    "SQLITE_CANTOPEN": LogReadOnlyError,
    "SQLITE_BUSY": LogLockedError,
    "SQLITE_LOCKED": LogLockedError,
    "SQLITE_CORRUPT": LogCorruptError,
    "SQLITE_NOTADB": LogCorruptError,
    "SQLITE_ERROR": LogCorruptError,  # our SQL is correct, so the tables must be damaged
    # A violated constraint means a damaged index: the index lacks a record that exists.
    "SQLITE_CONSTRAINT": LogCorruptError,
}
_ADVICE: dict[type[LogError], str] = {
    LogFullError: "Nothing was written; free some space and append again",
    LogReadOnlyError: "The file and its folder must be writable",
    LogLockedError: "Another program is writing it",
    LogCorruptError: "The file is damaged or is not a log; verify() locates the damage",
    LogStorageError: "The disk failed; close the log and open it again",
}


class SqliteLog(EventLog):
    """A log in the file ``path``, which is created if missing.

    One process writes at a time, enforced by the file ``path.lock``: a second writer gets
    ``LogLockedError``. ``readonly=True`` needs no lock and reads what the writer has committed.
    """

    def __init__(self, path: str | Path, *, readonly: bool = False) -> None:
        super().__init__()
        self.path = Path(path).resolve()
        self._immutable = False
        if readonly:
            self._open_reader()
        else:
            self._open_writer()

    def __repr__(self) -> str:
        return f"SqliteLog({str(self.path)!r}{'' if self._writer else ', readonly=True'})"

    # --- opening and closing the log ------------------------------------------------------------

    def _open_writer(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LogReadOnlyError(
                f"{self.path.parent}: cannot be created: {error.strerror}"
            ) from None
        self._lock = FileLock(self.path.with_name(self.path.name + ".lock"), self.path)
        try:
            with _explained(self.path):
                self._connection = _create(self.path)
            self._identity = self.path.stat()
        except BaseException:
            self._lock.release()
            raise
        # After a failed fsync, the data may be lost. The writer stops, so that no record is linked
        # to lost data.
        self._writer = WriterThread(self._write, self._finish, fatal=(LogStorageError,))

    def _open_reader(self) -> None:
        if not self.path.is_file():
            raise LogReadOnlyError(f"{self.path}: no log exists here")
        _check_size(self.path)
        try:
            self._check()
        except LogReadOnlyError:
            # SQLite creates its -wal and -shm files even for reading. In a read-only folder, a log
            # without a -wal file has no writer and can be opened as immutable.
            if self.path.with_name(self.path.name + "-wal").exists():
                raise
            self._immutable = True
            self._check()

    def _check(self) -> None:
        with self._view() as view:
            _check_owner(view.connection, self.path)
            _version(view.connection, self.path, readonly=True)

    def _finish(self) -> None:
        try:
            _checkpoint(self._connection)
            self._connection.close()
        finally:
            self._lock.release()

    # --- writing records ------------------------------------------------------------------------

    @contextmanager
    def _change(self, sessions: set[str] | None) -> Iterator[_SqliteView]:
        with _explained(self.path), transaction(self._connection):
            self._check_place()
            yield _SqliteView(self._connection, self.path)

    def _check_place(self) -> None:
        """Raise an error if the file was deleted or moved, or if another process writes it."""
        # SQLite keeps writing to a deleted file, and every record would be lost.
        try:
            in_place = os.path.samestat(self.path.stat(), self._identity)
        except OSError:
            in_place = False
        if not in_place:
            raise LogStorageError(f"{self.path}: was moved or deleted while it was being written")
        self._lock.keep()

    def _remove(self, remove: Callable[[LogChange], _Done]) -> _Done:
        done = super()._remove(remove)
        # not an error: the records are removed, only their disk space is not freed yet
        with suppress(sqlite3.Error):
            # executescript() frees all unused pages; execute() would stop after the first one.
            self._connection.executescript("PRAGMA incremental_vacuum")
        _checkpoint(self._connection)
        return done

    # --- reading records ------------------------------------------------------------------------

    @contextmanager
    def _view(self) -> Iterator[_SqliteView]:
        self._check_open()
        with _explained(self.path):
            connection = _connect(self.path, "immutable=1" if self._immutable else "mode=ro")
            try:
                # a transaction gives all queries of this view the same snapshot
                connection.execute("BEGIN")
                yield _SqliteView(connection, self.path)
            finally:
                connection.close()


class _SqliteView(SqlView):
    # Names and payloads are passed as bytes, so that even damaged values can be queried and
    # compared.
    dialect = Dialect(
        "records", "CAST(? AS TEXT)", "CAST(payload AS BLOB)", "value FROM json_each(?)", "LIKE",
        "NOT INDEXED",
    )  # fmt: skip

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection = connection
        self.path = path

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        # convert errors for each query, since ``verify`` continues after damaged data
        with _explained(self.path):
            return self.connection.execute(statement, values).fetchall()

    def bind(self, session: str) -> bytes:
        if not isinstance(session, str):  # a changed byte can make a text a number or a BLOB
            raise LogCorruptError("the name of a session is damaged; verify() locates the damage")
        return session.encode("utf-8", "surrogateescape")

    def ends(self) -> list[tuple[Row, Row]]:
        ends = [self.run(_END, (self.bind(name),) * 3) for name in self.names()]
        if not all(ends):
            raise LogCorruptError(
                "the index lists a session that has no records; verify() locates the damage"
            )
        return [(rows[0], rows[-1]) for rows in ends]

    def heads(self, sessions: set[str]) -> dict[str, Head]:
        heads = {}
        for session in sessions:
            for seq, digest in self.run(_HEAD, (session,)):
                if type(seq) is not int or type(digest) is not bytes:
                    raise LogCorruptError(
                        f"session {session!r}: its last record is damaged; verify() locates it"
                    )
                heads[session] = Head(seq, digest.hex())
        return heads

    def insert(self, records: Sequence[LogRecord]) -> None:
        self.connection.executemany(_INSERT, map(to_row, records))

    def replace(self, rows: Sequence[Row]) -> None:
        changes = [(row[5], row[9], row[0], row[1]) for row in rows]
        self.connection.executemany(_REPLACE, changes)

    def delete(self, sessions: Sequence[str]) -> None:
        for session in sessions:
            self.run("DELETE FROM records WHERE session = ?", (session,))


# --- opening and checking the file -------------------------------------------------------------


def _connect(path: Path, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?{options}", uri=True, isolation_level=None, check_same_thread=False,
        timeout=5
    )  # fmt: skip
    # Return damaged text instead of raising an error, so that ``verify`` finds that its hash does
    # not match.
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return connection


def _create(path: Path) -> sqlite3.Connection:
    """Open the file for writing; create and migrate its tables as needed."""
    try:
        create_private(path)  # because conversations are private
    except OSError as error:
        kind = LogFullError if error.errno == errno.ENOSPC else LogReadOnlyError
        raise kind(f"{path}: cannot be opened for writing: {error.strerror}") from None
    if (names := path.stat().st_nlink) > 1:
        # A file with several names (hard links) is rejected: each name would have its own lock and
        # write-ahead log, and SQLite would lose records.
        raise LogLockedError(
            f"{path}: has {names} names (hard links); remove the others, or make them copies"
        )
    _check_size(path)
    connection = _connect(path, "mode=rw")
    try:
        _check_owner(connection, path)
        # This setting allows the file to shrink when sessions are removed.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise LogStorageError(
                f"{path}: this file system does not support a write-ahead log (mode {mode!r})"
            )
        for setting in (
            "synchronous = FULL",
            "fullfsync = ON",
            "secure_delete = ON",
            "journal_size_limit = 67108864",
        ):
            connection.execute(f"PRAGMA {setting}")
        _migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _checkpoint(connection: sqlite3.Connection) -> None:
    """Checkpoint: move commits from the write-ahead log to the file as far as possible."""
    # an error does no harm: the commits are safe in the write-ahead log, even on a full disk
    with suppress(sqlite3.Error):
        # the checkpoint does not wait for active readers
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.execute("PRAGMA busy_timeout = 5000")


def _check_size(path: Path) -> None:
    """Reject a file whose size is not a multiple of the page size, which SQLite would accept."""
    size = path.stat().st_size
    try:
        pending = path.with_name(path.name + "-wal").stat().st_size
    except FileNotFoundError:
        pending = 0
    if size == 0 or pending:  # the missing part of the file may be in the write-ahead log
        return
    with path.open("rb") as file:
        header = file.read(18)
    if len(header) >= 16 and header[:16] != b"SQLite format 3\0":
        raise LogCorruptError(f"{path}: is not a database. {_ADVICE[LogCorruptError]}")
    page = int.from_bytes(header[16:18], "big") or 4096
    if size < 512 or size % (65536 if page == 1 else page):
        raise LogCorruptError(f"{path}: ends in the middle of a page: the file was cut off")


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if owner != _APPLICATION and (owner or tables):
        raise LogCorruptError(f"{path}: is a database, and not a log of this package")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    with transaction(connection):
        connection.execute(
            "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY)"
        )
        version = _version(connection, path)
        migrate(connection.execute, "schema_version", _MIGRATIONS, version)
        if version == 0:
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        # This query fails if the table is damaged.
        connection.execute("SELECT hash FROM records ORDER BY rowid DESC LIMIT 1").fetchall()


def _version(connection: sqlite3.Connection, path: Path, *, readonly: bool = False) -> int:
    found = connection.execute("SELECT max(version) FROM schema_version").fetchone()[0] or 0
    return check_version(found, _MIGRATIONS, f"{path}:", readonly=readonly)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Convert SQLite's errors to log errors."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        kind = _ERRORS.get(name) or _ERRORS.get("_".join(name.split("_")[:2]), LogStorageError)
        code = f" ({name})" if name else ""
        raise kind(f"{path}: {error}{code}. {_ADVICE[kind]}") from error
    except UnicodeDecodeError as error:
        # A damaged file can garble SQLite's own error message, which Python then cannot decode.
        raise LogCorruptError(f"{path}: {_ADVICE[LogCorruptError]}") from error
