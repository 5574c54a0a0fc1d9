"""Test that ``verify`` names the affected record after any change to the stored data."""

import os
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dragoman.log import (
    ChainReport,
    LogCorruptError,
    LogError,
    LogRecord,
    PostgresLog,
    SessionStarted,
    SqliteLog,
    TurnStarted,
)
from dragoman.log.chain import check_log
from dragoman.log.record import Draft, Head, link_record, to_row
from tests.rows import read_table

# The number of bits of the file to flip, one in each copy.
FLIPS = int(
    os.environ.get("DRAGOMAN_LOG_FLIPS", "500" if os.environ.get("DRAGOMAN_EXHAUSTIVE") else "50")
)
NUMBER = 20
CHANGED = 7  # the number of the record that the tests change or delete

# Each entry: the column of the record to change, and an SQL expression for its new value.
CHANGES = read_table("changed_records")


def fill(log: SqliteLog | PostgresLog) -> list[LogRecord]:
    for session in ("a", "b", "c"):
        log.append_sync(session, SessionStarted(goal="g" * 40))
        for number in range(1, NUMBER):
            log.append_sync(session, TurnStarted(number), turn="t1", parent="p1")
    return list(log.read("b"))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[LogRecord]]:
    """Return the path of a closed log, and the records of its second session."""
    path = tmp_path_factory.mktemp("log") / "log.db"
    with SqliteLog(path) as log:
        records = fill(log)
    return path, records


@pytest.fixture
def path(original: tuple[Path, list[LogRecord]], tmp_path: Path) -> Path:
    return Path(shutil.copy(original[0], tmp_path / "log.db"))


@pytest.fixture
def records(original: tuple[Path, list[LogRecord]]) -> list[LogRecord]:
    return original[1]


def run(path: Path, *statements: str | tuple[str, tuple[object, ...]]) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        sql, parameters = (statement, ()) if isinstance(statement, str) else statement
        assert connection.execute(sql, parameters).rowcount > 0
    connection.commit()
    connection.close()


def verify(path: Path) -> ChainReport:
    with SqliteLog(path, readonly=True) as log:
        return log.verify()


def test_log_without_changes_passes_verification(path: Path) -> None:
    assert verify(path) == ChainReport(sessions=3, records=3 * NUMBER)


@pytest.mark.parametrize(
    ("column", "value"), [*CHANGES, ("previous", "zeroblob(32)"), ("hash", "zeroblob(32)")]
)
def test_a_changed_column_is_reported_as_a_hash_mismatch_of_its_record(
    path: Path, records: list[LogRecord], column: str, value: str
) -> None:
    run(path, f"UPDATE records SET {column} = {value} WHERE session = 'b' AND seq = {CHANGED}")
    report = verify(path)
    assert [(found.session, found.seq, found.problem) for found in report.breaks] == [
        ("b", CHANGED, "hash mismatch")
    ]
    if column != "id":
        assert report.breaks[0].id == records[CHANGED - 1].id
    assert report.records == 2 * NUMBER + CHANGED - 1
    assert str(report.first).startswith(f"session b, record {CHANGED}, ")


@pytest.mark.parametrize(
    ("column", "value"), read_table("verification_locates_a_record_with_an_unreadable_value")
)
def test_verification_locates_a_record_with_an_unreadable_value(
    path: Path, column: str, value: str
) -> None:
    run(path, f"UPDATE records SET {column} = {value} WHERE session = 'b' AND seq = {CHANGED}")
    [found] = verify(path).breaks
    assert found.session == "b"
    assert found.seq == CHANGED
    assert found.problem in ("unreadable", "hash mismatch")
    str(found).encode()  # the error text can be encoded and printed


def test_a_deleted_record_is_reported_as_a_gap(path: Path, records: list[LogRecord]) -> None:
    run(path, f"DELETE FROM records WHERE session = 'b' AND seq = {CHANGED}")
    [found] = verify(path).breaks
    assert found.session == "b"
    assert found.seq == CHANGED
    assert found.problem == "gap"
    # The deleted record has no id to report, so the id is that of the record after the gap.
    assert found.id == records[CHANGED].id
    with (
        SqliteLog(path) as log,
        pytest.raises(LogCorruptError, match=f"'b': record {CHANGED} is missing"),
    ):
        list(log.read("b"))


ONE = f"WHERE session = 'b' AND seq = {CHANGED}"


@pytest.mark.parametrize(
    ("change", "session", "seq", "problem"),
    [
        *[(f"seq = {seq} {ONE}", "b", CHANGED, "gap") for seq in (0, -5, 1000, 1 << 60)],
        ("session = 'x' WHERE session = 'b'", "x", 1, "hash mismatch"),
        ("session = CAST(session AS BLOB) WHERE session = 'b'", "", 0, "unreadable"),
    ],
)
def test_changed_number_or_session_of_a_record_is_detected(
    path: Path, change: str, session: str, seq: int, problem: str
) -> None:
    run(path, f"UPDATE records SET {change}")
    [found] = verify(path).breaks
    assert found.session == session
    assert found.seq == seq
    assert found.problem == problem


