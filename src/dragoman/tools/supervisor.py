"""Run a command and end every process that it leaves behind. A program of its own; ``run_process`` starts it.

A daemon leaves its process group and its session, so killing the group does not reach it. The kernel hands
the orphans of a subreaper's descendants to the subreaper: this process sees them all, and kills them.

Protocol over the inherited socket: the supervisor sends ``exit CODE`` or ``failed ERRNO`` (the command did
not start). Then it waits until the other side closes the socket, by intent or by dying, kills what is left,
and exits. It imports nothing of the package and little of the standard library, to start fast.
"""

import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 5.0  # seconds in which to kill descendants that fork as fast as they are killed


def main(control: int, argv: list[str]) -> None:
    """Run ``argv``, report its end on ``control``, and kill its descendants once ``control`` is closed."""
    os.set_inheritable(control, False)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        # Signals that Python ignores would stay ignored in the command.
        command = os.posix_spawnp(
            argv[0], argv, os.environ, setsid=True, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
        )  # fmt: skip
    except OSError as error:
        os.write(control, f"failed {error.errno}".encode())
        return
    _close_output()
    while True:
        ready = select.select([control, wake_end], [], [])[0]
        if wake_end in ready:
            os.read(wake_end, 4096)
            _reap(control, command)
        if control in ready:  # it never sends anything, so this is its end
            break
    _kill_descendants()


def _close_output() -> None:
    """Leave standard input and output to the command: whoever reads its output waits for the last writer."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)


def _reap(control: int, command: int) -> bool:
    """Collect the processes that ended, report the command's end, and return whether any process is left."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == command:
                try:
                    os.write(control, f"exit {os.waitstatus_to_exitcode(ended[1])}".encode())
                except OSError:
                    pass  # the other side is gone
    except ChildProcessError:
        return False
    return True


def _kill_descendants() -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        for child in _children():
            try:
                os.kill(child, signal.SIGKILL)
            except OSError:
                pass  # it ended, or belongs to another user
        if not _reap(-1, -1):
            return
        time.sleep(0.002)


def _children() -> list[int]:
    """Return the direct children, orphans included; the children of a killed child come next time."""
    found: list[int] = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - without pathlib it starts faster
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    # The name of the program is in brackets and may contain anything; state and parent follow it.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if parent == os.getpid():
                found.append(int(name))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
