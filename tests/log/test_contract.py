"""Test the guarantees of an event log with every store."""

# ruff: noqa: SLF001 - these tests bypass the API to write records that it refuses

import asyncio
import hashlib
import io
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.log import (
    ADMINISTRATION,
    MAX_PAYLOAD,
    EventLog,
    ExportedLog,
    InvalidRecordError,
    LogClosedError,
    LogCorruptError,
    LogLockedError,
    LogPruned,
    LogReadOnlyError,
    LogRecord,
    SessionStarted,
    SqliteLog,
    ToolStarted,
    TurnStarted,
    genesis,
    hash_record,
)
from dragoman.log.eventlog import restore_records
from dragoman.log.record import Draft, draft_record
from tests.rows import read_table

from ..waiting import arrival
from .samples import OF_THE_LOG, SAMPLES, WRITABLE, payloads

Open = Callable[..., EventLog]


# --- writing and reading records ---------------------------------------------------------------


async def test_records_are_read_after_reopening(open_store: Open) -> None:
    before = datetime.now(UTC)
    async with open_store() as log:
        written = [await log.append("s1", WRITABLE[0])]
        for payload in WRITABLE[1:]:
            written.append(await log.append("s1", payload, turn="t1", parent=written[-1].id))
    log = open_store()
    read = list(log.read("s1"))
    assert read == written
    assert [record.payload for record in read] == WRITABLE
    assert [record.seq for record in read] == list(range(1, len(WRITABLE) + 1))
    assert [record.parent for record in read] == [None, *[record.id for record in read[:-1]]]
    assert [record.turn for record in read] == [None] + ["t1"] * (len(read) - 1)
    assert [(record.type, record.actor, record.sensitivity) for record in read] == [
        (kind, actor, sensitivity)
        for kind, _, actor, sensitivity in SAMPLES
        if kind not in OF_THE_LOG
    ]
    assert before <= read[0].timestamp <= read[-1].timestamp <= datetime.now(UTC)
    assert [record.id for record in read] == sorted(record.id for record in read)


def test_actor_and_sensitivity_can_be_set(store: EventLog) -> None:
    store.append_sync("s1", TurnStarted(1), actor="worker", sensitivity="aggregatable")
    [record] = store.read("s1")
    assert record.actor == "worker"
    assert record.sensitivity == "aggregatable"


PRUNED = LogPruned(
    session="s", records=1, first_id="a", last_id="b", head="c", before=datetime.now(UTC)
)
LONG = ToolStarted("i", "t", {"x": "x" * MAX_PAYLOAD})
INVALID = [
    *read_table("invalid_record_fields"),
    ({"session": "x" * 256}, "session: must be"),
    ({"session": ADMINISTRATION}, "session: "),
    ({"payload": PRUNED}, "session: "),
    ({"session": ADMINISTRATION, "payload": PRUNED}, "session: only the log itself"),
    ({"payload": LONG}, "payload of tool.started: 67108"),
]


@pytest.mark.parametrize(("facts", "complaint"), INVALID)
def test_invalid_values_are_rejected_and_nothing_is_written(
    tmp_path: Path, facts: dict[str, Any], complaint: str
) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        with pytest.raises(InvalidRecordError) as caught:
            log.append_sync(**{"session": "s1", "payload": TurnStarted(1), **facts})
        assert str(caught.value).startswith(complaint)
        assert log.sessions() == ()


