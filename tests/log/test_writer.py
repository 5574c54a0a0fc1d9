import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from dragoman.log import LogClosedError, LogStorageError, SqliteLog, TurnStarted
from dragoman.log.record import Draft, LogRecord, link_record
from dragoman.log.writer import WriterThread
from tests.waiting import PATIENCE


def draft(size: int = 2) -> Draft:
    return Draft("s1", None, None, "turn.started", "system", "private", b"x" * size)


class Gate:
    """Act as a store on a slow disk: writing waits until the test lets it continue."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()
        self.groups: list[int] = []

    def __call__(self, drafts: Sequence[Draft]) -> list[LogRecord]:
        self.entered.set()
        assert self.opened.wait(PATIENCE)
        self.groups.append(len(drafts))
        return [link_record(item, None) for item in drafts]


def fill(writer: WriterThread, gate: Gate, size: int) -> tuple[list[Future[Any]], Future[Any]]:
    """Offer records until the queue is full; return the futures of the accepted records, and the
    future to wait for before the next offer.
    """
    taken = [writer.offer(draft())[1]]
    assert gate.entered.wait(PATIENCE)  # the first record is being written and has left the queue
    item = draft(size)
    for _ in range(2000):
        accepted, future = writer.offer(item)
        if not accepted:
            return taken, future
        taken.append(future)
    gate.opened.set()
    pytest.fail("there is no end to the queue")


@pytest.mark.parametrize(
    ("size", "most"), [(2, 1024), (20 * 1024 * 1024, 3), (100 * 1024 * 1024, 1)]
)
def test_writer_queue_is_limited_in_records_and_bytes(size: int, most: int) -> None:
    gate = Gate()
    writer = WriterThread(gate, lambda: None)
    taken, waiting = fill(writer, gate, size)
    assert len(taken) == 1 + most
    assert not waiting.done()
    gate.opened.set()
    waiting.result(timeout=PATIENCE)  # the queue has space again
    accepted, last = writer.offer(draft())
    assert accepted
    last.result(timeout=PATIENCE)
    writer.close()
    assert all(future.done() for future in taken)
    assert gate.groups[:2] == [1, most]


async def test_appends_wait_for_space_without_blocking_the_event_loop(tmp_path: Path) -> None:
    gate = threading.Event()

    class Slow(SqliteLog):
        def _write(self, drafts: Sequence[Draft]) -> list[LogRecord]:
            assert gate.wait(PATIENCE)
            return super()._write(drafts)

    async with Slow(tmp_path / "log.db") as log:
        appends = [
            asyncio.create_task(log.append("s1", TurnStarted(number))) for number in range(1200)
        ]
        await asyncio.sleep(0)  # all appends have started, and the event loop is not blocked
        assert not any(append.done() for append in appends)
        gate.set()
        records = await asyncio.gather(*appends)
        assert sorted(record.seq for record in records) == list(range(1, 1201))


def test_an_unexpected_failure_fails_all_queued_appends_and_stops_the_writer() -> None:
    def fail(_: Sequence[Draft]) -> list[LogRecord]:
        raise MemoryError("boom")

    writer = WriterThread(fail, lambda: None, fatal=(LogStorageError,))
    futures = [writer.offer(draft())[1] for _ in range(3)]
    errors = [future.exception(timeout=PATIENCE) for future in futures]
    assert all(
        isinstance(error, LogStorageError) and "MemoryError: boom" in str(error)
        for error in errors
    )
    later = writer.offer(draft())[1].exception(timeout=PATIENCE)
    assert "stopped writing after an earlier failure" in str(later)
    writer.close()


def test_failure_that_is_not_fatal_affects_only_its_group_commit() -> None:
    outcomes = iter([True, False])

    def write(drafts: Sequence[Draft]) -> list[LogRecord]:
        if next(outcomes):
            raise LogStorageError("no server")
        return [link_record(item, None) for item in drafts]

    writer = WriterThread(write, lambda: None)
    assert isinstance(writer.offer(draft())[1].exception(timeout=PATIENCE), LogStorageError)
    assert writer.offer(draft())[1].result(timeout=PATIENCE).seq == 1
    writer.close()


def test_writer_runs_other_tasks_and_appends_in_order() -> None:
    gate = Gate()
    order: list[object] = []
    writer = WriterThread(gate, lambda: order.append("finished"))
    first = writer.offer(draft())[1]
    assert gate.entered.wait(PATIENCE)
    rest = [
        writer.offer(draft())[1],
        writer.offer(lambda: order.append(len(gate.groups)))[1],
        writer.offer(draft())[1],
    ]
    gate.opened.set()
    writer.close()
    assert gate.groups == [1, 1, 1]
    assert order == [2, "finished"]
    assert first.done()
    assert all(future.done() for future in rest)
    with pytest.raises(LogClosedError):
        writer.offer(draft())


def test_failure_to_close_the_writer_is_raised() -> None:
    def fail() -> None:
        raise LogStorageError("the last sync failed")

    writer = WriterThread(lambda drafts: [], fail)
    with pytest.raises(LogStorageError, match="the last sync failed"):
        writer.close()
