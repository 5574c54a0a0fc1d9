"""Send the records of a session as server-sent events (SSE), each with its number as its id.

The id of the last event that a client received is all that is needed to go on: the joined stream
is the unbroken one, wherever the connection was cut, and whichever process sends the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import islice

from .. import log as logs
from .runner import Runner

MAX_SEQ = 2**53
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Headers that keep proxies from buffering events (nginx) and from caching them."""
MEDIA_TYPE = "text/event-stream"
HEARTBEAT = b": the session goes on\n\n"
_PAGE = 100  # records that are read at once
_HEARTBEAT_SECONDS = 15.0
_POLL_SECONDS = 1.0  # between two looks at a session that another process runs


def read_position(text: str) -> int:
    """Return the number of the last record that a client has; raise ``ValueError`` if it is wrong."""
    if text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= MAX_SEQ:
        return int(text)
    raise ValueError(f"Last-Event-ID: must be the number of a record, not {text[:40]!r}")


async def is_over(log: logs.EventLog, runner: Runner, session: str, after: int) -> bool:
    """Return whether a session is at rest, and has no record behind the one with this number.

    A session that this process is about to continue is not at rest.
    """
    if runner.is_running(session):
        return False
    last = await asyncio.to_thread(logs.read_last, log, session)
    return last is not None and last.seq <= after and last.type == "session.finished"


async def send_records(
    log: logs.EventLog,
    runner: Runner,
    session: str,
    after: int,
    *,
    follow: bool,
    is_leaving: Callable[[], bool],
) -> AsyncIterator[bytes]:
    """Yield the records behind the one with the number ``after``, as they are written.

    The stream ends when the session is at rest: it has ended, or it waits. With ``follow`` it goes
    on with the records of the next run. It also ends when the service stops.
    """
    idle = 0.0
    feed = runner.follow(session)
    while True:
        records = await asyncio.to_thread(_read, log, session, after)
        for record in records:
            yield write_record(record)
            after = record.seq
            idle = 0.0
        if len(records) == _PAGE:
            continue
        is_done = not follow and await is_over(log, runner, session, after)
        if is_done or is_leaving():
            return
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await feed.queue.get()
        except TimeoutError:
            idle += _POLL_SECONDS
        while not feed.queue.empty():  # one look at the log answers all of them
            feed.queue.get_nowait()
        if idle >= _HEARTBEAT_SECONDS:
            yield HEARTBEAT
            idle = 0.0


def write_record(record: logs.LogRecord) -> bytes:
    """Return a record as an event: its number, its type, and its line as it is in the log."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (record.seq, record.type.encode(), record.line)


def _read(log: logs.EventLog, session: str, after: int) -> list[logs.LogRecord]:
    return list(islice(log.read(session, after), _PAGE))