def test_reading_can_start_after_a_given_record(store: EventLog) -> None:
    for number in range(5):
        store.append_sync("s1", TurnStarted(number))
    assert [record.seq for record in store.read("s1", after=3)] == [4, 5]
    assert [record.seq for record in store.read("s1", after=-1)] == [1, 2, 3, 4, 5]
    assert list(store.read("s1", after=5)) == []
    assert list(store.read("none")) == []


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read logs in pages of 50 records, so that few records make several pages."""
    for module in ("eventlog", "chain", "removal", "view"):
        monkeypatch.setattr(f"dragoman.log.{module}._PAGE", 50)


@pytest.mark.usefixtures("small_pages")
async def test_a_long_session_is_read_in_pages(store: EventLog) -> None:
    await asyncio.gather(*[store.append("s1", TurnStarted(number)) for number in range(123)])
    reading = store.read("s1")
    first = next(reading)
    await store.append("s1", TurnStarted(9999))
    rest = list(reading)
    # Reading ends at the record that was the last one when reading began.
    assert [record.seq for record in (first, *rest)] == list(range(1, 124))
    assert store.verify().records == 124


def test_sessions_are_listed_with_their_first_and_last_records(store: EventLog) -> None:
    first = store.append_sync("b", TurnStarted(1))
    last = store.append_sync("b", TurnStarted(2))
    only = store.append_sync("a", TurnStarted(1))
    found = store.sessions()
    assert [
        (each.session, each.records, each.first_id, each.last_id, each.head) for each in found
    ] == [
        ("a", 1, only.id, only.id, only.hash),
        ("b", 2, first.id, last.id, last.hash),
    ]
    assert found[1].started == first.timestamp
    assert found[1].updated == last.timestamp


def test_record_of_an_unknown_type_is_read_and_verified(store: EventLog) -> None:
    # Write a record type that only a newer version knows.
    data = b'{"shiny":[1,{"new":null}]}'
    store._write([Draft("s1", None, None, "future.event", "worker", "private", data)])
    store.append_sync("s1", TurnStarted(1))
    strange, known = store.read("s1")
    assert strange.type == "future.event"
    assert strange.payload == strange.data == {"shiny": [1, {"new": None}]}
    assert known.payload == TurnStarted(1)
    assert store.verify().ok


def test_unknown_field_of_a_stored_record_is_kept(store: EventLog) -> None:
    data = b'{"colour":"red","number":1}'
    store._write([Draft("s1", None, None, "turn.started", "system", "private", data)])
    [record] = store.read("s1")
    assert record.payload == TurnStarted(1)
    assert record.data == {"colour": "red", "number": 1}
    assert b'"payload":{"colour":"red","number":1}' in record.line


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(appends=st.lists(st.tuples(st.sampled_from(["a", "b", "é日本 c"]), payloads), max_size=12))
def test_appended_records_are_read_in_order(
    open_store: Open, appends: list[tuple[str, Any]]
) -> None:
    log = open_store()
    lengths = {entry.session: entry.records for entry in log.sessions()}
    written: dict[str, list[Any]] = {}
    for session, payload in appends:
        written.setdefault(session, []).append(payload)
        log.append_sync(session, payload)
    for session, expected in written.items():
        assert [
            record.payload for record in log.read(session, after=lengths.get(session, 0))
        ] == expected
    report = log.verify()
    assert report.ok
    assert report.records == sum(lengths.values()) + len(appends)
    log.close()


# --- concurrent writers of a session -----------------------------------------------------------


async def test_concurrent_threads_and_tasks_append_without_gaps(store: EventLog) -> None:

    def write() -> None:
        for number in range(25):
            store.append_sync("s1", TurnStarted(number))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    records = await asyncio.gather(
        *[store.append("s1", TurnStarted(number)) for number in range(200)]
    )
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    assert len({record.seq for record in records}) == 200
    assert [record.seq for record in store.read("s1")] == list(range(1, 401))
    assert store.verify().ok


async def test_a_cancelled_append_is_still_written(store: EventLog) -> None:
    task = asyncio.create_task(store.append("s1", TurnStarted(1)))
    await asyncio.sleep(0)  # let the writer thread receive the record
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await arrival(store.append("s1", TurnStarted(2)), "the second record")
    assert [record.payload for record in store.read("s1")] == [TurnStarted(1), TurnStarted(2)]


# --- the hash chain of the records -------------------------------------------------------------


def test_exported_chain_can_be_verified_with_only_a_hash_function(store: EventLog) -> None:
    for session in ("b", "a"):
        for payload in WRITABLE:
            store.append_sync(session, payload, turn="t1")
    stream = io.BytesIO()
    assert store.export(stream) == 2 * len(WRITABLE)
    assert store.export(io.BytesIO(), "a") == len(WRITABLE)
    previous = {
        name: hashlib.sha256(b"dragoman.log/1 " + name.encode()).hexdigest() for name in ("a", "b")
    }
    seen = []
    for line in stream.getvalue().splitlines():
        record = json.loads(line)
        assert list(record) == sorted(record)
        assert list(record["payload"]) == sorted(record["payload"])
        unhashed = re.sub(rb'"hash":"[0-9a-f]{64}",', b"", line, count=1)
        assert hashlib.sha256(unhashed).hexdigest() == record["hash"]
        assert record["previous"] == previous[record["session"]]
        previous[record["session"]] = record["hash"]
        seen.append((record["session"], record["seq"]))
    assert seen == [
        (session, seq) for session in ("a", "b") for seq in range(1, len(WRITABLE) + 1)
    ]


def test_bytes_of_a_record_match_format_version_one() -> None:
    """If the encoding of a record changed by one byte, every existing log would become invalid."""
    record = LogRecord(
        actor="agent",
        hash="",
        id="01M7EJSHEJRBEPVWKBS3Y5E4R0",
        parent=None,
        raw=msgspec.Raw(b'{"number":1,"model":"\xc3\xa9/\\u0000"}'),
        previous=genesis('s"1é'),
        sensitivity="private",
        seq=1,
        session='s"1é',
        timestamp=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        turn="t1",
        type="turn.started",
    )
    record = msgspec.structs.replace(record, hash=hash_record(record))
    assert (
        record.line.decode()
        == '{"actor":"agent","hash":"c541d0a99fe1535553a53429341da670ea71af4d39554e820babca8fffc3a945",'
        '"id":"01M7EJSHEJRBEPVWKBS3Y5E4R0","parent":null,"payload":{"number":1,"model":"é/\\u0000"},'
        '"previous":"14739dbf827b3050d95f8f763b2a1a34ab5fd37ec927d94878f96d2493fe1375",'
        '"sensitivity":"private","seq":1,"session":"s\\"1é","timestamp":"2026-01-02T03:04:05.000000Z","turn":"t1",'
        '"type":"turn.started"}'
    )


def test_export_is_deterministic(open_store: Open, tmp_path: Path) -> None:
    with open_store() as log:
        for number, payload in enumerate(WRITABLE):
            log.append_sync(f"s{number % 3}", payload)
        log.export(tmp_path / "first.jsonl")
    first = (tmp_path / "first.jsonl").read_bytes()
    with open_store(readonly=True) as log:
        log.export(str(tmp_path / "second.jsonl"))
        stream = io.BytesIO()
        log.export(stream)
    assert first == (tmp_path / "second.jsonl").read_bytes() == stream.getvalue()
    assert first.count(b"\n") == len(WRITABLE)


def test_a_failed_export_leaves_no_file(
    store: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    store.append_sync("s1", TurnStarted(1))
    monkeypatch.setattr(os, "fsync", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.export(folder / "log.jsonl")
    assert list(folder.iterdir()) == []


def test_truncated_chain_is_detected_with_a_saved_hash(store: EventLog) -> None:
    for number in range(3):
        store.append_sync("s1", TurnStarted(number))
    noted = {entry.session: entry.head for entry in store.sessions()}
    store.append_sync("s1", TurnStarted(4))
    assert store.verify(known=noted).ok
    _, second, *_ = store.read("s1")
    assert store.verify("s1", known={"s1": second.hash}).ok
    report = store.verify(known={"s1": "ab" * 32, "s2": "cd" * 32})
    assert [(found.session, found.seq, found.problem) for found in report.breaks] == [
        ("s1", 5, "cut short"),
        ("s2", 1, "cut short"),
    ]
    assert str(report).startswith(
        "4 records in 2 sessions: BROKEN\nsession s1, record 5: cut short: the known hash"
    )


def test_verifying_an_unknown_session_reports_zero_records(store: EventLog) -> None:
    report = store.verify("none")
    assert report.ok is True
    assert report.sessions == 0
    assert report.records == 0
    assert report.first is None
    assert str(report) == "0 records in 0 sessions: whole"


# --- removing old sessions ---------------------------------------------------------------------


def test_pruning_removes_old_sessions_and_records_the_removal(store: EventLog) -> None:
    old = [store.append_sync("old", TurnStarted(number)) for number in range(3)]
    store.append_sync("going on", TurnStarted(1))
    cutoff = datetime.now(UTC)
    store.append_sync("going on", TurnStarted(2))
    store.append_sync("new", TurnStarted(1))
    pruned = store.retain(cutoff)
    assert pruned == (
        LogPruned(
            session="old",
            records=3,
            first_id=old[0].id,
            last_id=old[2].id,
            head=old[2].hash,
            before=cutoff,
        ),
    )
    assert [entry.session for entry in store.sessions()] == [ADMINISTRATION, "going on", "new"]
    [record] = store.read(ADMINISTRATION)
    assert record.type == "log.pruned"
    assert record.payload == pruned[0]
    assert store.retain(timedelta(days=1)) == ()
    assert {gone.session for gone in store.retain(timedelta(0))} == {"going on", "new"}
    # Pruning keeps the administration session.
    assert [entry.session for entry in store.sessions()] == [ADMINISTRATION]
    assert store.verify().records == 3
    again = store.append_sync("old", TurnStarted(1))
    assert again.seq == 1
    assert again.previous == genesis("old")
    assert store.verify().ok


def test_pruning_requires_a_time_with_a_time_zone(store: EventLog) -> None:
    with pytest.raises(InvalidRecordError, match="older_than: the time has no time zone"):
        store.retain(datetime(2026, 1, 1))


@pytest.mark.usefixtures("small_pages")
def test_reading_a_session_that_is_pruned_meanwhile_raises_an_error(store: EventLog) -> None:
    for number in range(60):
        store.append_sync("s1", TurnStarted(number))
    reading = store.read("s1")
    next(reading)
    store.retain(timedelta(0))
    with pytest.raises(Exception, match="record 51 is missing; pruned during the read"):
        list(reading)


# --- opening and closing a log -----------------------------------------------------------------


def test_read_only_log_follows_the_writer_and_rejects_writes(open_store: Open) -> None:
    with open_store() as log:
        log.append_sync("s1", TurnStarted(1))
        with open_store(readonly=True) as reader:
            assert len(list(reader.read("s1"))) == 1
            log.append_sync("s1", TurnStarted(2))
            assert len(list(reader.read("s1"))) == 2
            assert reader.verify().ok
            for write in (
                lambda: reader.append_sync("s1", TurnStarted(3)),
                lambda: reader.retain(timedelta(0)),
            ):
                with pytest.raises(LogReadOnlyError, match="opened for reading only"):
                    write()
    assert "readonly=True" in repr(reader)


async def test_using_a_closed_log_raises_an_error(store: EventLog) -> None:
    await store.append("s1", TurnStarted(1))
    store.close()
    store.close()
    for use in (
        lambda: store.append_sync("s1", TurnStarted(2)),
        lambda: list(store.read("s1")),
        store.sessions,
        store.verify,
        lambda: store.retain(timedelta(0)),
    ):
        with pytest.raises(LogClosedError, match="the log is closed"):
            use()
    with pytest.raises(LogClosedError):
        await store.append("s1", TurnStarted(2))


def test_closing_a_log_writes_the_queued_records(open_store: Open) -> None:
    log = open_store()
    futures = [log._offer(draft_record("s1", TurnStarted(number))) for number in range(100)]
    log.close()
    assert all(accepted and future.result(timeout=0).seq for accepted, future in futures)
    with open_store(readonly=True) as reader:
        assert len(list(reader.read("s1"))) == 100


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_process_must_open_its_own_log(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.append_sync("s1", TurnStarted(1))
        child = os.fork()
        if child == 0:
            # End the child if the append blocks for ever, as it once did after a fork.
            signal.alarm(10)
            try:
                log.append_sync("s1", TurnStarted(2))
            except LogClosedError as error:
                log.close()  # closes nothing, because the log belongs to the parent process
                os._exit(7 if "another process" in str(error) else 1)
            os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert log.append_sync("s1", TurnStarted(3)).seq == 2


def test_repr_of_a_log_or_record_contains_no_private_data(store: EventLog) -> None:
    record = store.append_sync("s1", SessionStarted(goal="my secret goal"))
    assert "secret" not in repr(record)
    assert record.id in repr(record)
    assert "host=" not in repr(store)


# --- searching records, and reporting progress -------------------------------------------------


@pytest.mark.usefixtures("small_pages")
def test_records_are_found_by_type_across_sessions_and_pages(store: EventLog) -> None:
    asyncio.run(_append_many(store))
    found = [
        (record.session, record.payload)
        for record in store.find("turn.started", "session.started")
    ]
    assert found == [
        *[("a", TurnStarted(number)) for number in range(70)],
        ("b", SessionStarted(goal="goal")),
        ("b", TurnStarted(1)),
    ]
    assert [record.type for record in store.find("session.started", session="b")] == [
        "session.started"
    ]
    assert list(store.find("session.started", session="a")) == []
    assert list(store.find(session="a")) == []


async def _append_many(log: EventLog) -> None:
    pairs = [(TurnStarted(number), ToolStarted("tu", "bash", {})) for number in range(70)]
    await asyncio.gather(*[log.append("a", payload) for pair in pairs for payload in pair])
    await log.append("b", SessionStarted(goal="goal"))
    await log.append("b", TurnStarted(1))


@pytest.mark.usefixtures("small_pages")
def test_long_operations_report_progress(store: EventLog) -> None:
    asyncio.run(_append_many(store))
    told: list[tuple[int, int]] = []
    assert store.verify(progress=lambda *both: told.append(both)).records == 142
    assert told[-1] == (142, 142)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len(told) >= 4
    told.clear()
    assert store.export(io.BytesIO(), "b", progress=lambda *both: told.append(both)) == 2
    assert told[-1] == (2, 2)


# --- importing another log ---------------------------------------------------------------------


@pytest.fixture
def other(tmp_path: Path, small_pages: None) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "other.db") as log:
        for number in range(120):
            log.append_sync("a", TurnStarted(number))
        log.append_sync("b", SessionStarted(goal="goal"))
        yield log


def test_records_of_another_log_are_imported_unchanged(
    store: EventLog, other: SqliteLog, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    other.export(tmp_path / "other.jsonl")
    with ExportedLog(tmp_path / "other.jsonl") as export:
        assert store.restore(export, "b") == 1
        assert store.restore(export, progress=lambda *both: told.append(both)) == 120
        assert told[-1] == (120, 121)
        assert store.restore(export) == 0
    assert [list(store.read(name)) for name in "ab"] == [list(other.read(name)) for name in "ab"]
    other.append_sync("b", TurnStarted(1))
    assert store.restore(other) == 1
    assert store.verify() == other.verify()
    assert store.append_sync("b", TurnStarted(2)).seq == 3


TEXTS = ['She said: "Über 100 % of C:\\new_folder"\nand left', "plain", "日本語 text", "OVER"]


@pytest.mark.parametrize(("text", "hits"), read_table("search_ignores_case"))
def test_search_ignores_case(store: EventLog, tmp_path: Path, text: str, hits: list[int]) -> None:
    for number, value in enumerate(TEXTS):
        store.append_sync(f"s{number}", SessionStarted(goal=value))
    export = tmp_path / "all.jsonl"
    store.export(export)
    for log in (store, ExportedLog(export)):
        assert [record.session for record in log.search(text)] == [f"s{hit}" for hit in hits]
        assert len(list(log.search(text, "s0"))) == hits.count(0)


def test_diverged_session_is_not_imported(store: EventLog, other: SqliteLog) -> None:
    store.restore(other, "b")
    store.append_sync("b", TurnStarted(1))
    with pytest.raises(InvalidRecordError, match="session 'b' is longer here"):
        store.restore(other, "b")
    other.append_sync("b", TurnStarted(1))
    with pytest.raises(InvalidRecordError, match="session 'b' diverges at record 2 or earlier"):
        store.restore(other, "b")
    assert store.verify().ok


def test_broken_chain_is_not_imported(store: EventLog, other: SqliteLog) -> None:
    records = list(other.read("a"))
    with pytest.raises(LogLockedError, match="changed during the import"):
        store._offer(lambda: restore_records(store, records[5:8]))[1].result()
    other._connection.execute("UPDATE records SET actor = 'user' WHERE session = 'a' AND seq = 3")
    with pytest.raises(LogCorruptError, match=r"cannot be imported: session a, record 3"):
        store.restore(other)
    assert store.sessions() == ()


def test_source_that_is_replaced_during_its_import_is_noticed(
    store: EventLog, other: SqliteLog
) -> None:
    def write_again(done: int, _: int) -> None:
        if other.retain(timedelta(0)):
            for number in range(120):
                other.append_sync("a", TurnStarted(number))

    with pytest.raises(LogLockedError, match="session 'a' changed during the import"):
        store.restore(other, "a", progress=write_again)
    assert store.verify().ok


def test_records_of_pruning_are_not_imported(store: EventLog, other: SqliteLog) -> None:
    other.retain(timedelta(0))
    other.append_sync("c", TurnStarted(1))
    assert store.restore(other) == 1
    assert [entry.session for entry in store.sessions()] == ["c"]
