"""Count what each key uses: cost by period, requests and tokens per minute, and concurrent calls.

``Ledger`` counts in memory for one process, in a SQLite file for the workers of one machine, or in
PostgreSQL for several machines. Costs are stored as decimal text, so that sums are exact. A call
of an account with a budget reserves its expected cost until it ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from ..database import is_postgres, open_database
from ..errors import QuotaExceededError, RateLimitError
from ..messages import new_ulid
from ..middleware.meters import RateWindow
from ..prices.results import EXACT
from .alerts import ALERTS, Alerts
from .budgets import PREFIXES, Budget
from .keys import Key
from .limits import check_delays, reject_concurrent
from .processes import is_alive

T = TypeVar("T")

_NANO = Decimal("1e-9")
_SCHEMA = [
    # The column ``month`` names a counter of costs: '' is the one in all, a month such as 2030-01
    # has its own, and the other periods of budgets have the names of ``Budget.find_counter``.
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
    # the expected cost of running calls, in billionths of a dollar, as long as their leases last
    (
        "create table if not exists dragoman_held (lease text not null, account text not null, "
        "nanos bigint not null, primary key (lease, account))"
    ),
    "create index if not exists dragoman_held_account on dragoman_held (account)",
    *ALERTS,
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


_MOST_HELD = 10**5  # the most US dollars that one call reserves
_PAIRS = (
    400  # counters that are read by their names; more are read with the others of their periods
)


class KeyBudget(Struct, frozen=True):
    """A budget in US dollars: its account in the ledger, and what is left of it.

    ``ends`` is when the period ends; a budget in all has no end.
    """

    account: str
    period: str
    limit: Decimal
    left: Decimal
    ends: datetime | None = None


class Ledger:
    """Count the requests, tokens and cost of keys, and enforce their limits.

    Tokens and cost are counted when a call ends. Until then its expected cost is reserved, so
    concurrent calls exceed a budget by no more than they cost above what was expected of them, and
    by one call.
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
        self.alerts = Alerts(self._base)
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
        counter = key, month or ""
        return self._read_counters([counter])[counter]

    def read_budgets(self, budgets: Iterable[Budget]) -> list[KeyBudget]:
        """Return what is left of budgets."""
        now = self._find_time()
        counters = {
            (each.account, each.find_counter(now)): (each, each.usd)
            for each in budgets
            if each.usd is not None
        }
        if len(counters) <= _PAIRS:
            spent = self._read_counters([*counters])
        else:
            names = {name for _, name in counters}
            rows = self._base.run(
                "select key, month, usd from dragoman_spent where month in "  # noqa: S608 - our own
                f"({_mark(names)})",
                (*names,),
            )
            spent = {(account, name): Decimal(usd) for account, name, usd in rows}
        return [
            KeyBudget(
                account=each.account,
                period=each.period,
                limit=usd,
                left=max(Decimal(0), EXACT.subtract(usd, spent.get(counter, Decimal(0)))),
                ends=each.find_end(now),
            )
            for counter, (each, usd) in counters.items()
        ]

    def admit(
        self, key: Key, seconds: float = 0.0, *, rates: bool = True, usd: Decimal = Decimal(0)
    ) -> str | None:
        """Count a request of a key; raise an error if one of the key's limits is reached.

        For a key with ``max_concurrency``, or with a budget and an expected cost of ``usd``,
        return the id of a lease, which ``settle`` releases. If a process dies, its leases are
        released when another call needs them, at the latest after ``seconds``. With
        ``rates=False``, only budgets are checked, and no request is counted.
        """
        with self._transaction(key) as now:
            self._check_budgets(now, key)
            windows = self._read_windows(now, key) if rates and key.rates else {}
            if rates:
                check_delays(key, [each.delay(1, now) for each in windows.values()])
            lease = None
            holds = bool(usd) and key.has_budget
            slots = key.max_concurrency if rates else None
            if slots is not None or holds:
                lease = self._lease(now, key, slots, seconds)
            if holds and lease is not None:
                self._hold(lease, key, usd)
            if rates:
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
                if key.has_budget:
                    self._base.run("delete from dragoman_held where lease = ?", (each,))
            if tokens:
                self._add(now, key.id, tokens=tokens)
            noted = None
            if money:
                spent = self._spend(now, key, money)
                noted = self.alerts.note(now, key.limits, spent)
        if noted is not None:
            self.alerts.remember(noted)

    def run_alone(self, work: Callable[[Alerts, float], T]) -> T:
        """Call a function with the alerts and the time, in a transaction of its own."""
        with self._base.transaction("alerts") as now:
            return work(self.alerts, now if self._clock is None else self._clock())

    # --- private methods

    def _adopt(self) -> None:
        """Migrate the costs in a file that version 0.1.0 wrote, so that budgets include them."""
        with self._base.transaction():
            if self._base.run("select 1 from sqlite_master where name = 'spent'"):
                self._base.run(
                    "insert or ignore into dragoman_spent select key, '', usd from spent"
                )
                self._base.run("drop table spent")

    def _find_time(self) -> float:
        return time.time() if self._clock is None else self._clock()

    @contextlib.contextmanager
    def _transaction(self, key: Key) -> Iterator[float]:
        """Open a transaction that locks the accounts of a key; yield the current time."""
        with self._base.transaction(*_list_accounts(key)) as now:
            yield now if self._clock is None else self._clock()

    def _check_budgets(self, now: float, key: Key) -> None:
        """Raise an error if a budget is exhausted, or reserved by calls in progress."""
        limits = key.limits
        if not limits:
            return
        counters = [(each.account, each.find_counter(now)) for each in limits]
        spent = self._read_counters(counters)
        left: list[tuple[Budget, Decimal]] = []
        for each, counter in zip(limits, counters, strict=True):
            left.append((each, EXACT.subtract(each.usd or Decimal(0), spent[counter])))
            if left[-1][1] <= 0:
                raise QuotaExceededError(_describe_exhausted(each, now))
        reserved = self._find_reserved(now, left)
        if reserved is not None:
            self._release_dead(now)
            reserved = self._find_reserved(now, left)
        if reserved is not None:
            raise RateLimitError(
                f"{reserved.describe()} is reserved by calls in progress", retry_after=1
            )

    def _find_reserved(self, now: float, left: Sequence[tuple[Budget, Decimal]]) -> Budget | None:
        """Return a budget of which running calls have reserved all that is left."""
        accounts = list(dict.fromkeys([each.account for each, _ in left]))
        rows = self._base.run(
            "select account, sum(nanos) from dragoman_held join dragoman_leases "  # noqa: S608
            f"on id = lease where until > ? and account in ({_mark(accounts)}) group by account",
            (now, *accounts),
        )
        held = {account: int(nanos) * _NANO for account, nanos in rows}
        for budget, amount in left:
            if held.get(budget.account, 0) >= amount:
                return budget
        return None

    def _hold(self, lease: str, key: Key, usd: Decimal) -> None:
        """Reserve the expected cost of a call in each account that has a budget."""
        nanos = math.ceil(min(usd, Decimal(_MOST_HELD)) / _NANO)
        accounts = list(dict.fromkeys([each.account for each in key.limits]))
        rows = [(lease, account, nanos) for account in accounts]
        self._base.run(
            f"insert into dragoman_held values {', '.join(['(?, ?, ?)'] * len(rows))}",  # noqa: S608
            [value for row in rows for value in row],
        )

    def _read_counters(
        self, counters: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], Decimal]:
        """Return the costs of counters, each an account and the name of its counter."""
        none = dict.fromkeys(counters, Decimal(0))
        if not counters:
            return none
        rows = self._base.run(
            "select key, month, usd from dragoman_spent where (key, month) in "  # noqa: S608
            f"(values {', '.join(['(?, ?)'] * len(counters))})",
            [value for counter in counters for value in counter],
        )
        return none | {(account, name): Decimal(usd) for account, name, usd in rows}

    def _spend(self, now: float, key: Key, money: Decimal) -> dict[tuple[str, str], Decimal]:
        """Add a cost to the counters of a key, and return what they contain then."""
        # the transaction has locked the accounts, so no other process changes the amounts
        month = _find_month(now)
        wanted = [(account, name) for account in _list_accounts(key) for name in ("", month)]
        wanted += [(each.account, each.find_counter(now)) for each in key.limits]
        counters = list(dict.fromkeys(wanted))
        before = self._read_counters(counters)
        after = {counter: EXACT.add(usd, money) for counter, usd in before.items()}
        self._base.run(
            "insert into dragoman_spent values "  # noqa: S608 - our own
            f"{', '.join(['(?, ?, ?)'] * len(after))} on conflict (key, month) "
            "do update set usd = excluded.usd",
            [value for counter, usd in after.items() for value in (*counter, f"{usd:f}")],
        )
        return after

    def _lease(self, now: float, key: Key, slots: int | None, seconds: float) -> str:
        if slots is not None and self._count_running(key.id, now) >= slots:
            self._release_dead(now)
            if self._count_running(key.id, now) >= slots:
                raise reject_concurrent(slots)
        lease = new_ulid()
        row = (lease, key.id, _HOST, os.getpid(), _LIFE, now + seconds)
        self._base.run("insert into dragoman_leases values (?, ?, ?, ?, ?, ?)", row)
        return lease

    def _release_dead(self, now: float) -> None:
        """Release the leases that have expired, and those of processes of this host that died."""
        found = self._base.run("select distinct pid from dragoman_leases where host = ?", (_HOST,))
        for (pid,) in found:
            # On Windows ``is_alive`` is always true, so the lease of a dead process is released
            # when it expires.
            if not is_alive(pid):
                self._base.run(
                    "delete from dragoman_leases where pid = ? and host = ?", (pid, _HOST)
                )
        self._base.run("delete from dragoman_leases where until <= ?", (now,))
        self._base.run(
            "delete from dragoman_held where lease not in (select id from dragoman_leases)"
        )

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


def _list_accounts(key: Key) -> list[str]:
    """Return the accounts of a key and of its budgets, in the order in which all lock them."""
    found = dict.fromkeys([*key.accounts, *[each.account for each in key.budgets]])
    return sorted(found, key=_find_rank)


def _find_rank(account: str) -> int:
    """Return 0 for a key, and then the place of the prefix of the other accounts."""
    return next((at for at, each in enumerate(PREFIXES, 1) if account.startswith(each)), 0)


def _describe_exhausted(budget: Budget, now: float) -> str:
    ends = budget.find_end(now)
    until = "" if ends is None else f"; the next period begins at {ends:%Y-%m-%dT%H:%M}Z"
    return f"{budget.describe()} is exhausted{until}"


def _mark(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


def _find_month(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m")
