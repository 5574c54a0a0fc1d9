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
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            kind = LogFullError if error.errno == errno.ENOSPC else LogReadOnlyError
            raise kind(f"{path}: cannot be made, and a log needs it to be written: {error.strerror}") from None
        try:
            _lock(self._handle)
        except OSError:
            holder = os.read(self._handle, 20).decode("ascii", "replace").strip()
            os.close(self._handle)
            by = f" by process {holder}" if holder else ""
            raise LogLockedError(f"{subject}: is being written{by}; a log has one writer at a time") from None
        self._sign()

    def _sign(self) -> None:
        try:
            os.ftruncate(self._handle, 0)
            os.lseek(self._handle, 0, os.SEEK_SET)
            os.write(self._handle, b"%d\n" % os.getpid())
        except OSError:
            pass  # a full disk: the id is there for people, the lock holds without it

    def release(self) -> None:
        """Let the next writer in."""
        os.close(self._handle)
