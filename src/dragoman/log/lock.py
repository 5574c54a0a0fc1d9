"""Allow one writer per file, by a lock that the system releases when the process ends.

``filelock`` is not used: its lock does not name the process that holds it, and does not notice
that the lock file was deleted while it is held.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from .errors import LogFullError, LogLockedError, LogReadOnlyError

if sys.platform == "win32":
    import msvcrt

    # Lock a byte far from the start: on Windows a locked range cannot be read, and the file starts
    # with the holder's process id.
    _OFFSET = 1 << 30

    def _lock(handle: int) -> None:
        os.lseek(handle, _OFFSET, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(handle, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FileLock:
    """An exclusive lock on a separate lock file, which is not deleted on release."""

    def __init__(self, path: Path, subject: Path) -> None:
        self._path = path
        self._subject = subject
        self._handle = self._acquire()

    def keep(self) -> None:
        """Check that the lock file still exists, and lock a new one if it was deleted.

        Programs that clean up folders delete lock files. Raise ``LogLockedError`` if another
        writer has created and locked a new file in the meantime.
        """
        if self._is_in_place(self._handle):
            return
        handle = self._acquire()
        os.close(self._handle)
        self._handle = handle

    def _acquire(self) -> int:
        while True:
            try:
                handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                kind = LogFullError if error.errno == errno.ENOSPC else LogReadOnlyError
                raise kind(
                    f"{self._path}: cannot be created, and writing the log requires it: "
                    f"{error.strerror}"
                ) from None
            try:
                _lock(handle)
            except OSError:
                holder = os.read(handle, 20).decode("ascii", "replace").strip()
                os.close(handle)
                by = f" by process {holder}" if holder else ""
                raise LogLockedError(
                    f"{self._subject}: is being written{by}; a log has one writer at a time"
                ) from None
            if self._is_in_place(handle):
                _sign(handle)
                return handle
            # the file was deleted between opening and locking, so no other process sees this lock
            os.close(handle)

    def _is_in_place(self, handle: int) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(handle))
        except OSError:
            return False

    def release(self) -> None:
        """Release the lock."""
        os.close(self._handle)


def _sign(handle: int) -> None:
    """Write the process id into the lock file, for the error message of a second writer."""
    try:
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, b"%d\n" % os.getpid())
    except OSError:
        pass  # the disk is full; the lock works without the process id
