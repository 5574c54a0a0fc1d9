"""Kill processes that write keys, usage, stored responses and cache entries, in the middle of a
write.

Two processes write the same names to the store at once, and both are killed. They are forks of a
process that has imported everything; this file is its program.
"""

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from dragoman import database
from dragoman.database import is_postgres
from dragoman.errors import RateLimitError
from dragoman.gateway.keys import MAX_NAME, MAX_PATTERNS, Key
from dragoman.gateway.keystore import KeyStore
from dragoman.gateway.ledger import Ledger
from dragoman.gateway.store import ResponseStore
from dragoman.gateway.stored_responses import CONVERSATION, ITEM, RESPONSE
from dragoman.middleware import SqliteStore

ROUNDS = 200 if os.environ.get("DRAGOMAN_EXHAUSTIVE") else 6
KINDS = (CONVERSATION, RESPONSE, ITEM)


def query(place: str, statement: str) -> list[Any]:
    connect: Any = psycopg.connect if is_postgres(place) else sqlite3.connect
    with closing(connect(place)) as base:
        return base.execute(statement).fetchall()


def content() -> str:
    """Return a text that takes several pages of the file, of this process."""
    return f"{os.getpid()} " * 1000


def is_whole(text: str) -> bool:
    return text == text[: len(text) // 1000] * 1000


async def write_keys(place: str, names: Iterable[str]) -> AsyncIterator[str]:
    store = KeyStore(place)
    for name in names:
        with suppress(ValueError):  # the other process was first
            store.create(name, models=(content()[:MAX_NAME].strip(),) * MAX_PATTERNS)
            yield name


def read_keys(place: str) -> set[str]:
    with closing(KeyStore(place)) as store:
        keys = store.read_keys()
        records = store.audit(limit=1_000_000)
    assert all(len({*key.models}) == 1 and len(key.models) == MAX_PATTERNS for key in keys)
    # every change has its audit record
    assert sorted([record.subject for record in records]) == sorted([key.id for key in keys])
    return {key.id for key in keys}


async def write_responses(place: str, names: Iterable[str]) -> AsyncIterator[str]:
    store = ResponseStore(place)
    for name in names:
        await store.put("ann", [(kind, name, content()) for kind in KINDS])
        yield name


def read_responses(place: str) -> set[str]:
    ResponseStore(place).close()  # create the table
    found = Counter(query(place, "select id, data from dragoman_kept"))
    assert set(found.values()) <= {3}  # one process stores a response with its items, or nothing
    assert all(is_whole(json.loads(data)) for _, data in found)
    return {name for name, _ in found}


async def write_usage(place: str, names: Iterable[str]) -> AsyncIterator[str]:
    """Use keys that allow one request each."""
    ledger = Ledger(place, clock=lambda: 600.0)
    for name in names:
        with suppress(RateLimitError):  # the other process was first
            ledger.admit(Key(name, "h", requests_per_minute=1))
            yield name


def read_usage(place: str) -> set[str]:
    Ledger(place, clock=lambda: 600.0).close()  # create the tables
    used = dict(query(place, "select key, requests from dragoman_used"))
    assert set(used.values()) <= {1}
    return set(used)


async def write_entries(place: str, names: Iterable[str]) -> AsyncIterator[str]:
    store = SqliteStore(place)
    for name in names:
        await store.put(name, content().encode())
        yield name


def read_entries(place: str) -> set[str]:
    asyncio.run(SqliteStore(place).get("none"))  # open the file as a cache does
    found: dict[str, bytes] = dict(query(place, "select key, value from entries"))
    [(total,)] = query(place, "select bytes from total")
    assert all(is_whole(value.decode()) for value in found.values())
    assert total == sum(map(len, found.values()))
    return set(found)


class Kind(NamedTuple):
    """How to write to a store for ever, and how to read what it has, checked."""

    write: Callable[[str, Iterable[str]], AsyncIterator[str]]
    read: Callable[[str], set[str]]
    is_once: bool = True  # whether only one process may write a name
    scan: int = 0  # how many steps of SQLite a process's first write takes for each name


STORES = {
    "keys": Kind(write_keys, read_keys),
    "usage": Kind(write_usage, read_usage),
    "responses": Kind(write_responses, read_responses, is_once=False, scan=20),
    "cache": Kind(write_entries, read_entries, is_once=False),
}


@pytest.fixture(scope="module")
def writers() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", __name__]
    pipe = subprocess.PIPE
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root) as process:
        yield process
        process.communicate()
    assert process.returncode == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "base"),
    [*[(kind, "sqlite") for kind in STORES], *[(kind, "postgres") for kind in STORES][:3]],
)
def test_killed_writers_lose_no_acknowledged_write_and_leave_none_half_done(
    tmp_path: Path, kind: str, base: str, writers: Any, request: pytest.FixtureRequest
) -> None:
    draw = random.Random(kind)
    place = str(tmp_path / "store.db")
    if base == "postgres":
        place = request.getfixturevalue("postgres_url")
    acknowledged = list[str]()
    held = set[str]()
    for _ in range(ROUNDS):
        scan = STORES[kind].scan * len(held) if base == "sqlite" else 0
        writers.stdin.write(f"{draw.randrange(1, 3000 + scan)} {len(held)} {kind} {place}\n")
        writers.stdin.flush()
        lines = takewhile(lambda line: line != "killed\n", writers.stdout)
        acknowledged += map(str.strip, lines)
        held = STORES[kind].read(place)
        assert held.issuperset(acknowledged)
    assert writers.poll() is None
    assert len(written := set(acknowledged)) > ROUNDS
    assert not STORES[kind].is_once or len(written) == len(acknowledged)


def kill_at(steps: int) -> None:
    """End this process in the middle of a statement, after this many steps of SQLite, or between
    two statements of PostgreSQL.
    """
    left = iter(range(steps))
    statements = iter(range(steps // 40))
    execute = psycopg.Connection.execute

    def count_statement(*arguments: Any, **options: Any) -> Any:
        if next(statements, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(*arguments, **options)

    def step() -> int:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    class Counted(sqlite3.Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.set_progress_handler(step, 1)

    # A busy machine may stop the other process for a while.
    database.BUSY_SECONDS = 60.0
    database._SETTINGS = "set lock_timeout = '60s'"  # noqa: SLF001
    psycopg.Connection.execute = count_statement  # type: ignore[method-assign]
    sqlite3.connect = partial(sqlite3.connect, factory=Counted)  # type: ignore[assignment]


async def write_for_ever(kind: str, place: str, start: int) -> None:
    async for name in STORES[kind].write(place, map("slot{}".format, count(start))):
        os.write(1, f"{name}\n".encode())  # in one call, so that no line is cut


if __name__ == "__main__":
    for line in sys.stdin:
        most, start, kind, place = line.strip().split(" ", 3)
        for steps in (int(most), int(most) * 2 // 3):
            if os.fork() == 0:
                kill_at(steps)
                asyncio.run(write_for_ever(kind, place, int(start)))
        for _ in range(2):
            assert os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGKILL
        os.write(1, b"killed\n")
