"""Provide real Redis servers, started on demand: one for all tests, or one for a test."""

import inspect
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman import errors
from tests.waiting import block_until

from ..ports import find_free_port
from ..programs import require

ERRORS = [
    kind
    for name in errors.__all__
    if inspect.isclass(kind := getattr(errors, name)) and issubclass(kind, errors.ProviderError)
]


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
