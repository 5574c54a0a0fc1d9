"""Start log writers in separate processes that tests kill, lock out, or let run out of disk space."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dragoman

from ..programs import require

PROGRAM = Path(__file__).with_name("writing_process.py")
# Set the path of the package, because a child process that runs as another user may not find it
# otherwise.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(dragoman.__file__).parents[1])}


def start(
    *arguments: str, prefix: Sequence[str] = (), limit: int | None = None
) -> subprocess.Popen[str]:
    def restrict() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(
        [*prefix, sys.executable, str(PROGRAM), *arguments], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
        preexec_fn=restrict if limit is not None else None,
    )  # fmt: skip


def on_small_disk(folder: Path, then: str = "") -> list[str]:
    """Return the start of a command that runs with a small disk, mounted for it alone, and with
    the shell's commands ``then`` at its end. It exits with 77 if mounting is not allowed.
    """
    script = f'mount -t tmpfs -o size=1m tmpfs "$0" || exit 77; "$@"{then}'
    return [require("unshare"), "-rm", "sh", "-c", script, str(folder)]


@contextmanager
def killing(where: str) -> Iterator[Callable[[int, int], list[str]]]:
    """Yield a function that starts a writer, kills it after a number of acknowledged records, and
    returns all acknowledgements.
    """
    with start(where) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        read = process.stdout.readline

        def kill_after(acknowledgements: int, threads: int) -> list[str]:
            assert process.stdin is not None
            process.stdin.write(f"{threads}\n")
            process.stdin.flush()
            ready, pid = read().split()
            assert ready == "ready"
            lines = [read() for _ in range(acknowledgements)]
            os.kill(int(pid), signal.SIGKILL)
            lines += iter(read, "end -9\n")
            return lines

        yield kill_after
        process.stdin.close()
