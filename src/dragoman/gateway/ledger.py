"""Count what each key has used: total cost, requests and tokens this minute, and calls in flight.

``Ledger`` counts in memory for one process, or in a SQLite file if several workers count together
or a restart must not reset a budget. Costs are stored as decimal text, so that sums are exact.
``LedgerWriter`` uses a ledger from an event loop without blocking it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import queue
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from ..errors import OverloadedError, QuotaExceededError, RateLimitError
from ..messages import new_ulid
from ..prices.results import EXACT
from .keys import Key

log = logging.getLogger("dragoman")

_SCHEMA = """
create table if not exists spent (key text primary key, usd text not null);
create table if not exists used (
    key text, minute integer, requests integer not null, tokens integer not null, primary key (key, minute)
);
create table if not exists running (
    id text primary key, key text not null, pid integer not null, life text not null, until real not null
);
"""
_LIFE = new_ulid()  # identifies this process, since the operating system reuses process ids
_BUSY_SECONDS = 2.0  # how long to wait for a file that another process has locked
_RETRY_SECONDS = 1.0  # between two attempts to write the usage of a call
_CLOSE_SECONDS = 10.0


class Ledger:
    """Count for keys. Tokens and cost are counted when a call ends, so calls in flight can exceed
    a budget.
    """

    def __init__(self, path: str | Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.is_shared = path is not None
        # Used by one thread at a time, not necessarily the one that created it.
        place = ":memory:" if path is None else str(path)
        self._base = sqlite3.connect(place, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        if path is not None:
            self._base.execute("pragma journal_mode=wal")
            self._base.execute("pragma synchronous=normal")
        # what the last request of a key left of its limits
        self._standing: dict[str, dict[str, int]] = {}
        self._base.executescript(_SCHEMA)
        self._base.execute("delete from running where pid = ? and life <> ?", (os.getpid(), _LIFE))

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def __del__(self) -> None:
        base = getattr(self, "_base", None)
        if base is not None:
            base.close()

    def spent(self, key: str) -> Decimal:
        """Return the total cost of a key."""
        row = self._base.execute("select usd from spent where key = ?", (key,)).fetchone()
        return Decimal(row[0]) if row else Decimal(0)

    def admit(self, key: Key, seconds: float = 0.0) -> str | None:
        """Count one more request of this key, or raise the limit that is reached.

        Return the lease of a key with ``max_concurrency``, to be released with ``settle``. The
        lease of a dead process is reclaimed on demand, at the latest after ``seconds``.
        """
        with self._transaction():
            now = self._clock()
            if key.budget_usd is not None and self.spent(key.id) >= key.budget_usd:
                raise QuotaExceededError("the budget of this key is exhausted")
            if key.requests_per_minute is not None:
                self._check_minute(now, key.id, "requests", key.requests_per_minute)
            if key.tokens_per_minute is not None:
                self._check_minute(now, key.id, "tokens", key.tokens_per_minute)
            lease = None if key.max_concurrency is None else self._lease(now, key, key.max_concurrency, seconds)
            self._add(now, key.id, requests=1)
            self._standing[key.id] = {
                what: max(0, math.floor(limit - self._count_minute(now, key.id, what)))
                for what, limit in (("requests", key.requests_per_minute), ("tokens", key.tokens_per_minute))
                if limit is not None
            }
        return lease

    def describe_limits(self, key: Key) -> dict[str, str]:
        """Return headers with the per-minute limits of a key, and what its last request left of them."""
        left = self._standing.get(key.id, {})
        headers = {}
        for what, limit in (("requests", key.requests_per_minute), ("tokens", key.tokens_per_minute)):
            if limit is not None:
                headers[f"x-ratelimit-limit-{what}"] = str(limit)
                headers[f"x-ratelimit-remaining-{what}"] = str(left.get(what, 0))
        return headers

    def settle(self, lease: str | None, key: str, tokens: int = 0, money: Decimal = Decimal(0)) -> None:
        """Release a lease and count what the call used."""
        with self._transaction():
            if lease is not None:
                self._base.execute("delete from running where id = ?", (lease,))
            if tokens:
                self._add(self._clock(), key, tokens=tokens)
            if money:
                # the file is locked, so no other process can add in between
                total = EXACT.add(self.spent(key), money)
                self._base.execute("insert or replace into spent values (?, ?)", (key, f"{total:f}"))

    # --- internals

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Lock the file before reading: checking and counting are atomic across processes."""
        self._base.execute("begin immediate")
        try:
            yield
            self._base.execute("commit")
        except BaseException:
            if self._base.in_transaction:  # SQLite rolls back by itself after some failures
                self._base.execute("rollback")
            raise

    def _lease(self, now: float, key: Key, limit: int, seconds: float) -> str:
        if self._count_running(key.id, now) >= limit:
            found = self._base.execute("select distinct pid from running where key = ?", (key.id,)).fetchall()
            dead = [(pid,) for (pid,) in found if not _is_alive(pid)]
            self._base.executemany("delete from running where pid = ?", dead)
            self._base.execute("delete from running where until <= ?", (now,))
            if self._count_running(key.id, now) >= limit:
                raise RateLimitError(f"this key's limit of {limit} calls at a time is reached", retry_after=1)
        lease = new_ulid()
        row = (lease, key.id, os.getpid(), _LIFE, now + seconds)
        self._base.execute("insert into running values (?, ?, ?, ?, ?)", row)
        return lease

    def _count_running(self, key: str, now: float) -> int:
        row = self._base.execute("select count(*) from running where key = ? and until > ?", (key, now)).fetchone()
        return int(row[0])

    def _check_minute(self, now: float, key: str, what: str, limit: int) -> None:
        """Check a sliding window of one minute: the previous minute counts in proportion to its overlap."""
        seconds = now % 60
        this, last = self._read_minutes(now, key, what)
        if this + last * (1 - seconds / 60) < limit:
            return
        # If this minute alone exceeds the limit, wait for the next; else until enough of the last
        # has passed.
        wait = 60 - seconds if this >= limit else (1 - (limit - this) / last) * 60 - seconds
        raise RateLimitError(f"this key's limit of {what} a minute is reached", retry_after=max(0.1, round(wait, 1)))

    def _count_minute(self, now: float, key: str, what: str) -> float:
        this, last = self._read_minutes(now, key, what)
        return this + last * (1 - now % 60 / 60)

    def _read_minutes(self, now: float, key: str, what: str) -> tuple[int, int]:
        """Return the requests or tokens of a key in the current minute and in the previous one."""
        minute = int(now // 60)
        found = self._base.execute(
            "select minute, requests, tokens from used where key = ? and minute >= ?", (key, minute - 1)
        )
        rows = {row[0]: row[1 if what == "requests" else 2] for row in found}
        return rows.get(minute, 0), rows.get(minute - 1, 0)

    def _add(self, now: float, key: str, requests: int = 0, tokens: int = 0) -> None:
        minute = int(now // 60)
        self._base.execute(
            "insert into used values (?, ?, ?, ?) on conflict (key, minute) do update set "
            "requests = requests + excluded.requests, tokens = tokens + excluded.tokens",
            (key, minute, requests, tokens),
        )
        if requests:
            self._base.execute("delete from used where key = ? and minute < ?", (key, minute - 1))


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":
        # on Windows, os.kill(pid, 0) terminates the process; rely on the lease's expiry
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # owned by another user, and alive
        pass
    return True


# --- off the event loop ---------------------------------------------------------------------------


class _Settlement(NamedTuple):
    lease: str | None
    key: str
    tokens: int = 0
    money: Decimal = Decimal(0)


class _Admission(NamedTuple):
    key: Key
    seconds: float
    deadline: float
    result: Future[str | None]


class LedgerWriter:
    """Use a ledger's file in a separate thread, so that a locked or full one does not block the
    event loop.

    While the file cannot be written, admissions fail with ``OverloadedError`` within
    ``_BUSY_SECONDS``, all together, and settlements are queued and written later, in order. A
    ledger in memory cannot be locked or full and is used directly.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._jobs: queue.SimpleQueue[_Admission | _Settlement | None] = queue.SimpleQueue()
        self._owed: deque[_Settlement] = deque()  # used by the thread only
        self._thread: threading.Thread | None = None

    async def admit(self, key: Key, seconds: float) -> str | None:
        """Count one more request as ``Ledger.admit`` does."""
        if not self.ledger.is_shared:
            return self.ledger.admit(key, seconds)
        result: Future[str | None] = Future()
        self._put(_Admission(key, seconds, time.monotonic() + _BUSY_SECONDS, result))
        try:
            return await asyncio.shield(asyncio.wrap_future(result))
        except asyncio.CancelledError:  # the client is gone, but its lease may still be granted
            result.add_done_callback(lambda done: self._give_back(done, key))
            raise

    def settle(self, lease: str | None, key: Key, tokens: int = 0, money: Decimal = Decimal(0)) -> None:
        """Release a lease and count what the call used, now or as soon as the file can be written."""
        if not self.ledger.is_shared:
            self.ledger.settle(lease, key.id, tokens, money)
        else:
            self._put(_Settlement(lease, key.id, tokens, money))

    async def close(self) -> None:
        """Write the pending settlements; wait at most a few seconds."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(thread.join)

    # --- internals

    def _put(self, job: _Admission | _Settlement) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="dragoman-ledger", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _give_back(self, done: Future[str | None], key: Key) -> None:
        if done.exception() is None and (lease := done.result()) is not None:
            self._put(_Settlement(lease, key.id))

    def _work(self) -> None:
        is_open = True
        while is_open:
            jobs = self._next_jobs()
            is_open = None not in jobs
            self._owed.extend([job for job in jobs if isinstance(job, _Settlement)])
            # once for all waiting jobs: each attempt may last as long as the file is locked
            is_paid = self._pay()
            for job in jobs:
                if isinstance(job, _Admission):
                    self._admit(job, is_writable=is_paid)
        deadline = time.monotonic() + _CLOSE_SECONDS
        while not self._pay() and time.monotonic() < deadline:
            time.sleep(_RETRY_SECONDS)
        if self._owed:
            log.error("the ledger cannot be written; %d calls were not counted", len(self._owed))

    def _next_jobs(self) -> list[_Admission | _Settlement | None]:
        """Return every queued job; wait for the first one, or until pending settlements should be
        retried.
        """
        jobs = []
        with contextlib.suppress(queue.Empty):
            jobs.append(self._jobs.get(timeout=_RETRY_SECONDS if self._owed else None))
            while True:
                jobs.append(self._jobs.get_nowait())
        return jobs

    def _admit(self, job: _Admission, *, is_writable: bool) -> None:
        try:
            if not is_writable or time.monotonic() > job.deadline:
                raise _overloaded()
            job.result.set_result(self.ledger.admit(job.key, job.seconds))
        except sqlite3.Error as error:
            log.warning("the ledger cannot be written: %s", error)
            job.result.set_exception(_overloaded())
        except Exception as error:
            job.result.set_exception(error)

    def _pay(self) -> bool:
        """Write the pending settlements; return whether none is left."""
        while self._owed:
            try:
                self.ledger.settle(*self._owed[0])
            except sqlite3.Error as error:
                log.warning("the ledger cannot be written, %d calls are to be counted: %s", len(self._owed), error)
                return False
            self._owed.popleft()
        return True


def _overloaded() -> OverloadedError:
    return OverloadedError("the gateway cannot count this key's use at the moment", retry_after=2)
