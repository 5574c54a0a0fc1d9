"""Test that what the gateway could not write is written with the next call."""

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dragoman import database
from dragoman.calls import CallCompleted
from dragoman.gateway import call_log
from dragoman.gateway.call_log import CallLog
from dragoman.gateway.usage_book import UsageBook, UsageRow
from dragoman.log import ForkedFrom, LogPruned, LogRecord, LogStorageError, MemoryLog
from dragoman.messages import Assistant, User

from ..waiting import PATIENCE, until

END = CallCompleted(model="m", provider="p", request_id="r", stop_reason="end_turn", latency_ms=1)
TALK = [User("Hello."), Assistant("Hi."), User("More."), Assistant("Fine.")]


class FailingLog(MemoryLog):
    is_down = True
    tried = 0

    async def append(self, session: str, payload: Any, **facts: Any) -> LogRecord:
        self.tried += 1
        if self.is_down:
            raise LogStorageError("the disk failed")
        return await super().append(session, payload, **facts)


async def test_session_of_the_gateway_begins_with_the_first_call_that_can_be_written() -> None:
    log = FailingLog()
    calls = CallLog(log)
    calls.put([END])
    await until(lambda: log.tried == 2, "the records")
    log.is_down = False
    session = calls.put([END])
    await calls.close()
    assert [record.type for record in log.read(session)] == [
        "session.started", "llm.call_completed", "session.finished",
    ]  # fmt: skip


class Days:
    """A clock that a test sets, in days since 1970."""

    day = 20_000.5

    def __call__(self) -> float:
        return self.day * 86_400


class RefusingLog(MemoryLog):
    """A log that refuses the first records that it is given."""

    def __init__(self, refused: int) -> None:
        super().__init__()
        self.refused = refused

    async def append(self, session: str, payload: Any, **facts: Any) -> LogRecord:
        self.refused -= 1
        if self.refused >= 0:
            raise LogStorageError("the disk failed")
        return await super().append(session, payload, **facts)


@pytest.mark.parametrize("conversation", ["", "c"])
@pytest.mark.parametrize("refused", range(12))
async def test_session_begins_with_its_start_whatever_could_not_be_written(
    refused: int, conversation: str
) -> None:
    log = RefusingLog(refused)
    days = Days()
    calls = CallLog(log, include_content=True, clock=days)
    for _ in range(2):
        calls.put([END], messages=TALK[:1], conversation=conversation)
        calls.put([END], messages=TALK, conversation=conversation)
        days.day += 1
    await calls.close()
    for entry in log.sessions():
        kinds = [record.type for record in log.read(entry.session)]
        assert kinds[0] == "session.started"
        assert kinds.count("session.started") == kinds.count("session.finished") == 1
        assert kinds[-1] == "session.finished"


async def test_messages_that_could_not_be_written_are_written_with_the_next_call() -> None:
    log = FailingLog()
    log.is_down = False
    calls = CallLog(log, include_content=True)
    calls.put([END], messages=TALK[:1], conversation="c")
    await until(lambda: log.tried == 3, "the records")
    log.is_down = True
    calls.put([END], messages=TALK[:3], conversation="c")
    await until(lambda: log.tried == 6, "the records")
    log.is_down = False
    calls.put([END], messages=TALK, conversation="c")
    await calls.close()
    records = list(log.read("c"))
    sent = [record.payload.message for record in records if record.type == "message.recorded"]
    assert sent == TALK
    assert [record.type for record in records].count("session.started") == 1


async def test_conversation_whose_start_could_not_be_written_is_written_whole() -> None:
    log = FailingLog()
    calls = CallLog(log, include_content=True)
    calls.put([END], messages=TALK[:1], conversation="c")
    await until(lambda: log.tried == 3, "the records")
    log.is_down = False
    calls.put([END], messages=TALK, conversation="c")
    await calls.close()
    records = list(log.read("c"))
    sent = [record.payload.message for record in records if record.type == "message.recorded"]
    assert records[0].type == "session.started"
    assert sent == TALK


async def test_usage_is_kept_when_its_writing_is_cancelled_while_it_waits() -> None:
    book = UsageBook(None)
    book.count(UsageRow(1_800_000_000_000, "r", "k", "m", 200, "", 1, 1, Decimal(0), 0, 1, ""))
    # The first query uses the connection, so the second waits for it when it is cancelled.
    reading = asyncio.ensure_future(book.list_live())
    flushing = asyncio.ensure_future(book.flush([]))
    await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.wait([reading, flushing])
    await book.flush([])
    assert [row.id for row in await book.list_requests(0, {}, 10)] == ["r"]
    book.close()


