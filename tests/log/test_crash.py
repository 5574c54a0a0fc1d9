"""Test that killed writers, full disks and failed group commits lose no acknowledged record and
keep the chain intact.
"""

# ruff: noqa: SLF001 - a page limit on the log's private SQLite connection simulates a full disk

import os
import random
import subprocess
from pathlib import Path

import pytest

from dragoman.log import (
    EventLog,
    LogFullError,
    LogStorageError,
    SqliteLog,
    ToolObserved,
    TurnStarted,
    open_log,
)
from dragoman.log.record import draft_record

from ..waiting import PATIENCE
from .children import killing, on_small_disk, start

# The number of writers to kill, of a file and of a database.
KILLS = (400, 400) if os.environ.get("DRAGOMAN_EXHAUSTIVE") else (10, 2)


def check(log: EventLog, acknowledged: list[str]) -> None:
    held = {
        (record.session, record.seq): record.hash
        for name in ("s0", "s1", "s2")
        for record in log.read(name)
    }
    for line in acknowledged:
        session, seq, digest = line.split()
        assert held[session, int(seq)] == digest
    report = log.verify()
    assert report.ok, str(report)
    assert report.records == len(held)


def kill_again_and_again(where: str, kills: int) -> None:
    draw = random.Random(kills)
    acknowledged: list[str] = []
    with killing(where) as kill_after:
        for left in reversed(range(kills)):
            acknowledged += kill_after(draw.randrange(1, 60), draw.choice([1, 8]))
            with open_log(where) as log:
                if left % 20 < 2:  # reading the log takes longer than killing its writer
                    check(log, acknowledged)
                # This process continues the chain of the killed writer.
                record = log.append_sync("s0", TurnStarted(1))
                acknowledged.append(f"{record.session} {record.seq} {record.hash}")
    assert len(acknowledged) > 2 * kills


@pytest.mark.exhaustive
def test_killing_the_writer_loses_no_acknowledged_record(tmp_path: Path) -> None:
    kill_again_and_again(str(tmp_path / "log.db"), KILLS[0])


@pytest.mark.exhaustive
def test_killing_a_postgres_writer_loses_no_acknowledged_record(address: str) -> None:
    kill_again_and_again(address, KILLS[1])


def test_log_of_a_killed_writer_is_readable_without_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with killing(str(path)) as kill_after:
        acknowledged = kill_after(20, 4)
    assert path.with_name("log.db-wal").stat().st_size > 0
    with SqliteLog(path, readonly=True) as log:
        check(log, acknowledged)


# --- writing to a full disk --------------------------------------------------------------------


def run_out_of_room(process: subprocess.Popen[str]) -> tuple[list[str], list[str]]:
    """Run a writer until its disk is full; return its acknowledgements and its errors."""
    output, _ = process.communicate(timeout=PATIENCE)
    if process.returncode == 77:
        pytest.skip("mounting is not allowed here")
    assert process.returncode == 0
    lines = output.splitlines()[1:]
    failed = [line for line in lines if line.startswith("!")]
    assert len(failed) == 4  # each of the four threads got the error
    acknowledged = [line for line in lines if not line.startswith("!")]
    assert len(acknowledged) > 10
    return acknowledged, failed


def test_no_acknowledged_record_is_lost_at_the_file_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    acknowledged, failed = run_out_of_room(start(str(path), "4", limit=300_000))
    assert {line.split()[1] for line in failed} <= {"LogStorageError", "LogFullError"}
    with SqliteLog(path) as log:
        check(log, acknowledged)
        assert log.append_sync("s0", TurnStarted(1)).seq > 1


def test_no_acknowledged_record_is_lost_on_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    out = tmp_path / "disk.out"
    disk.mkdir()
    out.mkdir()
    prefix = on_small_disk(disk, ' || exit 1; cp "$0"/log.db* "$0.out"')
    process = start(str(disk / "log.db"), "4", prefix=prefix)
    acknowledged, failed = run_out_of_room(process)
    assert all(
        "LogFullError" in line and "free some space and append again" in line for line in failed
    )
    with SqliteLog(out / "log.db") as log:
        check(log, acknowledged)


def test_appending_works_again_once_the_disk_has_space(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log._connection.execute("PRAGMA max_page_count = 20")
        acknowledged: list[str] = []

        def append_until_full() -> None:
            while len(acknowledged) < 100:
                record = log.append_sync(
                    "s0", ToolObserved(intent_id="tu", tool_name="bash", content="x" * 2000)
                )
                acknowledged.append(f"{record.session} {record.seq} {record.hash}")

        with pytest.raises(LogFullError, match="free some space and append again") as caught:
            append_until_full()
        assert "SQLITE_FULL" in str(caught.value)
        assert len(acknowledged) > 5
        with pytest.raises(LogFullError):
            log.append_sync(
                "s1", ToolObserved(intent_id="tu", tool_name="bash", content="x" * 2000)
            )
        check(log, acknowledged)
        log._connection.execute("PRAGMA max_page_count = 10000")
        assert log.append_sync("s0", TurnStarted(1)).seq == len(acknowledged) + 1
        assert log.verify().ok


def test_failed_group_commit_stores_no_record(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.append_sync("s0", TurnStarted(0))
        log._connection.execute("PRAGMA max_page_count = 20")
        drafts = [
            draft_record("s0", ToolObserved(intent_id="tu", tool_name="bash", content="x" * 2000))
            for _ in range(60)
        ]
        futures = [future for _, future in [log._offer(draft) for draft in drafts]]
        outcomes = [future.exception() for future in futures]
        written = sum(outcome is None for outcome in outcomes)
        assert len(list(log.read("s0"))) == 1 + written
        # A group fails as a whole, so a later and smaller group may still fit.
        failed = [outcome for outcome in outcomes if outcome is not None]
        assert failed
        assert all(isinstance(outcome, LogFullError) for outcome in failed)
        # each append raises its own error
        assert len({id(outcome) for outcome in failed}) == len(failed)


# --- deleted and replaced log files ------------------------------------------------------------


@pytest.mark.parametrize("replace", [False, True])
def test_log_with_a_deleted_file_reports_failed_writes(tmp_path: Path, replace: bool) -> None:
    path = tmp_path / "log.db"
    log = SqliteLog(path)
    log.append_sync("s0", TurnStarted(1))
    path.rename(tmp_path / "moved.db")
    if replace:
        path.write_bytes(b"")
    with pytest.raises(LogStorageError, match="was moved or deleted"):
        log.append_sync("s0", TurnStarted(2))
    if not replace:
        (tmp_path / "moved.db").rename(path)
    with pytest.raises(
        LogStorageError, match=r"stopped writing after an earlier failure: .*was moved"
    ):
        log.append_sync("s0", TurnStarted(2))
    log.close()
