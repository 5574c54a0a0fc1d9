"""Run a command and kill every process that it leaves behind.

``run_process`` starts this file as a separate program.

A daemon leaves its process group and its session, so killing the group does not reach it. The
kernel reparents orphaned descendants to a subreaper. This process is the subreaper: it finds all
of them and kills them.

Protocol over the inherited socket: the supervisor sends ``exit CODE`` or ``failed ERRNO`` (the
command did not start). It then waits until the parent process closes the socket or dies, kills the
remaining processes, and exits. Without a socket (``-PARENT``, for servers that a library starts),
it kills them when the command ends, on SIGTERM, or when the process ``PARENT`` dies. The program
imports few modules, so that it starts fast.
"""

import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 5.0  # seconds to keep killing descendants that fork as fast as they are killed


def main(given: int, argv: list[str]) -> int:
    """Run the command ``argv`` and kill its descendants when the socket ``given`` closes.

    Report the end of the command on the socket. A negative ``given`` is the process id of the
    parent instead, whose death has the same effect. Return the exit code of the command, if it has
    ended.
    """
    control = given if given >= 0 else None
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    terminated: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number))
    if control is not None:
        os.set_inheritable(control, False)
    else:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != -given:  # the parent died before this process asked for the signal
            return 128 + signal.SIGTERM
    try:
        # Restore the signals that Python ignores, which the command would otherwise ignore too.
        command = os.posix_spawnp(
            argv[0], argv, os.environ, setsid=True, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
        )  # fmt: skip
    except OSError as error:
        _report(control, f"failed {error.errno}")
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127
    _close_output()
    code: int | None = None
    while not terminated and (control is not None or code is None):
        ready = select.select([wake_end] if control is None else [wake_end, control], [], [])[0]
        if wake_end in ready:
            os.read(wake_end, 4096)
            ended, _ = _collect()
            if command in ended:
                code = os.waitstatus_to_exitcode(ended[command])
                _report(control, f"exit {code}")
        if control in ready:  # readable means closed: the parent never sends data
            break
    _kill_descendants()
    return code if code is not None and code >= 0 else 128 - (code or 0)


def _close_output() -> None:
    """Close this process's standard streams, so that readers see when the command closes them."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)


def _report(control: int | None, text: str) -> None:
    if control is not None:
        try:
            os.write(control, text.encode())
        except OSError:
            pass  # the parent process has closed the socket


def _collect() -> tuple[dict[int, int], bool]:
    """Reap the children that ended; return their statuses, and whether any child remains."""
    ended: dict[int, int] = {}
    try:
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended[child[0]] = child[1]
    except ChildProcessError:
        return ended, False
    return ended, True


def _kill_descendants() -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        for child in _children():
            try:
                os.kill(child, signal.SIGKILL)
            except OSError:
                pass  # the process ended, or belongs to another user
        if not _collect()[1]:
            return
        time.sleep(0.002)


def _children() -> list[int]:
    """Return the ids of this process's direct children.

    The children of a killed child become direct children, so the next call returns them.
    """
    found: list[int] = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - without pathlib it starts faster
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    # The program name is in parentheses and may contain anything; state and parent
                    # follow it.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if parent == os.getpid():
                found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
