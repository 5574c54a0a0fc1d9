"""Storage for clients of the Responses wire: responses, their items, and conversations.

Every row belongs to an owner, the id of a key, and is visible only to that owner. Rows expire
after the store's lifetime. The store is optional: a SQLite file, or a PostgreSQL database for
workers on several machines.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..database import open_database
from ..errors import OverloadedError

DAY = 86400.0
KEEP_SECONDS = 30 * DAY
MAX_ROWS = 20_000
"""The maximum number of rows per owner; the oldest are removed first."""
_SWEEP_SECONDS = 60.0
_SCHEMA = """
create table if not exists dragoman_kept (
    owner text not null, kind text not null, id text not null, data {bytes} not null, until double precision not null,
    primary key (owner, kind, id)
)
"""


class ResponseStore:
    """Store values by owner, kind and id, for a limited time."""

    def __init__(self, where: str | Path, *, keep_seconds: float = KEEP_SECONDS) -> None:
        self._base = open_database(where, [_SCHEMA])
        self._keep_seconds = keep_seconds
        self._lock = threading.Lock()
        self._swept = 0.0

    async def put(self, owner: str, rows: Sequence[tuple[str, str, Any]]) -> None:
        """Store an owner's values under their kinds and ids, all of them or none.

        Earlier values with the same kinds and ids are replaced.
        """
        written = [(kind, name, msgspec.json.encode(value)) for kind, name, value in rows]
        await self._work(self._put, owner, written)

    async def get(self, owner: str, kind: str, names: Sequence[str]) -> dict[str, Any]:
        """Return an owner's values that have one of the given ids, by id."""
        return {
            name: msgspec.json.decode(data)
            for name, data in await self._work(self._get, owner, kind, names)
        }

    async def delete(self, owner: str, kind: str, name: str) -> bool:
        """Remove a value; return whether it existed."""
        return bool(await self._work(self._delete, owner, kind, name))

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._base.close()

    # --- private methods that run in a thread

    async def _work(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return await asyncio.to_thread(self._locked, function, *args)
        except OverloadedError:
            raise
        except Exception as error:  # the SQLite and PostgreSQL drivers raise different exceptions
            raise OverloadedError(
                "the gateway's store cannot be used at the moment", retry_after=2
            ) from error

    def _locked(self, function: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            return function(*args)

    def _put(self, owner: str, rows: Sequence[tuple[str, str, bytes]]) -> None:
        now = time.time()
        statement = (
            "insert into dragoman_kept values (?, ?, ?, ?, ?) on conflict (owner, kind, id) "
            "do update set data = excluded.data, until = excluded.until"
        )
        with self._base.transaction():
            for row in rows:
                self._base.run(statement, (owner, *row, now + self._keep_seconds))
        if now - self._swept > _SWEEP_SECONDS:
            self._swept = now
            self._base.run("delete from dragoman_kept where until < ?", (now,))
            self._drop_oldest(owner)

    def _drop_oldest(self, owner: str) -> None:
        [(count,)] = self._base.run("select count(*) from dragoman_kept where owner = ?", (owner,))
        if count > MAX_ROWS:
            self._base.run(
                "delete from dragoman_kept where owner = ? and until <= (select until from "
                "dragoman_kept where owner = ? order by until limit 1 offset ?)",
                (owner, owner, count - MAX_ROWS - 1),
            )

    def _get(self, owner: str, kind: str, names: Sequence[str]) -> list[tuple[str, bytes]]:
        now = time.time()
        found = []
        for name in names:
            statement = (
                "select data from dragoman_kept where owner = ? and kind = ? and id = ? and until "
                ">= ?"
            )
            found += [
                (name, bytes(data))
                for (data,) in self._base.run(statement, (owner, kind, name, now))
            ]
        return found

    def _delete(self, owner: str, kind: str, name: str) -> list[Any]:
        sql = "delete from dragoman_kept where owner = ? and kind = ? and id = ? returning id"
        return self._base.run(sql, (owner, kind, name))
