"""Kill processes that write keys, stored responses and cache entries, in the middle of a write.

The process that is killed is a fork of one that has imported everything; this file is its program.
"""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dragoman.gateway.keystore import KeyStore
from dragoman.gateway.store import ResponseStore
from dragoman.gateway.stored_responses import CONVERSATION, ITEM, RESPONSE
from dragoman.middleware import SqliteStore

KILLS = 400 if os.environ.get("DRAGOMAN_EXHAUSTIVE") else 12
KINDS = (CONVERSATION, RESPONSE, ITEM)


def names() -> Iterator[str]:
    """Yield a new name for every write, of this process and of later ones."""
    return map(f"{os.getpid()}-{{}}".format, count())


def content(name: str) -> str:
    """Return a text that takes several pages of the file."""
    return name * 1000


async def write_keys(place: str) -> AsyncIterator[str]:
    store = KeyStore(place)
    for name in names():
        store.create(name, models=(content(name),))
        yield name


def read_keys(place: str) -> set[str]:
    with closing(KeyStore(place)) as store:
        keys, records = store.read_keys(), store.audit(limit=1_000_000)
    assert all(key.models == (content(key.id),) for key in keys)
    # every change has its audit record
    assert sorted([record.subject for record in records]) == sorted([key.id for key in keys])
    return {key.id for key in keys}


async def write_responses(place: str) -> AsyncIterator[str]:
    store = ResponseStore(place)
    for name in names():
        await store.put("ann", [(kind, name, {"text": content(name)}) for kind in KINDS])
        yield name


def read_responses(place: str) -> set[str]:
    with closing(sqlite3.connect(place)) as base:
        found = {name for (name,) in base.execute("select id from dragoman_kept")}
    store = ResponseStore(place)
    for kind in KINDS:  # a response is stored with its items, or not at all
        kept = asyncio.run(store.get("ann", kind, sorted(found)))
        assert kept == {name: {"text": content(name)} for name in found}
    store.close()
    return found


async def write_entries(place: str) -> AsyncIterator[str]:
    store = SqliteStore(place)
    for name in names():
        await store.put(name, content(name).encode())
        yield name


def read_entries(place: str) -> set[str]:
    asyncio.run(SqliteStore(place).get("none"))  # open the file as a cache does
    with closing(sqlite3.connect(place)) as base:
        found: dict[str, bytes] = dict(base.execute("select key, value from entries").fetchall())
        [(total,)] = base.execute("select bytes from total")
    assert found == {name: content(name).encode() for name in found}
    assert total == sum(map(len, found.values()))
    return set(found)


class Kind(NamedTuple):
    """How to write to a store for ever, and how to read what it has, checked."""

    write: Callable[[str], AsyncIterator[str]]
    read: Callable[[str], set[str]]


STORES = {
    "keys": Kind(write_keys, read_keys),
    "responses": Kind(write_responses, read_responses),
    "cache": Kind(write_entries, read_entries),
}


@pytest.mark.parametrize("kind", STORES)
def test_killed_writer_loses_no_acknowledged_write_and_leaves_none_half_done(
    tmp_path: Path, kind: str
) -> None:
    draw, place = random.Random(kind), str(tmp_path / "store.db")
    acknowledged: set[str] = set()
    command = [sys.executable, "-m", __name__, kind, place]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(KILLS):
            process.stdin.write(f"{draw.randrange(1, 3000)}\n")
            process.stdin.flush()
            lines = takewhile(lambda line: line != "killed\n", process.stdout)
            acknowledged.update(map(str.strip, lines))
            assert acknowledged <= STORES[kind].read(place)
        process.stdin.close()
    assert process.returncode == 0
    assert len(acknowledged) > KILLS


def kill_at(steps: int) -> None:
    """End this process in the middle of a statement, after this many steps of SQLite."""
    left = iter(range(steps))

    def step() -> int:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    class Counted(sqlite3.Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.set_progress_handler(step, 1)

    sqlite3.connect = partial(sqlite3.connect, factory=Counted)  # type: ignore[assignment]


async def write_for_ever(kind: str, place: str) -> None:
    async for name in STORES[kind].write(place):
        os.write(1, f"{name}\n".encode())  # in one call, so that no line is cut


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            kill_at(int(line))
            asyncio.run(write_for_ever(*sys.argv[1:]))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        os.write(1, b"killed\n")
