"""Detect work that blocks the event loop for too long."""

import asyncio
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from .. import cpu

T = TypeVar("T")

MOST = cpu.QUARTER_SECOND
"""The maximum CPU time of one step of the event loop, in units of work (see ``tests/cpu.py``)."""


class HeldError(AssertionError):
    """One step of the event loop took too much CPU time."""


def check_held(seconds: float, what: str, most: float = MOST) -> None:
    """Raise ``HeldError`` if the given CPU time exceeds ``most`` units of work (see
    ``tests/cpu.py``).
    """
    # Measuring a unit of work takes time, so it is measured only after a suspiciously long run.
    if seconds > 0.05 and (units := seconds / cpu.measure_unit()) > most:
        raise HeldError(f"{what} took {units:.0f} units of CPU, and {most:.0f} are the most")


@contextmanager
def watching(most: float = MOST) -> Iterator[None]:
    """Raise ``HeldError`` if one step of an event loop in the block took more CPU time than
    ``most``.

    The CPU time of the thread is measured in the units of work that ``tests/cpu.py`` defines.
    Every callback of the loop counts, including those of other tasks.
    """
    worst = 0.0
    original = asyncio.Handle._run  # noqa: SLF001 - asyncio has no public hook around a callback

    def run(handle: asyncio.Handle) -> None:
        nonlocal worst
        began = time.thread_time()
        original(handle)
        worst = max(worst, time.thread_time() - began)

    # asyncio has no public hook around a callback.
    asyncio.Handle._run = run  # type: ignore[method-assign]  # noqa: SLF001
    try:
        yield
    finally:
        # asyncio has no public hook around a callback.
        asyncio.Handle._run = original  # type: ignore[method-assign]  # noqa: SLF001
    check_held(worst, "one step of the event loop", most)


def run_watched(work: Coroutine[Any, Any, T], most: float = MOST) -> T:
    """Run a coroutine; raise ``HeldError`` if one step of it takes more CPU time than ``most``."""
    with watching(most):
        return asyncio.run(work)
