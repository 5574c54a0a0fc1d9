"""Count what each key uses: total cost, requests and tokens per minute, and concurrent calls.

``Ledger`` counts in memory for one process, in a SQLite file for the workers of one machine, or in
PostgreSQL for several machines. Costs are stored as decimal text, so that sums are exact.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from msgspec import Struct

from ..database import is_postgres, open_database
from ..errors import QuotaExceededError
from ..messages import new_ulid
from ..middleware.meters import RateWindow
from ..prices.results import EXACT
from .keys import Key
from .limits import check_delays, reject_concurrent
from .processes import is_alive

_SCHEMA = [
    # the row with the month '' contains the total cost
    (
        "create table if not exists dragoman_spent (key text, month text, usd text not null, "
        "primary key (key, month))"
    ),
    (
        "create table if not exists dragoman_used (key text, minute bigint, requests bigint not "
        "null, tokens bigint not null, primary key (key, minute))"
    ),
    (
        "create table if not exists dragoman_leases (id text primary key, key text not null, host "
        "text not null, pid integer not null, life text not null, until double precision not "
        "null)"
    ),
]
_KEPT_MINUTES = 60  # the number of minutes of a key that are kept in any case
_MOST = 10**15  # the most tokens and US dollars that are added to an account at once
_LIFE = new_ulid()  # a unique id of this process; process ids of the operating system are reused


def _find_host() -> str:
    """Return the name of the host or container in which this process's id is unique."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


_HOST = _find_host()


class KeyBudget(Struct, frozen=True):
    """A budget of a key or a team, in US dollars: its account in the ledger, and what is left."""

    account: str
    period: str  # "total" or "month"
    limit: Decimal
    left: Decimal


