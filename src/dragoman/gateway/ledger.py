"""What each key has used: money in all, requests and tokens this minute; and its calls under way.

In memory for one process; in a SQLite file where several workers must count together, or where a
restart must not make a budget new. Money is kept in whole billionths, so that sums are exact.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

from ..errors import QuotaExceededError, RateLimitError
from ..messages import new_ulid
from .keys import Key

_BILLION = 10**9
_SCHEMA = """
create table if not exists spent (key text primary key, nano integer not null);
create table if not exists used (
    key text, minute integer, requests integer not null, tokens integer not null, primary key (key, minute)
);
create table if not exists running (
    id text primary key, key text not null, pid integer not null, life text not null, until real not null
);
"""
_LIFE = new_ulid()  # of this process: the same number may have been another's before


class Ledger:
    """Counts for keys. Calls under way are counted once they are over, so a budget may be overrun by those."""

    def __init__(self, path: str | Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.is_shared = path is not None
        # Used by one event loop, which need not run in the thread that made this.
        place = ":memory:" if path is None else str(path)
        self._base = sqlite3.connect(place, timeout=5, isolation_level=None, check_same_thread=False)
        if path is not None:
            self._base.execute("pragma journal_mode=wal")
            self._base.execute("pragma synchronous=normal")
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
        """The money a key has spent, in all."""
        row = self._base.execute("select nano from spent where key = ?", (key,)).fetchone()
        return Decimal(row[0]) / _BILLION if row else Decimal(0)

    def admit(self, key: Key) -> None:
        """Count one more request of this key, or raise what stands against it."""
        if key.budget_usd is not None and self.spent(key.id) >= key.budget_usd:
            raise QuotaExceededError("the budget of this key is used up")
        now = self._clock()
        if key.requests_per_minute is not None:
            self._refuse(now, key.id, "requests", key.requests_per_minute)
        if key.tokens_per_minute is not None:
            self._refuse(now, key.id, "tokens", key.tokens_per_minute)
        self._add(now, key.id, requests=1)

    def record(self, key: Key, tokens: int, money: Decimal) -> None:
        """A call of this key is over and used this much."""
        if tokens:
            self._add(self._clock(), key.id, tokens=tokens)
        if money:
            nano = int((money * _BILLION).to_integral_value(rounding="ROUND_CEILING"))
            self._base.execute(
                "insert into spent values (?, ?) on conflict (key) do update set nano = nano + excluded.nano",
                (key.id, nano),
            )

    def begin(self, key: Key, seconds: float) -> str:
        """Take one of the key's places for calls at a time, to be given back with ``end``.

        A place that a process took to its grave is free again when others want it, at the latest after
        so many ``seconds``.
        """
        lease = self._take_place(key, seconds)
        if lease is None and self._bury(key.id):
            lease = self._take_place(key, seconds)
        if lease is None:
            limit = key.max_concurrency
            raise RateLimitError(f"this key's limit of {limit} calls at a time is reached", retry_after=1)
        return lease

    def end(self, lease: str) -> None:
        """The call that took this place is over."""
        self._base.execute("delete from running where id = ?", (lease,))

    # inside

    def _take_place(self, key: Key, seconds: float) -> str | None:
        lease, now = new_ulid(), self._clock()
        # One statement: between a question and an answer another process could take the last place.
        done = self._base.execute(
            "insert into running select ?, ?, ?, ?, ? "
            "where (select count(*) from running where key = ? and until > ?) < ?",
            (lease, key.id, os.getpid(), _LIFE, now + seconds, key.id, now, key.max_concurrency),
        )
        return lease if done.rowcount == 1 else None

    def _bury(self, key: str) -> bool:
        """Free the places of processes that are no more; whether there were any."""
        found = self._base.execute("select distinct pid from running where key = ?", (key,)).fetchall()
        dead = [pid for (pid,) in found if not _is_alive(pid)]
        self._base.executemany("delete from running where pid = ?", [(pid,) for pid in dead])
        self._base.execute("delete from running where until <= ?", (self._clock(),))
        return bool(dead)

    def _refuse(self, now: float, key: str, what: str, limit: int) -> None:
        """A sliding minute: the part of the last one that is still within it counts, evenly spread."""
        minute, seconds = divmod(now, 60)
        found = self._base.execute(
            "select minute, requests, tokens from used where key = ? and minute >= ?", (key, int(minute) - 1)
        )
        rows = {row[0]: row[1 if what == "requests" else 2] for row in found}
        this, last = rows.get(int(minute), 0), rows.get(int(minute) - 1, 0)
        if this + last * (1 - seconds / 60) < limit:
            return
        # If this minute alone is too much, the next must come; else enough of the last must pass.
        wait = 60 - seconds if this >= limit else (1 - (limit - this) / last) * 60 - seconds
        raise RateLimitError(f"this key's limit of {what} a minute is reached", retry_after=max(0.1, round(wait, 1)))

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
        return True  # to ask there is to kill; the place becomes free with time
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's, and there
        pass
    return True
