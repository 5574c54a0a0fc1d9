"""Stores for the cache: a SQLite file for one machine, Redis for many.

Both stores have a TTL and a size limit.
"""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ..database import Database, open_database
from .layer import check_number
from .redis import NOW, RedisServer

if TYPE_CHECKING:
    from redis.asyncio import Redis

_GIB = 1024**3
# how many seconds must pass before an entry's time of last use is written again
_TOUCH_SECONDS = 60.0


class Store(ABC):
    """Store values by key.

    An entry expires after ``ttl`` seconds, or earlier if the size limit is reached.
    """

    @abstractmethod
    async def get(self, key: str) -> bytes | None:
        """Return the value stored under a key, or ``None`` if there is none."""

    @abstractmethod
    async def put(self, key: str, value: bytes) -> None:
        """Store a value; if the size limit is exceeded, evict the least recently used entries."""

    async def close(self) -> None:  # noqa: B027
        """Close the connection to the store."""


def open_store(store: Store | str | os.PathLike[str]) -> Store:
    """Return the given store, or open the one at a ``redis://`` URL or a SQLite file's path."""
    if isinstance(store, Store):
        return store
    if isinstance(store, str) and store.startswith(("redis://", "rediss://", "unix://")):
        return RedisStore(store)
    return SqliteStore(store)


def _check(owner: str, ttl: float | None, max_bytes: int) -> None:
    if ttl is not None:
        check_number(owner, "ttl", ttl, least=0.001)
    check_number(owner, "max_bytes", max_bytes, least=1, whole=True)


# --- the cache store in a SQLite file ----------------------------------------------------------

_SCHEMA = [
    # Needed for the total size: only with recursive triggers does REPLACE run the DELETE trigger.
    "PRAGMA recursive_triggers = ON",
    """CREATE TABLE IF NOT EXISTS entries (
        key TEXT PRIMARY KEY, value BLOB NOT NULL, size INTEGER NOT NULL, created REAL NOT NULL, used REAL NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS entries_by_use ON entries (used, size)",
    """CREATE TABLE IF NOT EXISTS total
        (one INTEGER PRIMARY KEY CHECK (one = 1), bytes INTEGER NOT NULL)""",
    "INSERT OR IGNORE INTO total VALUES (1, 0)",
    """CREATE TRIGGER IF NOT EXISTS entry_added AFTER INSERT ON entries
        BEGIN UPDATE total SET bytes = bytes + new.size; END""",
    """CREATE TRIGGER IF NOT EXISTS entry_removed AFTER DELETE ON entries
        BEGIN UPDATE total SET bytes = bytes - old.size; END""",
]
_EVICT = """
DELETE FROM entries WHERE key = (SELECT key FROM entries WHERE key <> ? ORDER BY used LIMIT 1)
RETURNING size"""


class SqliteStore(Store):
    """A cache in a SQLite file, which several processes of one machine may share.

    ``max_bytes`` limits the total size of the values, 1 GiB by default. The store uses a thread of
    its own for all database access.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        ttl: float | None = None,
        max_bytes: int = _GIB,
        clock: Callable[[], float] = time.time,
    ) -> None:
        _check("SqliteStore", ttl, max_bytes)
        self.path = Path(path)
        self.ttl = ttl
        self.max_bytes = max_bytes
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "dragoman-cache")
        self._database: Database | None = None

    async def get(self, key: str) -> bytes | None:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._get, key)

    async def put(self, key: str, value: bytes) -> None:
        if len(value) <= self.max_bytes:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._put, key, value)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)

    # --- methods that run in the thread of the database

    def _open(self) -> Database:
        if self._database is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Entries are not synced one by one: a power failure may remove the last ones.
            self._database = open_database(self.path, _SCHEMA, busy_seconds=5)
        return self._database

    def _get(self, key: str) -> bytes | None:
        database = self._open()
        now = self._clock()
        rows = database.run("SELECT value, created, used FROM entries WHERE key = ?", (key,))
        if not rows:
            return None
        value, created, used = rows[0]
        if self.ttl is not None and created + self.ttl <= now:
            database.run("DELETE FROM entries WHERE key = ? AND created = ?", (key, created))
            return None
        if used + _TOUCH_SECONDS < now:
            database.run("UPDATE entries SET used = ? WHERE key = ?", (now, key))
        return bytes(value)

    def _put(self, key: str, value: bytes) -> None:
        database = self._open()
        now = self._clock()
        with database.transaction():
            entry = (key, value, len(value), now, now)
            database.run("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)", entry)
            excess = database.run("SELECT bytes FROM total")[0][0] - self.max_bytes
            while excess > 0 and (gone := database.run(_EVICT, (key,))):
                excess -= gone[0][0]

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


