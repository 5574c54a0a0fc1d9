"""Test that erased content is gone, and that the log can still be verified."""

import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman as d
from dragoman.log import (
    ADMINISTRATION,
    EventLog,
    ExportedLog,
    InvalidRecordError,
    LogErased,
    MemoryLog,
    MessageRecorded,
    RecordErased,
    SessionStarted,
    SqliteLog,
    TurnStarted,
    hash_record,
)
from dragoman.session import SessionError

from ..listed import Listed
from .children import ENVIRONMENT

PROGRAM = Path(__file__).with_name("erasing_process.py")
KILLS = 40 if os.environ.get("DRAGOMAN_EXHAUSTIVE") else 3
SECRET = "the patient is called Ada"


def fill(log: EventLog) -> None:
    log.append_sync("s", SessionStarted(goal="Help."))
    log.append_sync("s", MessageRecorded(message=d.User(SECRET)))
    log.append_sync("s", TurnStarted(1))


def test_erased_record_keeps_its_place_and_hash(store: EventLog) -> None:
    fill(store)
    before = list(store.read("s"))
    done = store.erase("s", [2], reason="on request")
    after = list(store.read("s"))
    assert [record.hash for record in after] == [record.hash for record in before]
    assert after[1].payload == RecordErased(was="message.recorded")
    assert after[1].timestamp == before[1].timestamp
    assert [after[0], after[2]] == [before[0], before[2]]
    assert done.hashes == (before[1].hash,)
    assert [record.payload for record in store.read(ADMINISTRATION)] == [done]
    assert not list(store.search("Ada"))
    report = store.verify()
    assert report.ok
    assert report.erased == 1
    assert str(report) == "4 records in 2 sessions: whole, with the content of 1 erased"
    assert store.verify("s").ok


def test_session_goes_on_after_an_erasure(store: EventLog) -> None:
    fill(store)
    store.erase("s", [1, 2, 3])
    store.append_sync("s", TurnStarted(2))
    assert store.verify().ok
    assert [record.seq for record in store.read("s")] == [1, 2, 3, 4]


def test_erasing_again_changes_nothing(store: EventLog) -> None:
    fill(store)
    store.erase("s", [2])
    again = store.erase("s", [2])
    assert again.numbers == ()
    assert len(list(store.read(ADMINISTRATION))) == 1


@pytest.mark.parametrize(
    ("session", "numbers", "complaint"),
    [
        ("s", [4], "session 's' has no record 4"),
        ("s", [0], "session 's' has no record 0"),
        ("none", [1], "session 'none' has no record 1"),
        (ADMINISTRATION, [1], "cannot be erased"),
    ],
)
def test_records_that_cannot_be_erased_are_named(
    store: EventLog, session: str, numbers: list[int], complaint: str
) -> None:
    fill(store)
    with pytest.raises(InvalidRecordError, match=complaint):
        store.erase(session, [*numbers, 1])
    assert store.verify().erased == 0


def test_record_that_only_looks_erased_is_a_broken_link(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        fill(log)
        log.erase("s", [1])
    with sqlite3.connect(path) as database:
        erased = database.execute("SELECT type, payload FROM records WHERE seq = 1").fetchone()
        change = "UPDATE records SET type = ?, payload = ? WHERE session = 's' AND seq = 2"
        database.execute(change, erased)
    database.close()
    with SqliteLog(path, readonly=True) as log:
        report = log.verify()
    assert [(found.seq, found.problem) for found in report.breaks] == [(2, "hash mismatch")]


def test_content_is_overwritten_on_disk(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        fill(log)
        log.erase("s", [2])
        stored = b"".join([path.read_bytes() for path in tmp_path.iterdir()])
    assert b"turn.started" in stored
    assert SECRET.encode() not in stored


@pytest.mark.exhaustive
def test_killed_erasures_lose_nothing_else_and_leave_a_whole_log(tmp_path: Path) -> None:
    """A record is erased and named in the account of the log, or neither."""
    draw = random.Random(58)
    place = tmp_path / "log.db"
    count = 40 * KILLS
    with SqliteLog(place) as log:
        for number in range(1, count + 1):
            log.append_sync("s", MessageRecorded(message=d.User(f"text {number}")))
        before = [record.hash for record in log.read("s")]
    gone = 0
    for _ in range(KILLS):
        begun = gone
        command = [sys.executable, str(PROGRAM), str(place), str(gone + 1), str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
            assert process.stdout is not None
            for _ in range(draw.randrange(1, 20)):
                gone = int(process.stdout.readline())
            process.kill()
            rest = process.stdout.read().splitlines()
        gone = int(rest[-1]) if rest else gone
        assert gone > begun
        with SqliteLog(place) as log:
            assert log.verify().ok
            records = list(log.read("s"))
            assert [record.hash for record in records] == before
            erased = {record.seq for record in records if record.type == RecordErased.type}
            # the erasure after the last acknowledged one may have been done too
            assert erased in ({*range(1, gone + 1)}, {*range(1, gone + 2)})
            accounts = [each.payload for each in log.read(ADMINISTRATION)]
            named = [each.numbers for each in accounts if isinstance(each, LogErased)]
            assert named == [(number,) for number in sorted(erased)]
            gone = max(erased)


@pytest.mark.parametrize("number", [0, -1, 4, 2**63, 10**400])
def test_number_without_a_record_is_refused_and_the_log_goes_on(
    store: EventLog, number: int
) -> None:
    fill(store)
    with pytest.raises(InvalidRecordError, match="has no record"):
        store.erase("s", [number])
    store.append_sync("s", TurnStarted(2))
    assert store.verify().ok


def test_only_the_log_writes_records_about_erasure(store: EventLog) -> None:
    with pytest.raises(InvalidRecordError, match="only the log itself erases records"):
        store.append_sync("s", RecordErased(was="turn.started"))


def test_exported_and_imported_logs_can_be_verified_after_an_erasure(tmp_path: Path) -> None:
    with MemoryLog() as log, MemoryLog() as copy:
        fill(log)
        log.erase("s", [2])
        log.export(tmp_path / "all.jsonl")
        log.export(tmp_path / "one.jsonl", "s")
        assert SECRET not in (tmp_path / "all.jsonl").read_text("utf-8")
        for name in ("all", "one"):
            with ExportedLog(tmp_path / f"{name}.jsonl") as exported:
                report = exported.verify()
                assert report.ok, name
                assert report.erased == 1, name
        copy.restore(log)
        assert copy.verify().ok
        assert copy.verify().erased == 1
        assert hash_record(next(copy.read("s", 1))) != next(copy.read("s", 1)).hash


async def test_session_with_erased_records_cannot_be_resumed() -> None:
    with MemoryLog() as log:
        session = d.Session(Listed("Done."), [], d.Policy([]), log)
        await session.run("Go.")
        log.erase(session.id, [1])
        with pytest.raises(SessionError, match="the content of 1 of its records was erased"):
            await d.Session.resume(Listed("Done."), [], d.Policy([]), log, session.id)
