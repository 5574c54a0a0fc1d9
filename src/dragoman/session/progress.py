"""Write the progress reports of a running tool to the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import UNSET, UnsetType


class ProgressWriter:
    """Write the reports of one call, one after the other.

    While a report is being written, only the latest of those that arrive is kept.
    """

    def __init__(self, write: Callable[[Any], Awaitable[None]]) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._latest: Any | UnsetType = UNSET
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    def report(self, progress: Any) -> None:
        """Take a report, from any thread."""
        if self._closed:
            return
        self._latest = progress
        try:
            self._loop.call_soon_threadsafe(self._start)
        except RuntimeError:
            pass  # the event loop is closed, so the report cannot be written

    async def close(self) -> None:
        """Write the latest report, and ignore later ones."""
        self._closed = True
        if self._writing is not None:
            await self._writing
        await self._write_latest()

    def _start(self) -> None:
        if not self._closed and (self._writing is None or self._writing.done()):
            self._writing = self._loop.create_task(self._write_latest())

    async def _write_latest(self) -> None:
        while self._latest is not UNSET:
            progress = self._latest
            self._latest = UNSET
            await self._write(progress)
