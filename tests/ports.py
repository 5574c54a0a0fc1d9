"""Choose ports for programs that need to know theirs before they start."""

import fcntl
import secrets
import socket
import tempfile
from pathlib import Path
from typing import IO

# Linux chooses ports from 32,768 for a server that asks for any port, macOS from 49,152. A server
# could receive such a port before the program of a test has bound it.
_RANGE = range(15_000, 32_000)
_held: list[IO[bytes]] = []
"""Lock files of the ports this process chose, kept open so that no other process chooses them."""


def find_free_port() -> int:
    """Choose a port that neither the kernel nor another test process will give away."""
    folder = Path(tempfile.gettempdir(), "dragoman-test-ports")
    folder.mkdir(exist_ok=True)
    while True:
        port = secrets.choice(_RANGE)
        lock = (folder / str(port)).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as free:
                free.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _held.append(lock)
        return port
