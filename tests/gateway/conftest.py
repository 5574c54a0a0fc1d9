"""Provide real databases that gateways share: PostgreSQL with an empty schema per test, and Redis."""

import itertools
from urllib.parse import quote

import psycopg
import pytest

from ..log.conftest import server as server
from ..middleware.conftest import OwnRedis as OwnRedis
from ..middleware.conftest import own_redis as own_redis
from ..middleware.conftest import redis_url as redis_url

_numbers = itertools.count(1)


@pytest.fixture
def postgres_url(server: str) -> str:
    """Return the URL of an empty PostgreSQL schema."""
    schema = f"gateway{next(_numbers)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create schema {schema}")
    folder = dict(part.split("=") for part in server.split())["host"]
    return f"postgresql://postgres@/postgres?host={folder}&options={quote(f'-c search_path={schema}')}"


class OwnDatabase:
    """A PostgreSQL database for one test, which can be made unavailable and available again."""

    def __init__(self, server: str, name: str) -> None:
        self._server = server
        self._name = name
        self._run(f"create database {name}")
        folder = dict(part.split("=") for part in server.split())["host"]
        self.url = f"postgresql://postgres@/{name}?host={folder}"

    def _run(self, statement: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(statement)

    def cut(self) -> None:
        """Close every connection of the database, as a restart of the server does."""
        self._run(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = "
            f"'{self._name}'"
        )

    def stop(self) -> None:
        self._run(f"alter database {self._name} allow_connections false")
        self.cut()

    def start(self) -> None:
        self._run(f"alter database {self._name} allow_connections true")


@pytest.fixture
def own_postgres(server: str) -> OwnDatabase:
    return OwnDatabase(server, f"own{next(_numbers)}")
