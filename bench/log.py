"""Measure the event log: the rate of appends, the bytes per event, and the time to open, read and
verify a long log.

    python bench/log.py [--events 1000000] [--folder DIR]

A million events take about two minutes. Prints wall and CPU time and asserts nothing: an append
waits for the disk, so the rate of appends depends on the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.events import AssembledFrom, IntentSource, ToolIntent
from dragoman.log import (
    CallCompleted,
    EventLog,
    MessageRecorded,
    SqliteLog,
    ToolObserved,
    TurnStarted,
    read_uses,
)
from dragoman.messages import Assistant
from dragoman.prices import reprice
from dragoman.replay import count_totals
from dragoman.trace import Reader

# Roughly one turn of an agent: five events with an average payload of 300 bytes.
TURN = (
    TurnStarted(1, "large", "acme"),
    CallCompleted(
        model="large",
        provider="acme",
        stop_reason="tool_use",
        latency_ms=812.5,
        request_id="01M7EJSHEJRBEPVWKBS3Y5E4R0",
        input_tokens=1200,
        output_tokens=45,
        cached_input_tokens=1000,
    ),
    MessageRecorded(
        message=Assistant("I will run the tests first to see the current failure. " * 4),
        model="large",
        provider="acme",
    ),
    ToolIntent(
        id="tu_01M7EJSHEJRBEPVWKBS3Y5E4R0",
        provider_call_id="call_1",
        tool_name="bash",
        input={"command": "make test"},
        raw_input_text='{"command": "make test"}',
        source=IntentSource("acme", "large", "01M7EJSHEJRBEPVWKBS3Y5E4R0", 1),
        assembled_from=AssembledFrom(3, 10, 90),
    ),
    ToolObserved(
        intent_id="tu_01M7EJSHEJRBEPVWKBS3Y5E4R0",
        tool_name="bash",
        content="expected 4, received 5\n" * 20,
        is_error=True,
        exit_code=1,
    ),
)


@contextmanager
def measured(what: str, count: int = 1) -> Iterator[None]:
    wall = time.perf_counter()
    cpu = time.process_time()
    yield
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    rate = f"{count / wall:12,.0f}/s {cpu / count * 1e6:9.1f} µs CPU each" if count > 1 else ""
    print(f"{what:<46} {wall:9.3f} s wall {cpu:9.3f} s CPU {rate}")


async def append(log: EventLog, appenders: int, events: int, sessions: int) -> None:
    async def work(number: int) -> None:
        for index in range(number, events, appenders):
            await log.append(
                f"session-{index * sessions // events:06}", TURN[index % len(TURN)], turn="turn-1"
            )

    await asyncio.gather(*[work(number) for number in range(appenders)])


def measure_syncs(folder: Path) -> None:
    handle = os.open(folder / "sync", os.O_CREAT | os.O_WRONLY)
    with measured("the disk: write 4 KiB and fdatasync", 500):
        for _ in range(500):
            os.write(handle, b"x" * 4096)
            os.fdatasync(handle)
    os.close(handle)


def measure_appends(folder: Path) -> None:
    for appenders, events in ((1, 2000), (32, 20000), (256, 40000)):
        with (
            SqliteLog(folder / f"appends-{appenders}.db") as log,
            measured(f"append, {appenders} at once", events),
        ):
            asyncio.run(append(log, appenders, events, 10))


def measure_long_log(folder: Path, events: int) -> None:
    path = folder / "long.db"
    with SqliteLog(path) as log, measured(f"append {events:,} events, 1000 at once", events):
        asyncio.run(append(log, 1000, events, max(events // 1000, 1)))
    log = SqliteLog(path, readonly=True)
    sizes = [len(bytes(record.raw)) for record in log.read("session-000000")]
    payload = sum(sizes) / len(sizes)
    size = path.stat().st_size
    print(
        f"{'file':<46} {size / 1e6:9.1f} MB, {size / events:.0f} bytes per event, {payload:.0f} of"
        " them payload"
    )
    with measured("open for writing, and close"):
        SqliteLog(path).close()
    with measured("list the sessions"):
        log.sessions()
    with measured("read one session of 1,000"):
        records = list(log.read("session-000000"))
    with measured("read and decode one session of 1,000"):
        assert [record.payload for record in log.read("session-000000")]
    with measured("add up one session of 1,000"):
        count_totals(log, "session-000000")
    with measured("a page of 300 steps, for the browser"):
        Reader(log).read_page("session-000000", 500, 300)
    with measured("find every model call and price it again", events // len(TURN)):
        assert all(result.new is not None for result in reprice(read_uses(log)))
    with measured("verify one session of 1,000"):
        log.verify("session-000000")
    with measured("verify everything", events):
        print(log.verify())
    with measured("export everything", events):
        log.export(folder / "long.jsonl")
    assert records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument(
        "--folder", type=Path, help="where to write; a temporary folder when absent"
    )
    options = parser.parse_args()
    print(f"SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure_syncs(Path(folder))
        measure_appends(Path(folder))
        measure_long_log(Path(folder), options.events)


if __name__ == "__main__":
    main()
