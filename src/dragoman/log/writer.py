"""The writer thread, which commits all waiting records as one group (group commit).

While a commit is being synced to disk, new records queue up; the next commit takes them all. A
single caller pays for one sync, and many callers share one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

from .errors import LogClosedError, LogConflictError, LogError, LogStorageError
from .record import Draft, LogRecord

_MOST_RECORDS = 1024
_MOST_BYTES = 64 * 1024 * 1024

Write: TypeAlias = Callable[[Sequence[Draft]], Sequence[LogRecord | LogConflictError]]
_Item: TypeAlias = tuple[Draft | Callable[[], Any], "Future[Any]"]
_T = TypeVar("_T")


async def finish_writing(work: Coroutine[Any, Any, _T]) -> _T:
    """Run work that writes records to its end; raise a cancellation only after that.

    Records that belong together are thus written together: what was announced is stored before
    the cancellation takes effect. An error of the work is raised in place of the cancellation.
    """
    writing = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not writing.done():
        try:
            await asyncio.wait([writing])
        except asyncio.CancelledError as error:
            cancelled = error
    result = writing.result()
    if cancelled is not None:
        raise cancelled
    return result


class WriterThread:
    """A bounded queue, and the thread that passes its items to ``write``.

    ``write`` stores a group in one transaction, or raises and stores none of it; a draft that
    conflicts with the chain gets its own error in the result. ``finish`` runs last, in the same
    thread. An error of a class in ``fatal`` stops the writer: later items are rejected without an
    attempt to write them.
    """

    def __init__(
        self, write: Write, finish: Callable[[], None], fatal: tuple[type[LogError], ...] = ()
    ) -> None:
        self._write = write
        self._finish = finish
        self._fatal = fatal
        self._failure: LogError | None = None
        self._items: list[_Item] = []
        self._bytes = 0
        self._waiting: list[Future[None]] = []
        self._closed = False
        self._changed = threading.Condition()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="dragoman-log", daemon=True)
        self._thread.start()

    def offer(self, item: Draft | Callable[[], Any]) -> tuple[bool, Future[Any]]:
        """Queue an item; return ``True`` and the future of its result.

        If the queue is full (backpressure), return ``False`` and a future to wait for before the
        next attempt.
        """
        size = len(item.payload) if isinstance(item, Draft) else 0
        future: Future[Any] = Future()
        # the caller cannot cancel an item once it is queued
        future.set_running_or_notify_cancel()
        with self._changed:
            if self._closed:
                raise LogClosedError("the log is closed")
            if self._items and (
                len(self._items) >= _MOST_RECORDS or self._bytes + size > _MOST_BYTES
            ):
                self._waiting.append(future)
                return False, future
            self._items.append((item, future))
            self._bytes += size
            self._changed.notify()
        return True, future

    def close(self) -> None:
        """Write the queued items, call ``finish``, and end the thread; do nothing if closed."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._ended.result()

    def _take(self) -> list[_Item]:
        with self._changed:
            while not self._items and not self._closed:
                self._changed.wait()
            items, self._items = self._items, []
            self._bytes = 0
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_result(None)
        return items

    def _run(self) -> None:
        while items := self._take():
            group: list[tuple[Draft, Future[Any]]] = []
            for item, future in items:
                if isinstance(item, Draft):
                    group.append((item, future))
                else:
                    self._settle(group)
                    self._settle_task(item, future)
                    group = []
            self._settle(group)
        try:
            self._finish()
        except BaseException as error:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    def _settle(self, group: list[tuple[Draft, Future[Any]]]) -> None:
        if not group:
            return
        try:
            self._refuse_after_failure()
            records = self._write([draft for draft, _ in group])
            settled = list(zip(group, records, strict=True))
        except BaseException as error:
            failure = self._classify(error)
            for _, future in group:
                # each waiting caller raises its own copy of the error, with its own traceback
                copy = type(failure)(*failure.args)
                copy.__cause__ = failure.__cause__
                future.set_exception(copy)
        else:
            for (_, future), record in settled:
                if isinstance(record, LogRecord):
                    future.set_result(record)
                else:
                    future.set_exception(record)

    def _settle_task(self, task: Callable[[], Any], future: Future[Any]) -> None:
        try:
            self._refuse_after_failure()
            result = task()
        except BaseException as error:
            future.set_exception(self._classify(error))
        else:
            future.set_result(result)

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(
                f"the log stopped writing after an earlier failure: {self._failure}"
            )

    def _classify(self, error: BaseException) -> LogError:
        if not isinstance(error, LogError):
            failure = LogStorageError(f"the log's writer failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            error = failure
        if isinstance(error, self._fatal) and self._failure is None:
            self._failure = error
        return error