async def test_usage_is_kept_when_its_writing_is_cancelled_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)
    thread = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(thread)
    book = UsageBook(tmp_path / "usage.db")
    book.count(UsageRow(1_800_000_000_000, "r", "k", "m", 200, "", 1, 1, Decimal(0), 0, 1, ""))
    other = sqlite3.connect(tmp_path / "usage.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    flushing = asyncio.ensure_future(book.flush([]))
    for _ in range(20):  # until the thread writes
        await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.wait([flushing])
    await asyncio.to_thread(int)  # the same thread, which has failed to write by now
    other.execute("ROLLBACK")
    other.close()
    await book.flush([])
    assert [row.id for row in await book.list_requests(0, {}, 10)] == ["r"]
    book.close()


async def test_connection_is_used_by_one_thread_until_it_has_ended() -> None:
    book = UsageBook(None)
    order: list[str] = []
    begun = threading.Event()
    go_on = threading.Event()

    def read_slowly(base: Any) -> None:
        begun.set()
        go_on.wait(PATIENCE)
        order.append("first")

    first = asyncio.ensure_future(book.read(read_slowly))
    await asyncio.to_thread(begun.wait, PATIENCE)
    first.cancel()
    second = asyncio.ensure_future(book.read(lambda base: order.append("second")))
    for _ in range(20):  # time for the second one to begin too early
        await asyncio.to_thread(int)
    go_on.set()
    await asyncio.wait([first, second])
    assert first.cancelled()
    assert order == ["first", "second"]
    book.close()


class RetainingLog(MemoryLog):
    def __init__(self) -> None:
        super().__init__()
        self.retained: list[timedelta | datetime] = []

    def retain(self, older_than: timedelta | datetime) -> tuple[LogPruned, ...]:
        self.retained.append(older_than)
        return super().retain(older_than)


async def test_gateway_begins_a_session_each_day_that_names_the_end_of_the_one_before() -> None:
    log = RetainingLog()
    days = Days()
    calls = CallLog(log, keep=timedelta(days=90), clock=days)
    first = calls.put([END])
    days.day += 1
    second = calls.put([END])
    assert calls.put([END]) == second
    days.day += 1
    third = calls.put([END])
    await calls.close()
    sessions = [list(log.read(name)) for name in (first, second, third)]
    starts = [session[0].payload for session in sessions]
    assert [start.follows for start in starts] == [
        None,
        *[
            ForkedFrom(session[-1].session, session[-1].seq, session[-1].hash)
            for session in sessions[:2]
        ],
    ]
    assert [session[-1].type for session in sessions] == ["session.finished"] * 3
    assert [len(session) for session in sessions] == [3, 4, 3]
    assert log.retained == [timedelta(days=90)] * 2


class UnlistedLog(MemoryLog):
    """A log whose sessions cannot be listed."""

    def sessions(self) -> Any:
        raise LogStorageError("the disk failed")


async def test_session_of_a_day_has_a_start_although_the_one_before_cannot_be_read() -> None:
    log = UnlistedLog()
    days = Days()
    calls = CallLog(log, clock=days)
    calls.put([END])
    days.day += 1
    second = calls.put([END])
    await calls.close()
    assert [record.type for record in log.read(second)] == [
        "session.started", "llm.call_completed", "session.finished",
    ]  # fmt: skip


async def test_gateway_begins_a_session_after_the_largest_number_of_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_log, "_MAX_RECORDS", 3)
    log = MemoryLog()
    calls = CallLog(log)
    names = [calls.put([END]) for _ in range(6)]
    await calls.close()
    lengths = [len(list(log.read(name))) for name in dict.fromkeys(names)]
    assert lengths == [4, 5, 3]
    assert log.verify().ok


async def test_gateway_does_not_begin_a_session_for_a_log_that_is_down_all_day() -> None:
    log = FailingLog()
    days = Days()
    calls = CallLog(log, clock=days)
    calls.put([END])
    await until(lambda: log.tried == 2, "the records")
    days.day += 1
    log.is_down = False
    session = calls.put([END])
    await calls.close()
    assert [entry.session for entry in log.sessions()] == [session]
