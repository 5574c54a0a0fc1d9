"""Provide a real Redis server, started on demand."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from ..programs import require


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_until_up(port: int, server: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        if server.poll() is not None:
            pytest.fail(f"redis-server ended with status {server.returncode}")
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail("redis-server did not come up within 10 s")


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a real Redis server on a free loopback port; yield its URL."""
    binary = require("redis-server")
    port = _free_port()
    folder = tmp_path_factory.mktemp("redis")
    settings = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--dir",
        str(folder),
    ]
    server = subprocess.Popen(
        [binary, *settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_until_up(port, server)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(timeout=10)