class Ledger:
    """Count the requests, tokens and cost of keys, and enforce their limits.

    Tokens and cost are counted when a call ends, so concurrent calls can exceed a budget.
    """

    def __init__(
        self, place: str | Path | None = None, *, clock: Callable[[], float] | None = None
    ) -> None:
        self._clock = clock
        self.is_shared = place is not None
        # The connection is used by one thread at a time, which may not be the thread that created
        # it.
        self._base = open_database(":memory:" if place is None else place, _SCHEMA)
        self.errors = self._base.errors
        self.invalid = self._base.invalid
        # for each key, what was left of its limits after its last request
        self._standing: dict[str, dict[str, int]] = {}
        if not is_postgres(place):
            self._adopt()
        self._base.run(
            "delete from dragoman_leases where host = ? and pid = ? and life <> ?",
            (_HOST, os.getpid(), _LIFE),
        )

    def close(self) -> None:
        """Close the database."""
        self._base.close()

    def __del__(self) -> None:
        base = getattr(self, "_base", None)
        if base is not None:
            base.close()

    def spent(self, key: str, month: str | None = None) -> Decimal:
        """Return the cost of a key: in total, or in one month (UTC) such as ``2030-01``."""
        return self._read_spent(key, month or "")[month or ""]

    def read_budgets(self, keys: Iterable[Key]) -> list[KeyBudget]:
        """Return the budgets of keys and of their teams, with what is left of each."""
        month = _find_month(time.time() if self._clock is None else self._clock())
        rows = self._base.run(
            "select key, month, usd from dragoman_spent where month in ('', ?)", (month,)
        )
        spent = {(account, period): Decimal(usd) for account, period, usd in rows}
        limits: dict[tuple[str, str], Decimal | None] = {}
        for key in keys:
            limits |= {(key.id, ""): key.budget_usd, (key.id, month): key.budget_usd_month}
            if key.team is not None:
                limits[key.accounts[-1], month] = key.team_budget_usd_month
        return [
            KeyBudget(
                account=account,
                period="month" if period else "total",
                limit=limit,
                left=max(
                    Decimal(0), EXACT.subtract(limit, spent.get((account, period), Decimal(0)))
                ),
            )
            for (account, period), limit in limits.items()
            if limit is not None
        ]

    def admit(self, key: Key, seconds: float = 0.0, *, rates: bool = True) -> str | None:
        """Count a request of a key; raise an error if one of the key's limits is reached.

        For a key with ``max_concurrency``, return the id of a lease, which ``settle`` releases. If
        a process dies, its leases are released when another call needs them, at the latest after
        ``seconds``. With ``rates=False``, only budgets are checked, and nothing is counted.
        """
        if not rates:
            self._check_budgets(time.time() if self._clock is None else self._clock(), key)
            return None
        with self._transaction(key) as now:
            self._check_budgets(now, key)
            windows = self._read_windows(now, key)
            check_delays(key, [each.delay(1, now) for each in windows.values()])
            lease = None
            if key.max_concurrency is not None:
                lease = self._lease(now, key, key.max_concurrency, seconds)
            self._add(now, key.id, requests=1)
            if "requests" in windows:
                windows["requests"].take(1)
            self._standing[key.id] = {name: each.left(now) for name, each in windows.items()}
        return lease

    def find_standing(self, key: Key) -> dict[str, int]:
        """Return how many requests and tokens per minute a key had left at its last request."""
        return self._standing.get(key.id, {})

    def settle(
        self,
        lease: str | None,
        key: Key,
        tokens: int = 0,
        money: Decimal = Decimal(0),
        *leases: str,
    ) -> None:
        """Release the leases of finished calls, and count the tokens and the cost of the calls.

        Raise ``ValueError`` for an amount that no calls can have.
        """
        if abs(tokens) > _MOST or not money.is_finite() or abs(money) > _MOST:
            raise ValueError(
                f"{Decimal(tokens):.6g} tokens and {money:.6g} US dollars are out of range"
            )
        with self._transaction(key) as now:
            for each in leases if lease is None else (lease, *leases):
                self._base.run("delete from dragoman_leases where id = ?", (each,))
            if tokens:
                self._add(now, key.id, tokens=tokens)
            if money:
                for account in key.accounts:
                    self._spend(account, _find_month(now), money)

    # --- private methods

    def _adopt(self) -> None:
        """Migrate the costs in a file that version 0.1.0 wrote, so that budgets include them."""
        with self._base.transaction():
            if self._base.run("select 1 from sqlite_master where name = 'spent'"):
                self._base.run(
                    "insert or ignore into dragoman_spent select key, '', usd from spent"
                )
                self._base.run("drop table spent")

    @contextlib.contextmanager
    def _transaction(self, key: Key) -> Iterator[float]:
        """Open a transaction that locks the accounts of a key; yield the current time."""
        with self._base.transaction(*key.accounts) as now:
            yield now if self._clock is None else self._clock()

    def _check_budgets(self, now: float, key: Key) -> None:
        month = _find_month(now)
        own = key.accounts[0]
        team = key.accounts[-1]
        if key.budget_usd is not None or key.budget_usd_month is not None:
            spent = self._read_spent(own, month)
            if key.budget_usd is not None and spent[""] >= key.budget_usd:
                raise QuotaExceededError("the budget of this key is exhausted")
            if key.budget_usd_month is not None and spent[month] >= key.budget_usd_month:
                raise QuotaExceededError("the budget of this key for the month is exhausted")
        limit = key.team_budget_usd_month
        if limit is not None and self._read_spent(team, month)[month] >= limit:
            raise QuotaExceededError("the budget of this key's team for the month is exhausted")

    def _read_spent(self, account: str, month: str) -> dict[str, Decimal]:
        """Return an account's cost in ``month``, and under the key ``""`` its total cost."""
        rows = self._base.run(
            "select month, usd from dragoman_spent where key = ? and month in ('', ?)",
            (account, month),
        )
        none = {"": Decimal(0), month: Decimal(0)}
        return none | {period: Decimal(usd) for period, usd in rows}

    def _spend(self, account: str, month: str, money: Decimal) -> None:
        # the transaction has locked the account, so no other process changes the amount in between
        spent = self._read_spent(account, month)
        total = EXACT.add(spent[""], money)
        here = EXACT.add(spent[month], money)
        self._base.run(
            "insert into dragoman_spent values (?, '', ?), (?, ?, ?) on conflict (key, month) "
            "do update set usd = excluded.usd",
            (account, f"{total:f}", account, month, f"{here:f}"),
        )

    def _lease(self, now: float, key: Key, limit: int, seconds: float) -> str:
        if self._count_running(key.id, now) >= limit:
            found = self._base.run(
                "select distinct pid from dragoman_leases where key = ? and host = ?",
                (key.id, _HOST),
            )
            for (pid,) in found:
                # On Windows ``is_alive`` is always true, so the lease of a dead process is
                # released when it expires.
                if not is_alive(pid):
                    self._base.run(
                        "delete from dragoman_leases where pid = ? and host = ?", (pid, _HOST)
                    )
            self._base.run("delete from dragoman_leases where until <= ?", (now,))
            if self._count_running(key.id, now) >= limit:
                raise reject_concurrent(limit)
        lease = new_ulid()
        row = (lease, key.id, _HOST, os.getpid(), _LIFE, now + seconds)
        self._base.run("insert into dragoman_leases values (?, ?, ?, ?, ?, ?)", row)
        return lease

    def _count_running(self, key: str, now: float) -> int:
        rows = self._base.run(
            "select count(*) from dragoman_leases where key = ? and until > ?", (key, now)
        )
        return int(rows[0][0])

    def _read_windows(self, now: float, key: Key) -> dict[str, RateWindow]:
        minute = int(now // 60)
        found = self._base.run(
            "select minute, requests, tokens from dragoman_used where key = ? and minute >= ?",
            (key.id, minute - 1),
        )
        rows = {at: {"requests": requests, "tokens": tokens} for at, requests, tokens in found}
        this = rows.get(minute, {})
        last = rows.get(minute - 1, {})
        return {
            name: RateWindow(limit, this.get(name, 0), last.get(name, 0))
            for name, limit in key.rates.items()
        }

    def _add(self, now: float, key: str, requests: int = 0, tokens: int = 0) -> None:
        minute = int(now // 60)
        self._base.run(
            "insert into dragoman_used values (?, ?, ?, ?) on conflict (key, minute) do update set"
            " requests = dragoman_used.requests + excluded.requests, tokens = dragoman_used.tokens"
            " + excluded.tokens",
            (key, minute, requests, tokens),
        )
        if requests:
            # A clock that jumps forward and back must not give a minute's requests again, so the
            # latest rows stay, however old they seem.
            self._base.run(
                "delete from dragoman_used where key = ? and minute < ? and minute not in (select "
                "minute from dragoman_used where key = ? order by minute desc limit ?)",
                (key, minute - 1, key, _KEPT_MINUTES),
            )


def _find_month(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m")
