"""One row for each request of the last 31 days, the sums of all requests, and those in progress.

Each process adds its rows to the database of the ledger every two seconds, and to the sums of the
bill in the same transaction; if a process is killed, at most its last two seconds are lost.
Budgets do not depend on these numbers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from ..database import Database, open_database
from ..errors import scrub
from ..log.writer import finish_writing
from ..messages import new_ulid
from ..prices.results import EXACT
from .sums import KEY_LIMIT, SCHEMA, Billed, NameBounds, add_sums, prune_sums

T = TypeVar("T")
P = ParamSpec("P")

log = logging.getLogger("dragoman")

_SCHEMA = [
    (
        "create table if not exists dragoman_calls (at bigint not null, id text not null, "
        "key text not null, model text not null, status bigint not null, error text not null, "
        "input bigint not null, output bigint not null, usd bigint not null, "
        "unpriced bigint not null, latency bigint not null, session text not null, "
        "owner text not null, team text not null, tag text not null, vendor text not null)"
    ),
    "create index if not exists dragoman_calls_at on dragoman_calls (at)",
    # Version 0.2 wrote this table, which has no owner. Its rows are moved to the other one, also
    # while a gateway of that version still runs.
    (
        "create table if not exists dragoman_requests (at bigint not null, id text not null, "
        "key text not null, model text not null, status bigint not null, error text not null, "
        "input bigint not null, output bigint not null, usd bigint not null, "
        "unpriced bigint not null, latency bigint not null, session text not null)"
    ),
    "create index if not exists dragoman_requests_at on dragoman_requests (at)",
    *SCHEMA,
    (
        "create table if not exists dragoman_lost_reasoning (at bigint not null, "
        "key text not null, wire text not null, model text not null, session text not null)"
    ),
    (
        "create table if not exists dragoman_live ("
        "life text primary key, at double precision not null, data text not null)"
    ),
]
USAGE_LOCK = "usage"
"""The lock under which rows and sums are written."""
_FLUSH_SECONDS = 2.0
# if a process has not written for this many seconds, it is assumed to have ended
_FRESH_SECONDS = 15.0
_MAX_SESSIONS = 20  # maximum number of sessions that are named for a client
_MAX_LOSSES = 1000  # maximum number of pairs of a client and a session that are read
_MAX_LIVE = 200  # maximum number of running requests that one process lists
_MAX_ROWS = 1_000_000  # the oldest rows above this number are deleted
_MAX_WAITING = 100_000  # rows that wait while the database is unavailable
_DAYS = 31
_MOVED = 1000  # rows of an earlier version that are moved in one transaction
_MOVES = 20  # transactions that move rows between two flushes
_MOVE_SECONDS = 60.0  # seconds until earlier rows are looked for again
_MOST_TOKENS = 10**15  # of one request; the sums of many requests must fit into 64 bits
_LARGEST = 2**63 - 1  # the largest integer of both databases
_MAX_DIGITS = 18  # no cost has as many digits before the point
_UNIT = Decimal("1e-12")  # US dollars are stored as integers, so that sums are exact
# what the requests can be filtered by, and the columns of these
_EXACT = {
    "model": "model", "key": "key", "error": "error", "user": "owner", "team": "team", "tag": "tag",
}  # fmt: skip
_ONLY = {
    "failed": f"status >= 400 and error <> '{KEY_LIMIT}'",
    "answered": "status < 400",
    "unpriced": "unpriced > 0",
}
_SORTS = ("input", "output", "usd", "latency")


class UsageRow(Struct, frozen=True):
    """One finished request: ``at`` in milliseconds since 1970, ``latency`` in milliseconds.

    ``unpriced`` is 1 if the price of a call is unknown; ``usd`` is the known cost. ``error`` is
    the category of the error, and ``session`` the session in the event log that has its records.
    """

    at: int
    id: str
    key: str
    model: str
    status: int
    error: str
    input: int
    output: int
    usd: Decimal
    unpriced: int
    latency: int
    session: str
    user: str = ""
    team: str = ""
    tag: str = ""
    vendor: str = ""


class LostReasoning(Struct, frozen=True):
    """A request whose client did not send back the reasoning before its calls."""

    at: int
    key: str
    wire: str
    model: str
    session: str


class LosingClient(Struct, frozen=True):
    """A client that loses reasoning: how often, when last, and the sessions that have records."""

    key: str
    wire: str
    model: str
    requests: int
    at: int
    sessions: list[str]


_USD = UsageRow.__struct_fields__.index("usd")


class UsageBook:
    """Count the requests of this process, and read those of all processes from a database."""

    def __init__(self, place: str | Path | None) -> None:
        self._base = open_database(":memory:" if place is None else place, _SCHEMA)
        self._life = new_ulid()
        self._new: list[UsageRow] = []
        self._lost: list[LostReasoning] = []
        self._pruned = 0.0
        self._names = NameBounds(self._base)
        self._moving = 0.0  # when earlier rows are looked for again
        self._turn = asyncio.Lock()  # only one thread at a time may use the connection
        self.on_miss: Callable[[], None] | None = None  # called for each row that is left out

    def count(self, row: UsageRow) -> None:
        """Add a finished request to the rows in memory, which ``flush`` writes later."""
        if len(self._new) < _MAX_WAITING:
            self._new.append(row)

    def note_loss(self, loss: LostReasoning) -> None:
        """Add a request that lost reasoning to those in memory, which ``flush`` writes later."""
        if len(self._lost) < _MAX_WAITING:
            self._lost.append(loss)

    async def keep_flushing(self, live: Iterable[Any]) -> None:
        """Call ``flush`` every two seconds until the task is cancelled."""
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            await self.flush(live)
            await self.move_earlier()

    async def flush(self, live: Iterable[Any]) -> None:
        """Write the rows and the running requests, given by their accounts, to the database.

        If the database is unavailable, keep the rows and write them the next time. A row that it
        can never store is reported and left out.
        """
        now = time.perf_counter()
        shown = [
            {
                "id": each.id,
                "key": each.caller.owner,
                "model": each.model,
                "bytes": each.length,
                "seconds": now - each.began,
            }
            for each, _ in zip(live, range(_MAX_LIVE), strict=False)
        ]
        await finish_writing(self._flush(msgspec.json.encode({"live": shown})))

    async def move_earlier(self) -> None:
        """Move some rows of an earlier version to the present table, and add them to the sums."""
        if time.monotonic() < self._moving:
            return
        for _ in range(_MOVES):
            if await finish_writing(self._is_moved()):
                self._moving = time.monotonic() + _MOVE_SECONDS
                return

    async def read(
        self, select: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function that reads the database, in a thread."""
        return await self._use(select, self._base, *args, **kwargs)

    async def list_requests(
        self, since: int, wanted: Mapping[str, str], most: int
    ) -> list[UsageRow]:
        """Return the latest requests, of one ``model``, ``key`` or ``error`` if these are given.

        They can be of one ``user``, ``team`` or ``tag`` too. ``failed``, ``answered`` and
        ``unpriced`` restrict them to such requests, and ``until`` is their end. ``sort`` names a
        column whose largest values come first.
        """
        where = ["at >= ?"]
        values = [since, *[wanted[each] for each in _EXACT if each in wanted]]
        where += [f"{column} = ?" for each, column in _EXACT.items() if each in wanted]
        where += [condition for name, condition in _ONLY.items() if name in wanted]
        first = f"{wanted['sort']} desc, " if wanted.get("sort") in _SORTS else ""
        if wanted.get("until", "").isdigit():
            where.append("at < ?")
            values.append(int(wanted["until"]))
        rows = await self._select(
            f"select * from dragoman_calls where {' and '.join(where)} "  # noqa: S608 - our own
            f"order by {first}at desc limit ?",
            (*values, most),
        )
        return [UsageRow(*[*row[:8], row[8] * _UNIT, *row[9:]]) for row in rows]

    async def list_losses(self, since: int) -> list[LosingClient]:
        """Return the clients that lost reasoning since a time, the most frequent first."""
        rows = await self._select(
            "select key, wire, model, session, count(*), max(at) from dragoman_lost_reasoning "
            "where at >= ? group by 1, 2, 3, 4 order by 6 desc limit ?",
            (since, _MAX_LOSSES),
        )
        found: dict[tuple[str, str, str], LosingClient] = {}
        for key, wire, model, session, count, at in rows:
            earlier = found.get((key, wire, model)) or LosingClient(key, wire, model, 0, at, [])
            named = [session] if session and len(earlier.sessions) < _MAX_SESSIONS else []
            found[key, wire, model] = LosingClient(
                key, wire, model, earlier.requests + int(count), earlier.at,
                [*earlier.sessions, *named],
            )  # fmt: skip
        return sorted(found.values(), key=lambda each: -each.requests)

    async def list_live(self) -> list[dict[str, Any]]:
        """Return the running requests of all processes, the oldest first."""
        rows = await self._select(
            "select data from dragoman_live where at >= ?", (time.time() - _FRESH_SECONDS,)
        )
        live = [each for (data,) in rows for each in msgspec.json.decode(data)["live"]]
        return sorted(live, key=lambda each: -each["seconds"])

    def close(self) -> None:
        """Close the database."""
        self._base.close()

    # --- private methods

    async def _select(self, statement: str, values: Sequence[Any]) -> list[Any]:
        return await self._use(self._base.run, statement, values)

    async def _use(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread, which has the connection to itself until it has ended.

        A cancellation does not end the thread, so it does not end the wait for it either.
        """
        async with self._turn:
            return await finish_writing(asyncio.to_thread(function, *args, **kwargs))

    async def _flush(self, live: bytes) -> None:
        """Write what is in memory; keep it there if the database is unavailable."""
        async with self._turn:
            rows = self._sift(self._new)
            self._new = []
            lost, self._lost = self._lost, []
            try:
                try:
                    await asyncio.to_thread(self._write, rows, lost, live)
                except self._base.invalid:
                    # one of these can never be stored, so each of them is written by itself
                    await asyncio.to_thread(self._write_singly, rows, lost, live)
            except Exception as error:  # the rows are kept, whatever the driver raises
                log.warning("usage cannot be written: %s", scrub(str(error)))
                self._new = [*rows, *self._new][:_MAX_WAITING]
                self._lost = [*lost, *self._lost][:_MAX_WAITING]

    async def _is_moved(self) -> bool:
        """Move some rows of an earlier version; return whether none are left, or it failed."""
        try:
            return not await self._use(self._move)
        except Exception as error:  # it is tried again, whatever the driver raises
            log.warning("earlier usage cannot be summed up: %s", scrub(str(error)))
            return True

    def _sift(self, rows: Sequence[UsageRow]) -> list[UsageRow]:
        """Return the rows whose values the database can store; report the others."""
        kept = []
        for row in rows:
            if _to_values(row) is not None:
                kept.append(row)
                continue
            log.error("the usage of the request %s has a number that cannot be stored", row.id)
            if self.on_miss is not None:
                self.on_miss()
        return kept

    def _write(self, rows: Sequence[UsageRow], lost: Sequence[LostReasoning], live: bytes) -> None:
        with self._base.transaction(USAGE_LOCK) as now:
            self._add(rows)
            for loss in lost:
                statement = "insert into dragoman_lost_reasoning values (?, ?, ?, ?, ?)"
                self._base.run(statement, astuple(loss))
            self._base.run("delete from dragoman_live where at < ?", (now - _FRESH_SECONDS,))
            self._base.run(
                "insert into dragoman_live values (?, ?, ?) on conflict (life) "
                "do update set at = excluded.at, data = excluded.data",
                (self._life, now, live.decode()),
            )
            is_due = now - self._pruned > 3600
            if is_due:
                self._prune(now)
        if is_due:
            self._pruned = now

    def _write_singly(self, rows: list[UsageRow], lost: list[LostReasoning], live: bytes) -> None:
        """Write each row in a transaction of its own, and remove it from its list.

        A row that the database can never store is reported and left out.
        """
        waiting: list[Any]
        for waiting in (rows, lost):
            while waiting:
                try:
                    self._write(rows[:1], [] if rows else lost[:1], live)
                except self._base.invalid as error:
                    log.error("the usage of a request cannot be stored: %s", scrub(str(error)))  # noqa: TRY400 - without a traceback
                    if self.on_miss is not None:
                        self.on_miss()
                del waiting[0]

    def _add(self, rows: Iterable[UsageRow]) -> None:
        """Write rows, and add them to the sums."""
        marks = ", ".join("?" * len(UsageRow.__struct_fields__))
        billed = []
        for given in rows:
            row = replace(
                given,
                tag=self._names.bound("tag", given.at, given.tag),
                user=self._names.bound("user", given.at, given.user),
            )
            values = _to_values(row)
            if values is None:
                continue
            self._base.run(f"insert into dragoman_calls values ({marks})", values)  # noqa: S608
            billed.append(
                Billed(
                    at=row.at, key=row.key, user=row.user, team=row.team, tag=row.tag,
                    model=row.model, vendor=row.vendor, status=row.status, error=row.error,
                    input=row.input, output=row.output, usd=values[_USD], unpriced=row.unpriced,
                    latency=row.latency,
                )
            )  # fmt: skip
        add_sums(self._base, billed)

    def _move(self) -> bool:
        """Move the oldest rows of an earlier version; return whether there were any."""
        if not self._base.run("select at from dragoman_requests limit 1"):
            return False
        with self._base.transaction(USAGE_LOCK):
            last = self._base.run(
                "select at from dragoman_requests order by at limit 1 offset ?", (_MOVED - 1,)
            )
            until = last[0][0] if last else _LARGEST
            rows = self._base.run("select * from dragoman_requests where at <= ?", (until,))
            self._add([UsageRow(*[*row[:8], row[8] * _UNIT, *row[9:]]) for row in rows])
            self._base.run("delete from dragoman_requests where at <= ?", (until,))
        return True

    def _prune(self, now: float) -> None:
        before = int((now - _DAYS * 86_400) * 1000)
        self._base.run("delete from dragoman_calls where at < ?", (before,))
        self._base.run("delete from dragoman_lost_reasoning where at < ?", (before,))
        last = self._base.run(
            "select at from dragoman_calls order by at desc limit 1 offset ?", (_MAX_ROWS,)
        )
        if last:
            self._base.run("delete from dragoman_calls where at <= ?", (last[0][0],))
        prune_sums(self._base, int(now * 1000))


def _to_values(row: UsageRow) -> list[Any] | None:
    """Return the values of a row as they are stored; ``None`` if one of them cannot be stored."""
    values: list[Any] = [*astuple(row)]
    if not row.usd.is_finite() or row.usd.adjusted() > _MAX_DIGITS:
        return None
    values[_USD] = int(EXACT.divide(row.usd, _UNIT))
    if any(type(value) is int and abs(value) > _LARGEST for value in values):
        return None
    return None if max(abs(row.input), abs(row.output)) > _MOST_TOKENS else values
