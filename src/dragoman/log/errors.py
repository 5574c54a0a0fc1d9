"""What can go wrong with a log.

::

    LogError
    ├── InvalidRecordError     what was handed in does not fit the catalogue; the field is named
    │   └── UnknownTypeError   there is no such event type
    ├── LogClosedError         the log was closed, or was opened in another process
    ├── LogLockedError         another process writes this log, or runs this session
    ├── LogConflictError       another process has continued this session
    ├── LogReadOnlyError       it was opened for reading, or the file or server may not be written
    ├── LogFullError           the disk is full; the log goes on once there is room
    ├── LogStorageError        the disk or the server failed
    ├── LogCorruptError        the file is damaged, or no log at all
    └── LogVersionError        a newer version of this package wrote it

An append that raises any of these was not acknowledged, and none of them undoes an acknowledged one.
"""

from __future__ import annotations


class LogError(Exception):
    """The root of the tree."""


class InvalidRecordError(LogError):
    """A field of the record, or of its payload, is not what the catalogue says."""


class UnknownTypeError(InvalidRecordError):
    """The catalogue has no such event type. Only reading tolerates one."""


class LogClosedError(LogError):
    """The log does not take records any more."""


class LogLockedError(LogError):
    """Another process writes this log, or still runs this session."""


class LogConflictError(LogError):
    """The session does not end where the append expected: another process has continued it.

    Nothing was written. The process that gets this error must not act for the session any more.
    """


class LogReadOnlyError(LogError):
    """The log can be read and not written."""


class LogFullError(LogError):
    """There is no room left. Nothing was written; make room and append again."""


class LogStorageError(LogError):
    """The disk or the server failed. Records that were on their way may or may not be there."""


class LogCorruptError(LogError):
    """The stored bytes cannot be read as a log. ``verify`` names the place."""


class LogVersionError(LogError):
    """The log was written by a newer version of this package than this one."""
