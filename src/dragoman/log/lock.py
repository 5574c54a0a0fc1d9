"""One writer per file, held by the operating system, so that it ends with the process however that ends."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from .errors import LogFullError, LogLockedError, LogReadOnlyError

if sys.platform == "win32":
    import msvcrt

    # Windows refuses to read what is locked, and byte 0 on holds the holder's process id.
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
    """An exclusive lock on a file made for the purpose, which stays behind when it is released."""

    def __init__(self, path: Path, subject: Path) -> None:
        self._path = path
        self._subject = subject
        self._handle = self._acquire()

    def keep(self) -> None:
        """Make sure that the lock is still the one others see, and take it again if its file was deleted.

        Programs that clean up folders delete lock files. Another writer may then have made and locked a
        new one: ``LogLockedError`` as long as it holds it.
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
                    f"{self._path}: cannot be made, and a log needs it to be written: {error.strerror}"
                ) from None
            try:
                _lock(handle)
            except OSError:
                holder = os.read(handle, 20).decode("ascii", "replace").strip()
                os.close(handle)
                by = f" by process {holder}" if holder else ""
                raise LogLockedError(f"{self._subject}: is being written{by}; a log has one writer at a time") from None
            if self._is_in_place(handle):
                _sign(handle)
                return handle
            os.close(handle)  # it was deleted between opening and locking: nobody else sees this lock

    def _is_in_place(self, handle: int) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(handle))
        except OSError:
            return False

    def release(self) -> None:
        """Let the next writer in."""
        os.close(self._handle)


def _sign(handle: int) -> None:
    """Write the process id into the lock file, for the message that a second writer gets."""
    try:
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, b"%d\n" % os.getpid())
    except OSError:
        pass  # a full disk: the lock holds without it
