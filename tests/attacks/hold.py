"""Watches that no work keeps the thread of the event loop for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 0.25
"""Seconds of CPU time that one step of the event loop may take."""


class HeldError(AssertionError):
    """One step of the event loop took too much CPU time."""


def run_watched(work: Coroutine[Any, Any, T], most: float = MOST) -> T:
    """Run a coroutine to its end; raise ``HeldError`` if one step of it took more CPU time than ``most``.

    Thread CPU time is measured, so the load of the machine does not matter. Every callback of the
    loop counts, also those of tasks that the work started.
    """
    worst = 0.0
    original = asyncio.Handle._run

    def run(handle: asyncio.Handle) -> None:
        nonlocal worst
        began = time.thread_time()
        original(handle)
        worst = max(worst, time.thread_time() - began)

    asyncio.Handle._run = run  # type: ignore[method-assign]
    try:
        result = asyncio.run(work)
    finally:
        asyncio.Handle._run = original  # type: ignore[method-assign]
    if worst > most:
        raise HeldError(f"one step of the event loop took {worst:.3f} s of CPU, and {most} s is the most")
    return result
