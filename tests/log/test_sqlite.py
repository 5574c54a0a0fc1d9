# ruff: noqa: SLF001 - the log's own connection is used to make SQLite fail and to read its settings
import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dragoman.log import (
    LogCorruptError,
    LogError,
    LogLockedError,
    LogReadOnlyError,
    LogRecord,
    LogStorageError,
    LogVersionError,
    SqliteLog,
    ToolObserved,
    TurnStarted,
    open_log,
)
from dragoman.log.record import Draft

from ..waiting import PATIENCE
from .children import ENVIRONMENT, on_small_disk, start


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a closed log with ten records."""
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        for number in range(10):
            log.append_sync(
                "s1", ToolObserved(intent_id=f"tu_{number}", tool_name="bash", content="x" * 1000)
            )
    return path


def change(path: Path, statement: str) -> list[Any]:
    """Execute a statement on the file, as another program could; return its rows."""
    connection = sqlite3.connect(path)
    rows = connection.execute(statement).fetchall()
    connection.commit()
    connection.close()
    return rows


# --- a log has only one writer at a time -------------------------------------------------------


@pytest.mark.parametrize("folder", ["", "other"])
def test_second_writer_is_rejected_with_the_process_id(path: Path, folder: str) -> None:
    (path.parent / "other").symlink_to(path.parent, target_is_directory=True)
    same = path.parent / folder / "log.db"
    why = f"{path}: is being written by process {os.getpid()}; a log has one writer at a time"
    with SqliteLog(path), pytest.raises(LogLockedError) as caught:
        SqliteLog(same)
    assert str(caught.value) == why
    SqliteLog(same).close()


def test_writer_in_another_process_is_rejected_until_the_first_ends(path: Path) -> None:
    process = start(str(path), "1")
    assert process.stdout is not None
    assert process.stdout.readline() == f"ready {process.pid}\n"
    try:
        with pytest.raises(LogLockedError, match=f"is being written by process {process.pid};"):
            SqliteLog(path)
        with SqliteLog(path, readonly=True) as reader:
            assert len(list(reader.read("s1"))) >= 10
    finally:
        process.kill()
        process.communicate()
    SqliteLog(path).close()


def test_lock_is_released_if_opening_the_log_fails(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(b"this is no database, and long enough to tell" * 100)
    for _ in range(2):
        with pytest.raises(LogCorruptError):
            SqliteLog(path)
    path.unlink()
    SqliteLog(path).close()


def test_error_names_the_program_that_locks_the_database(path: Path) -> None:
    with SqliteLog(path) as log:
        log._connection.execute("PRAGMA busy_timeout = 0")
        stranger = sqlite3.connect(path, isolation_level=None)
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(LogLockedError, match="Another program is writing it"):
            log.append_sync("s1", TurnStarted(1))
        stranger.execute("ROLLBACK")
        stranger.close()
        assert log.append_sync("s1", TurnStarted(1)).seq == 11


# --- readers of a log --------------------------------------------------------------------------


def test_a_reader_never_blocks_the_writer(path: Path) -> None:
    with SqliteLog(path) as log:
        # Without a timeout, a blocked statement fails at once.
        log._connection.execute("PRAGMA busy_timeout = 0")
        with log._view() as view:
            assert view.length("s1") == 10  # this read opens a transaction
            for _ in range(50):
                log.append_sync(
                    "s1", ToolObserved(intent_id="tu", tool_name="bash", content="x" * 100_000)
                )
            assert view.length("s1") == 10
            assert len(view.page("s1", 0, 100)) == 10
            log.retain(timedelta(days=1))
        assert len(list(log.read("s1"))) == 60
        # After the reader has closed, the write-ahead log is merged into the database and removed.
        for number in range(3):
            log.append_sync("s1", TurnStarted(number))
        log.close()
        assert not (wal := path.with_name("log.db-wal")).exists() or wal.stat().st_size == 0


def test_a_reader_cannot_write(path: Path) -> None:
    with (
        SqliteLog(path, readonly=True) as log,
        log._view() as view,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        view.connection.execute("DELETE FROM records")


def test_closing_does_not_wait_for_an_active_reader(path: Path) -> None:
    log = SqliteLog(path)
    log.append_sync("s1", TurnStarted(1))
    with SqliteLog(path, readonly=True) as reader, reader._view() as view:
        assert view.length("s1") == 11
        # SQLite waits for a reader as long as this timeout allows.
        log._connection.execute("PRAGMA busy_timeout = 36000000")
        closing = threading.Thread(target=log.close, daemon=True)
        closing.start()
        closing.join(PATIENCE)
        assert not closing.is_alive()
        assert view.length("s1") == 11
    with SqliteLog(path) as again:
        assert len(list(again.read("s1"))) == 11


def test_missing_log_is_not_created_for_reading(tmp_path: Path) -> None:
    with pytest.raises(LogReadOnlyError, match="no log exists here"):
        SqliteLog(tmp_path / "none.db", readonly=True)
    assert list(tmp_path.iterdir()) == []


# --- group commits: records of many callers in one transaction ---------------------------------


async def test_records_of_many_callers_are_written_in_one_commit(tmp_path: Path) -> None:
    class Counting(SqliteLog):
        groups: list[int] = []

        def _write(self, drafts: Sequence[Draft]) -> list[LogRecord]:
            self.groups.append(len(drafts))
            return super()._write(drafts)

    async with Counting(tmp_path / "log.db") as log:
        await asyncio.gather(
            *[log.append(f"s{number % 7}", TurnStarted(number)) for number in range(1100)]
        )
        assert sum(log.groups) == 1100
        assert max(log.groups) <= 1024
        assert len(log.groups) < 110
        assert log.verify().records == 1100


def test_every_commit_is_synced_to_disk(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        settings = {
            name: log._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "journal_mode")
        }
    # 2 stands for FULL synchronous mode.
    assert settings == {"synchronous": 2, "journal_mode": "wal"}


# --- damaged files, and files of other programs ------------------------------------------------


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("keep", [1, 50, 100, 4096, 0.3, 0.6, 0.99])
def test_truncated_file_is_detected(path: Path, keep: float, readonly: bool) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if keep < 1 else int(keep)])
    with (
        pytest.raises(LogCorruptError, match=r"log\.db: "),
        SqliteLog(path, readonly=readonly) as log,
    ):
        list(log.read("s1"))


def test_verification_locates_a_zeroed_page_of_the_file(path: Path) -> None:
    with SqliteLog(path, readonly=True) as log:
        records = list(log.read("s1"))
    data = bytearray(path.read_bytes())
    pages = [
        data.index(bytes.fromhex(record.previous + record.hash)) // 4096 for record in records
    ]
    hole = pages[6]
    data[hole * 4096 : hole * 4096 + 4096] = bytes(4096)
    path.write_bytes(data)
    with SqliteLog(path, readonly=True) as log:
        [found] = log.verify().breaks
        assert found.session == "s1"
        assert found.problem == "unreadable"
        assert found.seq == pages.index(hole) + 1
        assert 1 < found.seq <= 7
        with pytest.raises(LogCorruptError):
            list(log.read("s1"))


def test_verify_reports_a_log_whose_sessions_cannot_be_listed(path: Path) -> None:
    find_root = "SELECT rootpage FROM sqlite_master WHERE name = 'records_chain'"
    [(root,)] = change(path, find_root)
    data = bytearray(path.read_bytes())
    data[(root - 1) * 4096 : root * 4096] = bytes(4096)
    path.write_bytes(data)
    with SqliteLog(path, readonly=True) as log:
        [found] = log.verify().breaks
        assert found.session == ""
        assert found.problem == "unreadable"
        assert str(found).startswith(f"unreadable: {path}: database disk image is malformed")
        with pytest.raises(LogCorruptError):
            log.sessions()


@pytest.mark.parametrize("readonly", [False, True])
def test_database_of_another_program_is_not_changed(tmp_path: Path, readonly: bool) -> None:
    path = tmp_path / "other.db"
    change(path, "CREATE TABLE precious (x)")
    before = path.read_bytes()
    with pytest.raises(LogCorruptError, match="is a database, and not a log of this package"):
        SqliteLog(path, readonly=readonly)
    assert path.read_bytes() == before


def test_opening_an_empty_file_creates_a_log(tmp_path: Path) -> None:
    (tmp_path / "log.db").touch()
    with SqliteLog(tmp_path / "log.db") as log:
        assert log.append_sync("s1", TurnStarted(1)).seq == 1


@pytest.mark.parametrize("readonly", [False, True])
def test_log_of_a_newer_version_is_rejected(path: Path, readonly: bool) -> None:
    change(path, "INSERT INTO schema_version VALUES (99)")
    with pytest.raises(LogVersionError, match="has version 99, but this package reads up to 1"):
        SqliteLog(path, readonly=readonly)


def test_log_of_an_older_version_is_migrated_by_its_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dragoman.log import sqlite as module

    monkeypatch.setattr(module, "_MIGRATIONS", (*module._MIGRATIONS, ("CREATE TABLE extra (x)",)))
    with pytest.raises(LogVersionError, match="older version; open it for writing once"):
        SqliteLog(path, readonly=True)
    SqliteLog(path).close()
    with SqliteLog(path, readonly=True) as log, log._view() as view:
        assert len(list(log.read("s1"))) == 10
        find = lambda statement: view.connection.execute(statement).fetchone()
        assert find("SELECT max(version) FROM schema_version") == (2,)
        assert find("SELECT count(*) FROM extra") == (0,)


def test_failed_migration_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.log import sqlite as module

    monkeypatch.setattr(
        module, "_MIGRATIONS", (*module._MIGRATIONS, ("CREATE TABLE extra (x)", "NONSENSE"))
    )
    with pytest.raises(LogError):
        SqliteLog(path)
    monkeypatch.undo()
    SqliteLog(path).close()
    assert change(path, "SELECT name FROM sqlite_master WHERE name = 'extra'") == []


# --- read-only folders and files ---------------------------------------------------------------

UNPRIVILEGED = """
import os, sys
from dragoman.log import LogError, SqliteLog
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)  # root may write everywhere
try:
    with SqliteLog(sys.argv[1], readonly=sys.argv[2] == "r") as log:
        print(len(list(log.read("s1"))), log.verify().ok)