# --- the cache store in Redis ------------------------------------------------------------------

# Lua script that stores an entry. KEYS: the entry, the index of entries by last use, the sizes of
# the entries. ARGV: value, TTL in milliseconds or 0, size limit. The script removes expired
# entries from the index, so that the total size is correct.
_PUT = (
    NOW
    + """
local function drop(key)
  redis.call('DEL', key)
  redis.call('ZREM', KEYS[2], key)
  local size = redis.call('HGET', KEYS[3], key)
  if size then
    redis.call('HDEL', KEYS[3], key)
    redis.call('HINCRBY', KEYS[3], 'total', -tonumber(size))
  end
end
drop(KEYS[1])
local ttl = tonumber(ARGV[2])
if ttl > 0 then redis.call('SET', KEYS[1], ARGV[1], 'PX', ttl) else redis.call('SET', KEYS[1], ARGV[1]) end
redis.call('ZADD', KEYS[2], now, KEYS[1])
redis.call('HSET', KEYS[3], KEYS[1], #ARGV[1])
local total = redis.call('HINCRBY', KEYS[3], 'total', #ARGV[1])
while total > tonumber(ARGV[3]) do
  local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if not oldest or oldest == KEYS[1] then break end
  drop(oldest)
  total = tonumber(redis.call('HGET', KEYS[3], 'total'))
end
for _, key in ipairs(redis.call('ZRANGE', KEYS[2], 0, 9)) do
  if redis.call('EXISTS', key) == 0 then drop(key) end
end
return 'OK'
"""
)
_GET = (
    NOW
    + """
local value = redis.call('GET', KEYS[1])
if value then redis.call('ZADD', KEYS[2], 'XX', now, KEYS[1]) end
return value
"""
)


class RedisStore(Store):
    """A cache in Redis, for many machines; ``client`` is a URL or a ``redis.asyncio.Redis``.

    All stores with the same ``prefix`` share their entries and the size limit, 1 GiB by default.
    """

    def __init__(
        self,
        client: str | Redis,
        *,
        prefix: str = "dragoman:cache:",
        ttl: float | None = None,
        max_bytes: int = _GIB,
    ) -> None:
        _check("RedisStore", ttl, max_bytes)
        self._server = RedisServer(client, "RedisStore")
        self.prefix = prefix
        self.ttl = ttl
        self.max_bytes = max_bytes
        self._putting = self._server.script(_PUT)
        self._getting = self._server.script(_GET)

    async def get(self, key: str) -> bytes | None:
        value: bytes | None = await self._getting(self._keys(key))
        return value

    async def put(self, key: str, value: bytes) -> None:
        if len(value) <= self.max_bytes:
            ttl = 0 if self.ttl is None else max(1, round(self.ttl * 1000))
            await self._putting(self._keys(key), value, ttl, self.max_bytes)

    async def close(self) -> None:
        await self._server.close()

    def _keys(self, key: str) -> list[str]:
        return [f"{self.prefix}entry:{key}", f"{self.prefix}used", f"{self.prefix}sizes"]