@pytest.mark.parametrize("name", ["CAST(session AS BLOB)", "x'ff00'"])
@pytest.mark.parametrize(
    "look",
    [
        lambda log: log.sessions(),
        lambda log: list(log.find("session.started")),
        lambda log: list(log.search("g")),
    ],
)
def test_name_of_another_type_is_reported_as_damage(path: Path, name: str, look: Any) -> None:
    run(path, f"UPDATE records SET session = {name} WHERE session = 'b'")
    with (
        SqliteLog(path, readonly=True) as log,
        pytest.raises(LogCorruptError, match="the name of a session is damaged"),
    ):
        look(log)


@pytest.mark.parametrize("session", ["'d'", "CAST(x'61ff' AS TEXT)"])
def test_record_moved_to_another_session_is_reported_there_too(
    path: Path, records: list[LogRecord], session: str
) -> None:
    run(path, f"UPDATE records SET session = {session} WHERE session = 'b' AND seq = {CHANGED}")
    breaks = {found.session: found for found in verify(path).breaks}
    assert breaks["b"].seq == CHANGED
    assert breaks["b"].problem == "gap"
    [stray] = [found for name, found in breaks.items() if name != "b"]
    assert stray.seq == 1
    assert stray.problem == "gap"
    assert stray.id == records[CHANGED - 1].id
    str(stray).encode()


def test_replaced_record_with_a_valid_hash_breaks_the_next_link(
    path: Path, records: list[LogRecord]
) -> None:
    before = records[CHANGED - 2]
    draft = Draft("b", "t1", "p1", "turn.started", "system", "private", b'{"number":666}')
    forged = link_record(draft, Head(before.seq, before.hash))
    row = to_row(forged)
    run(
        path,
        f"DELETE FROM records WHERE session = 'b' AND seq = {CHANGED}",
        (f"INSERT INTO records VALUES ({', '.join('?' * 12)})", row),
    )
    [found] = verify(path).breaks
    assert found.session == "b"
    assert found.seq == CHANGED + 1
    assert found.problem == "wrong previous"
    assert f"does not follow from record {CHANGED}" in found.detail


def test_record_that_is_missing_from_the_index_is_detected(path: Path) -> None:
    """Verify the log as if one of its three sessions were missing from the index."""
    with (
        SqliteLog(path, readonly=True) as log,
        log._view() as view,  # noqa: SLF001
    ):
        whole = check_log(view.names, view.page, view.count, {})
        short = check_log(lambda: ["a", "b"], view.page, view.count, {})
    assert whole.ok
    assert [(found.session, found.problem) for found in short.breaks] == [("", "unreadable")]
    assert "60 records are stored and only 40" in str(short)


def check_flip(
    original: Path, expected: dict[str, list[LogRecord]], folder: Path, bit: int
) -> str:
    """Flip one bit of the file; assert that verification detects this or that no record has
    changed.
    """
    data = bytearray(original.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path = folder / "flipped.db"
    path.write_bytes(data)
    try:
        with SqliteLog(path, readonly=True) as log:
            if not (report := log.verify()).ok:
                for found in report.breaks:
                    assert found.problem in (
                        "hash mismatch", "gap", "wrong previous", "unreadable",
                    )  # fmt: skip
                return "found"
            assert {
                entry.session: list(log.read(entry.session)) for entry in log.sessions()
            } == expected
            return "harmless"
    except LogError:
        return "refused"
    finally:
        for leftover in folder.glob("flipped.db*"):
            leftover.unlink()


@pytest.mark.exhaustive
def test_every_flipped_bit_that_changes_a_record_is_detected(
    original: tuple[Path, list[LogRecord]], tmp_path: Path
) -> None:
    draw = random.Random(11)
    bits = original[0].stat().st_size * 8
    with SqliteLog(original[0], readonly=True) as log:
        expected = {name: list(log.read(name)) for name in "abc"}
    outcomes = {
        check_flip(original[0], expected, tmp_path, draw.randrange(bits)) for _ in range(FLIPS)
    }
    assert outcomes >= {"found", "harmless"}


def test_postgres_log_detects_changed_records(conninfo: str) -> None:
    with PostgresLog(conninfo) as log, psycopg.connect(conninfo, autocommit=True) as connection:
        records = fill(log)
        connection.execute("CREATE TABLE untouched AS SELECT * FROM dragoman_log")
        for column, value in CHANGES:
            sql = (
                f"UPDATE dragoman_log SET {column} = {value} WHERE session = 'b' AND seq = "
                f"{CHANGED}"
            )
            assert connection.execute(sql).rowcount == 1  # type: ignore[arg-type]
            [found] = log.verify().breaks
            assert found.session == "b", column
            assert found.seq == CHANGED, column
            assert found.problem == "hash mismatch", column
            assert column == "id" or found.id == records[CHANGED - 1].id
            connection.execute("TRUNCATE dragoman_log")
            connection.execute("INSERT INTO dragoman_log SELECT * FROM untouched")
        connection.execute("DELETE FROM dragoman_log WHERE session = 'b' AND seq = 7")
        [found] = log.verify().breaks
        assert found.session == "b"
        assert found.seq == CHANGED
        assert found.problem == "gap"
        assert found.id == records[CHANGED].id