except LogError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that any user may read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        Path(folder).chmod(0o755)


def run_unprivileged(path: Path, mode: str) -> str:
    program = [sys.executable, "-c", UNPRIVILEGED, str(path), mode]
    return subprocess.run(
        program, env=ENVIRONMENT, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_error_names_a_read_only_folder(open_folder: Path) -> None:
    path = open_folder / "log.db"
    open_folder.chmod(0o555)
    assert run_unprivileged(path, "w").startswith(
        f"LogReadOnlyError {path}.lock: cannot be created"
    )
    assert run_unprivileged(open_folder / "deeper" / "log.db", "w").startswith("LogReadOnlyError ")
    assert list(open_folder.iterdir()) == []


def test_read_only_log_file_is_readable_and_write_errors_name_it(open_folder: Path) -> None:
    path = open_folder / "log.db"
    with SqliteLog(path) as log:
        log.append_sync("s1", TurnStarted(1))
    path.chmod(0o444)
    path.with_name("log.db.lock").chmod(0o666)
    open_folder.chmod(0o555)
    assert run_unprivileged(path, "w").startswith(
        f"LogReadOnlyError {path}: cannot be opened for writing"
    )
    assert run_unprivileged(path, "r") == "1 True"


def test_log_is_readable_by_its_owner_only(path: Path) -> None:
    with SqliteLog(path) as log:
        log.append_sync("s1", TurnStarted(1))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(["log.db", "log.db-shm", "log.db-wal", "log.db.lock"], 0o600)


def test_missing_folder_is_created_and_unusual_file_names_work(tmp_path: Path) -> None:
    path = tmp_path / "a b" / "50% #1?.db"
    with SqliteLog(str(path)) as log:
        log.append_sync("s1", TurnStarted(1))
        assert log.path == path
    assert path.exists()
    with SqliteLog(path, readonly=True) as log:
        assert log.verify().records == 1


# --- removing old records from the file --------------------------------------------------------


def test_pruned_records_are_erased_from_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        for number in range(50):
            log.append_sync(
                "old",
                ToolObserved(
                    intent_id=f"tu_{number}", tool_name="bash", content="unmistakable " * 300
                ),
            )
    full = path.stat().st_size
    assert b"unmistakable" in path.read_bytes()
    with SqliteLog(path) as log:
        log.retain(timedelta(0))
        assert path.stat().st_size < full / 4
        assert not any(b"unmistakable" in file.read_bytes() for file in tmp_path.iterdir())
        assert log.verify().ok


def test_failed_pruning_removes_no_record(path: Path) -> None:
    with SqliteLog(path) as log:
        log._connection.execute(
            "CREATE TEMP TRIGGER refuse BEFORE INSERT ON main.records BEGIN SELECT raise(ABORT, "
            "'no'); END"
        )
        with pytest.raises(LogError):
            log.retain(timedelta(0))
        assert len(list(log.read("s1"))) == 10
        log._connection.execute("DROP TRIGGER refuse")
        assert log.append_sync("s1", TurnStarted(1)).seq == 11


def test_open_log_accepts_paths_and_urls(path: Path, tmp_path: Path) -> None:
    with open_log(path) as log:
        assert isinstance(log, SqliteLog)
        assert repr(log) == f"SqliteLog({str(path)!r})"
    with open_log(str(path), readonly=True) as log:
        assert log.verify().records == 10
    with pytest.raises(LogStorageError, match="The server failed or cannot be reached"):
        open_log(f"postgresql://user@/nowhere?host={tmp_path}")


def test_deleted_lock_file_does_not_admit_a_second_writer(path: Path) -> None:
    lock = path.with_name("log.db.lock")
    first = SqliteLog(path)
    first.append_sync("s1", TurnStarted(1))
    lock.unlink()
    first.append_sync("s1", TurnStarted(2))  # the first log takes the lock again
    with pytest.raises(LogLockedError, match=f"by process {os.getpid()}"):
        SqliteLog(path)
    lock.unlink()
    with SqliteLog(path) as second:
        assert second.append_sync("s1", TurnStarted(3)).seq == 13
        for _ in range(2):
            with pytest.raises(LogLockedError, match="is being written"):
                first.append_sync("s1", TurnStarted(4))
    # The second log has been closed, so the first can write again.
    assert first.append_sync("s1", TurnStarted(4)).seq == 14
    assert first.verify().ok
    first.close()


def test_file_with_hard_links_is_not_written(path: Path) -> None:
    SqliteLog(path).close()
    other = path.with_name("other.db")
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(LogLockedError, match="has 2 names"):
            SqliteLog(name)
        with SqliteLog(name, readonly=True) as log:
            assert log.verify().ok
    other.unlink()
    SqliteLog(path).close()


def test_full_disk_is_reported_on_opening(tmp_path: Path) -> None:
    """Create a log on a small disk, fill the disk, and open the log again."""
    program = (
        "import sys; from dragoman.log import *\n"
        "with open_log(sys.argv[1]) as log: log.append_sync('s', TurnStarted(1))\n"
        "try:\n"
        "    with open(sys.argv[1] + '.fill', 'wb', buffering=0) as file:\n"
        "        while True: file.write(bytes(512))\n"
        "except OSError: pass\n"
        "try: open_log(sys.argv[1])\n"
        "except LogError as error: print(type(error).__name__, error)\n"
    )
    command = [*on_small_disk(tmp_path), sys.executable, "-c", program, str(tmp_path / "log.db")]
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    if result.returncode == 77:
        pytest.skip("mounting is not allowed here")
    assert result.stdout.startswith("LogFullError "), result.stdout + result.stderr
    assert "free some space" in result.stdout
