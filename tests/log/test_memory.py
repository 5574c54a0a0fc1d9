"""Test that the in-memory log gives the guarantees of the other stores."""

import io
from datetime import timedelta
from pathlib import Path

import pytest

from dragoman import log as logs


def filled() -> logs.MemoryLog:
    log = logs.MemoryLog()
    for session in ("b", "a"):
        log.append_sync(session, logs.SessionStarted(f"goal of {session}"))
        log.append_sync(session, logs.TurnStarted(1))
    return log


async def test_records_are_chained_and_read() -> None:
    log = filled()
    last = await log.append("a", logs.SessionFinished("completed", None, 1), expected=2)
    assert last.seq == 3
    assert [record.seq for record in log.read("a", 1)] == [2, 3]
    assert [entry.session for entry in log.sessions()] == ["a", "b"]
    assert [record.session for record in log.find("turn.started")] == ["a", "b"]
    assert [record.session for record in log.search("GOAL of b")] == ["b"]
    assert log.verify().ok
    assert (log.verify().sessions, log.verify().records) == (2, 5)


async def test_append_with_a_wrong_expected_position_writes_nothing() -> None:
    log = filled()
    with pytest.raises(logs.LogConflictError):
        await log.append("a", logs.TurnStarted(2), expected=7)
    with pytest.raises(logs.InvalidRecordError):
        await log.append("dragoman.log", logs.TurnStarted(2))
    assert len(list(log.read("a"))) == 2


def test_memory_log_is_exported_and_imported(tmp_path: Path) -> None:
    log = filled()
    with logs.SqliteLog(tmp_path / "log.db") as file:
        assert file.restore(log) == 4
        again = logs.MemoryLog()
        assert again.restore(file) == 4
    first, second = io.BytesIO(), io.BytesIO()
    assert log.export(first) == again.export(second) == 4
    assert first.getvalue() == second.getvalue()
    again.append_sync("a", logs.TurnStarted(2))
    assert again.verify().ok


def test_removal_of_old_sessions_is_recorded() -> None:
    log = filled()
    assert {gone.session for gone in log.retain(timedelta(0))} == {"a", "b"}
    assert [entry.session for entry in log.sessions()] == ["dragoman.log"]
    assert log.append_sync("a", logs.TurnStarted(1)).seq == 1
    assert log.verify().ok


def test_closed_log_rejects_records() -> None:
    with filled() as log:
        assert repr(log) == "MemoryLog()"
    with pytest.raises(logs.LogClosedError):
        log.append_sync("a", logs.TurnStarted(2))
    with pytest.raises(logs.LogClosedError):
        log.sessions()
