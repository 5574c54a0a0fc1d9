"""Wait without a wall clock: for a condition, for a result, or in virtual time.

A test that is about time runs its deadlines in virtual time. A test that waits for a real socket,
thread or process waits for an event of it, as long as the suite allows; if that time ends, the
error names what was missing. ``test_waiting.py`` keeps other waits out of the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds to wait for something real. A busy machine needs a fraction of it; a test fails
# after it only because what it waits for does not happen.
PATIENCE = float(os.environ.get("DRAGOMAN_TEST_PATIENCE", "120"))

# Seconds of real time in which bytes that were written to a socket become readable.
_IN_FLIGHT = 0.002


async def arrival(awaitable: Awaitable[T], what: str) -> T:
    """Await a result; fail with the name of what did not arrive."""
    try:
        return await asyncio.wait_for(awaitable, PATIENCE)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE:.0f} s for {what}") from None


async def until(holds: Callable[[], Any], what: str) -> None:
    """Let the event loop run until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s for {what}"
        await asyncio.sleep(0.002)


async def poll(ask: Callable[[], Awaitable[T]], fits: Callable[[T], Any], what: str) -> T:
    """Ask another process again and again; return its first answer that fits."""
    end = time.monotonic() + PATIENCE
    while not fits(answer := await ask()):
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s for {what}, got {answer!r}"
        await asyncio.sleep(0.01)
    return answer


@contextlib.asynccontextmanager
async def patience(what: str) -> AsyncIterator[None]:
    """Fail if a block does not end; name what it did not reach."""
    limit = asyncio.timeout(PATIENCE)
    try:
        async with limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise AssertionError(f"waited {PATIENCE:.0f} s for {what}") from None
        raise


def block_until(holds: Callable[[], Any], what: str) -> None:
    """Block this thread until a condition holds, for threads and processes outside the loop."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.005)


async def settle() -> None:
    """Let the tasks and sockets of the running event loop continue until all of them wait.

    No timer fires earlier by this.
    """
    loop = asyncio.get_running_loop()
    idle = loop.create_future()
    _Skip.of(loop).settling.append(idle)
    await idle


@contextlib.contextmanager
def virtual_time() -> Iterator[None]:
    """Skip the waits of the running event loop.

    The time of the loop stands still while something happens. When no callback is ready, no
    socket is readable and no job of an executor runs, it advances to the next timer. Deadlines
    and pauses pass in their order, at once, on any machine. Server and client have to run in this
    loop; what other threads and processes do is not noticed, except for jobs of
    ``loop.run_in_executor``.
    """
    skip = _Skip.of(asyncio.get_running_loop())
    skip.now = skip.time()
    skip.depth += 1
    try:
        yield
    finally:
        skip.depth -= 1
        skip.ahead = skip.now - time.monotonic()


class _Skip:
    """Replace the clock and the selector of an event loop.

    The clock stays replaced, since the time of a loop must not go back.
    """

    @classmethod
    def of(cls, loop: Any) -> _Skip:
        """Return the replacement that this loop already has, or make one."""
        return loop.__dict__.get("skip") or cls(loop)

    def __init__(self, loop: Any) -> None:
        self.depth = 0
        self.settling: list[asyncio.Future[None]] = []
        self.now = 0.0
        self.ahead = 0.0
        self._jobs = 0
        self._moved = time.monotonic()
        selector = loop._selector  # noqa: SLF001 - asyncio has no public way to replace it
        self._select = selector.select
        self._run_in_executor = loop.run_in_executor
        loop.skip = self
        loop.time = self.time
        loop.run_in_executor = self._run
        selector.select = self._wait

    def time(self) -> float:
        return self.now if self.depth else time.monotonic() + self.ahead

    def _run(self, *args: Any) -> Any:
        job = self._run_in_executor(*args)
        self._jobs += 1
        job.add_done_callback(self._finish)
        return job

    def _finish(self, _: Any) -> None:
        self._jobs -= 1

    def _wait(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            if time.monotonic() > self._moved + PATIENCE:  # endless work ends at its deadlines
                self._advance(PATIENCE)
            return self._select(timeout)
        skips = not self._jobs and (self.settling or (self.depth and timeout is not None))
        longest = _IN_FLIGHT if timeout is None else min(_IN_FLIGHT, timeout)
        stuck = PATIENCE if self.depth and timeout is None else timeout
        ready = self._select(longest if skips else stuck)
        if ready:
            return ready
        assert skips or not self.depth or timeout is not None, "virtual time has no next timer"
        if skips and self.settling:
            for idle in self.settling:
                if not idle.done():
                    idle.set_result(None)
            self.settling.clear()
        else:
            self._advance(timeout or 0.0)
        return ready

    def _advance(self, seconds: float) -> None:
        self.now += seconds
        self._moved = time.monotonic()
