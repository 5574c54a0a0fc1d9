"""Run a session's work in its own task, to record a cancellation before it takes effect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from msgspec import Struct

from .outcome import Ending, SessionError

log = logging.getLogger("dragoman")
T = TypeVar("T")


class Stop(Struct, frozen=True):
    """Why running work is stopped: ``cancel()`` was called, or the time limit was reached."""

    ending: Ending
    reason: str


class Supervisor:
    """Run one coroutine at a time. While it is being stopped, ``stop`` holds the reason.

    ``is_interrupted`` is true if the task that waits for it was cancelled instead.
    """

    def __init__(self, session: str) -> None:
        self.stop: Stop | None = None
        self.is_interrupted = False
        self._session = session
        self._task: asyncio.Task[Any] | None = None

    async def run(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Run ``work`` and return its result; stop it after ``seconds``."""
        if self._task is not None:
            work.close()
            raise SessionError("the session is running already; wait for run()")
        self.stop = None
        self.is_interrupted = False
        task = asyncio.create_task(work)
        self._task = task
        timer: asyncio.TimerHandle | None = None
        if seconds is not None:
            stop = Stop("exhausted", f"the time of {seconds:g} s is used up")
            timer = asyncio.get_running_loop().call_later(seconds, self._halt, stop)
        try:
            await self._wait_for(task)
        finally:
            self._task = None
            if timer is not None:
                timer.cancel()
        return task.result()

    async def cancel(self, reason: str) -> bool:
        """Stop the work and wait until it ends; return ``False`` if there is nothing to stop."""
        task = self._task
        if task is None or self.stop is not None:
            return False
        self._halt(Stop("cancelled", reason))
        await asyncio.wait([task])
        return True

    def refuse_running(self) -> None:
        """Raise ``SessionError`` if work is running."""
        if self._task is not None:
            raise SessionError("the session is running; cancel() it first")

    def _halt(self, stop: Stop) -> None:
        if self._task is not None and self.stop is None:
            self.stop = stop
            self._task.cancel()

    async def _wait_for(self, task: asyncio.Task[Any]) -> None:
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                # a second cancellation does not interrupt recording the first
                if cancelled is None:
                    self.is_interrupted = self.stop is None
                    task.cancel()
                cancelled = error
        if cancelled is not None:
            if not task.cancelled() and task.exception() is not None:
                log.warning(
                    "session %s: failed while it was cancelled",
                    self._session,
                    exc_info=task.exception(),
                )
            raise cancelled
