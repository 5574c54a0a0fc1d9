"""Drive a program at a pseudo-terminal: send keys and read what a person would see."""

import fcntl
import multiprocessing
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from multiprocessing.connection import Connection
from typing import Self

from dragoman.cli import main

from ..waiting import PATIENCE

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07")

# Variables that the test terminal sets; the values of the outer environment are removed.
_ITS_OWN = ("NO_COLOR", "TERM", "COLUMNS", "LINES")

# Each program is a fork of a process that has imported the commands, because an import takes most
# of the CPU time of a short command.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [f"dragoman.cli.{name}" for name in ("agent", "chat", "keys", "local", "log", "models")]
    + ["dragoman.local", "prompt_toolkit", "rich.live", "rich.markdown"]
)


def _run(terminal: Connection, words: tuple[str, ...], variables: dict[str, str]) -> None:
    """Run a command in a session of its own, at the given terminal."""
    os.setsid()
    fcntl.ioctl(terminal.fileno(), termios.TIOCSCTTY, 0)
    for standard in range(3):
        os.dup2(terminal.fileno(), standard)
    terminal.close()
    sys.stdin = os.fdopen(0)
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w")
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["dragoman", *words]
    main()


class Terminal:
    """Runs ``dragoman ...`` in a pseudo-terminal."""

    def __init__(self, *words: str, columns: int = 80, **variables: str) -> None:
        self.raw = ""
        self._at = 0
        self._own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in _ITS_OWN}
        given = {**environment, "TERM": "xterm-256color", **variables}
        with Connection(theirs) as terminal:
            self.process = _FORKS.Process(target=_run, args=(terminal, words, given))
            self.process.start()

    def type(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def see(self, text: str, seconds: float = PATIENCE) -> str:
        """Wait for a text in the unread output; return the output up to its end."""
        end = time.monotonic() + seconds
        while (found := self._text().find(text, self._at)) < 0:
            left = end - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"never saw {text!r}; only {self._text()[self._at :]!r}")
        seen = self._text()[self._at : found + len(text)]
        self._at = found + len(text)
        return seen

    def drain(self, seconds: float) -> None:
        """Read the output of the program for a number of seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._read(left):
            pass

    def _text(self) -> str:
        return _ESCAPES.sub("", self.raw)

    def wait(self) -> int:
        while self._read(PATIENCE):
            pass
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, f"waited {PATIENCE:.0f} s for the end"
        return self.process.exitcode

    def _read(self, seconds: float) -> bool:
        if not select.select([self._own], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._own, 65536)
        except OSError:  # the program has closed its end of the terminal
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.pid is not None and self.process.exitcode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.join()
        os.close(self._own)
