"""The errors of a log.

::

    LogError
    ├── InvalidRecordError     the record does not match the catalogue of event types
    │   └── UnknownTypeError   the event type does not exist
    ├── LogClosedError         the log was closed, or was opened in another process
    ├── LogLockedError         another process writes this log, or runs this session
    ├── LogConflictError       another process has continued this session
    ├── LogReadOnlyError       the log was opened for reading, or cannot be written
    ├── LogFullError           the disk is full; appending works again once there is space
    ├── LogStorageError        the disk or the server failed
    ├── LogCorruptError        the file is damaged, or is not a log
    └── LogVersionError        a newer version of this package wrote the log

An append that raises one of these was not acknowledged; an acknowledged append is never undone.
"""

from __future__ import annotations


class LogError(Exception):
    """The base class of all log errors."""


class InvalidRecordError(LogError):
    """A field of the record or of its payload does not match the catalogue of event types."""


class UnknownTypeError(InvalidRecordError):
    """The event type is not in the catalogue. Unknown types can be read but not written."""


class LogClosedError(LogError):
    """The log no longer accepts records."""


class LogLockedError(LogError):
    """Another process writes this log, or still runs this session."""


class LogConflictError(LogError):
    """The session does not end where the append expected: another process has continued it.

    Nothing was written. The process that receives this error must stop acting for the session.
    """


class LogReadOnlyError(LogError):
    """The log is open for reading only."""


class LogFullError(LogError):
    """The disk is full. Nothing was written; free some space and append again."""


class LogStorageError(LogError):
    """The disk or the server failed. Records being written may or may not have been stored."""


class LogCorruptError(LogError):
    """The stored bytes are not a valid log. ``verify`` finds the damaged records."""


class LogVersionError(LogError):
    """A newer version of this package wrote the log."""
