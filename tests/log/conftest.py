"""Provide both log stores; PostgreSQL is a real server that runs for the whole test session."""

import itertools
from collections.abc import Callable, Iterator
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from dragoman.log import EventLog, MemoryLog, PostgresLog, SqliteLog

from ..databases import server as server

Open = Callable[..., EventLog]
_numbers = itertools.count(1)


@pytest.fixture
def conninfo(server: str) -> str:
    """Yield a connection string with an empty schema for this test."""
    schema = f"test{next(_numbers)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"{server} options='-c search_path={schema}'"


@pytest.fixture
def address(conninfo: str) -> str:
    """Return the URL of an empty log on a PostgreSQL server, as the command line accepts it."""
    parts = {key: quote(str(value), safe="") for key, value in conninfo_to_dict(conninfo).items()}
    query = "&".join(f"{key}={value}" for key, value in parts.items() if key != "dbname")
    return f"postgresql:///{parts['dbname']}?{query}"


def _open(request: pytest.FixtureRequest, kind: str, *, readonly: bool = False) -> EventLog:
    if kind == "postgres":
        return PostgresLog(request.getfixturevalue("conninfo"), readonly=readonly)
    return SqliteLog(request.getfixturevalue("tmp_path") / "log.db", readonly=readonly)


@pytest.fixture(params=["sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Return a function that opens the test's log; logs that stay open are closed at the end."""
    opened: list[EventLog] = []

    def opener(*, readonly: bool = False) -> EventLog:
        opened.append(_open(request, request.param, readonly=readonly))
        return opened[-1]

    yield opener
    for log in opened:
        log.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[EventLog]:
    """Return an open and empty log of every kind."""
    if request.param == "memory":
        with MemoryLog() as log:
            yield log
        return
    with _open(request, request.param) as log:
        yield log
