"""Statistics for the admin page: usage by hour, key and model, and the requests in progress.

Each process adds its numbers to the database of the ledger every two seconds; if a process is
killed, at most its last two seconds are lost. Budgets do not depend on these numbers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..database import open_database
from ..errors import scrub
from ..events import Usage
from ..messages import new_ulid
from ..prices.results import EXACT

log = logging.getLogger("dragoman")

_SCHEMA = [
    (
        "create table if not exists dragoman_usage (hour bigint, key text, model text, requests "
        "bigint not null, failed bigint not null, input bigint not null, output bigint not null, "
        "usd text not null, primary key (hour, key, model))"
    ),
    (
        "create table if not exists dragoman_live ("
        "life text primary key, at double precision not null, data text not null)"
    ),
]
_FLUSH_SECONDS = 2.0
# if a process has not written for this many seconds, it is assumed to have ended
_FRESH_SECONDS = 15.0
_MAX_LIVE = 200  # maximum number of running requests that one process lists


class Row(NamedTuple):
    """One key's usage of one model in one hour; ``hour`` counts hours since 1970."""

    hour: int
    key: str
    model: str
    requests: int
    failed: int
    input: int
    output: int
    usd: Decimal

    @property
    def is_uncharged(self) -> bool:
        """Whether tokens were used and no cost was counted: they are free, or have no price."""
        return not self.usd and self.input + self.output > 0


class UsageBook:
    """Count the usage of this process, and read the usage of all processes from a database."""

    def __init__(self, place: str | Path | None) -> None:
        self._base = open_database(":memory:" if place is None else place, _SCHEMA)
        self._life = new_ulid()
        self._new: dict[tuple[int, str, str], list[Any]] = {}
        self._turn = asyncio.Lock()  # only one thread at a time may use the connection

    def count(self, key: str, model: str, status: int, usage: Usage, money: Decimal) -> None:
        """Add a finished request to the counts in memory, which ``flush`` writes later."""
        row = self._new.setdefault(
            (int(time.time() // 3600), key, model), [0, 0, 0, 0, Decimal(0)]
        )
        row[0] += 1
        row[1] += status >= 400
        row[2] += usage.input_tokens or 0
        row[3] += usage.output_tokens or 0
        row[4] = EXACT.add(row[4], money)

    async def keep_flushing(self, live: Iterable[Any]) -> None:
        """Call ``flush`` every two seconds until the task is cancelled."""
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            await self.flush(live)

    async def flush(self, live: Iterable[Any]) -> None:
        """Write the counts and the running requests, given by their accounts, to the database.

        If the database is unavailable, keep the counts and write them the next time.
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
        rows, self._new = self._new, {}
        try:
            async with self._turn:
                await asyncio.to_thread(
                    self._write, rows, msgspec.json.encode({"pid": os.getpid(), "live": shown})
                )
        except self._base.errors as error:
            log.warning("usage cannot be written: %s", scrub(str(error)))
            for (_, key, model), (requests, failed, asked, written, money) in rows.items():
                self.count(key, model, 0, Usage(asked, written), money)
                counted = self._new[int(time.time() // 3600), key, model]
                counted[0] += requests - 1
                counted[1] += failed

    async def read(self, hours: int) -> tuple[list[Row], list[dict[str, Any]]]:
        """Return the usage in the last ``hours`` and the running requests, of all processes."""
        async with self._turn:
            return await asyncio.to_thread(self._read, hours)

    def close(self) -> None:
        """Close the database."""
        self._base.close()

    # --- private methods that run in a thread

    def _write(self, rows: Mapping[tuple[int, str, str], list[Any]], live: bytes) -> None:
        with self._base.transaction("usage") as now:
            for (hour, key, model), (requests, failed, asked, written, money) in rows.items():
                found = self._base.run(
                    "select usd from dragoman_usage where hour = ? and key = ? and model = ?",
                    (hour, key, model),
                )
                total = EXACT.add(Decimal(found[0][0]) if found else Decimal(0), money)
                self._base.run(
                    "insert into dragoman_usage values (?, ?, ?, ?, ?, ?, ?, ?) on conflict (hour,"
                    " key, model) do update set requests = dragoman_usage.requests + "
                    "excluded.requests, failed = dragoman_usage.failed + excluded.failed, input ="
                    " dragoman_usage.input + excluded.input, output = dragoman_usage.output + "
                    "excluded.output, usd = excluded.usd",
                    (hour, key, model, requests, failed, asked, written, f"{total:f}"),
                )
            self._base.run("delete from dragoman_live where at < ?", (now - _FRESH_SECONDS,))
            self._base.run(
                "insert into dragoman_live values (?, ?, ?) on conflict (life) "
                "do update set at = excluded.at, data = excluded.data",
                (self._life, now, live.decode()),
            )

    def _read(self, hours: int) -> tuple[list[Row], list[dict[str, Any]]]:
        with self._base.transaction("usage") as now:
            first = int(now // 3600) - hours + 1
            rows: list[Any] = self._base.run(
                "select * from dragoman_usage where hour >= ? order by hour", (first,)
            )
            live = self._base.run(
                "select data from dragoman_live where at >= ?", (now - _FRESH_SECONDS,)
            )
        found = [Row(*[*counts, Decimal(usd)]) for *counts, usd in rows]
        return found, [each for (data,) in live for each in msgspec.json.decode(data)["live"]]
