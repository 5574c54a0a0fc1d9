"""Use a ledger from an event loop without blocking it, and Redis for rate limits if configured."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..errors import OverloadedError, scrub
from ..prices.results import EXACT
from .budgets import Budget
from .keys import Key
from .ledger import KeyBudget, Ledger
from .limits import RedisLimits

T = TypeVar("T")

log = logging.getLogger("dragoman")

_BUSY_SECONDS = 2.0  # how many seconds a call waits for the ledger's permission
_RETRY_SECONDS = 1.0  # seconds between two attempts to write the usage of a call
_CLOSE_SECONDS = 10.0


class _Settlement(NamedTuple):
    lease: str | None
    key: Key
    tokens: int = 0
    money: Decimal = Decimal(0)
    # a future that is resolved after the first attempt to write this entry
    tried: asyncio.Future[None] | None = None


class _Work(NamedTuple):
    work: Callable[[Ledger], Any]
    result: Future[Any]


class _Admission(NamedTuple):
    key: Key
    seconds: float
    usd: Decimal
    deadline: float
    result: Future[str | None]


_Job: TypeAlias = _Admission | _Work | _Settlement


class CallLease(NamedTuple):
    """The ids of the leases that an admitted call holds in the ledger and in Redis."""

    ledger: str | None = None
    limits: str | None = None


class LedgerWriter:
    """Use a ledger in a separate thread, so that a slow database does not block the event loop.

    A usage that the ledger can never store, such as a number that is too large, is reported and
    left out. If the thread ends by an error, the next job reports it and starts another one.

    While the ledger cannot be written, new calls are rejected with ``OverloadedError`` within
    seconds (budgets fail closed), and the usage of finished calls is queued and written later, in
    order. A ledger in memory is used directly, without a thread. With ``limits``, Redis counts
    requests, tokens and concurrent calls, and the ledger counts and reserves only cost.
    """

    def __init__(
        self,
        ledger: Ledger,
        limits: RedisLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ledger = ledger
        self.limits = limits
        self._clock = clock
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # usage that is not written yet; only the ledger's thread uses this queue
        self._owed: deque[_Settlement] = deque()
        self._thread: threading.Thread | None = None
        self.on_miss: Callable[[], None] | None = None  # called for each usage that is left out
        self.on_unread: Callable[[], None] | None = None  # called if budgets cannot be read

    async def admit(self, key: Key, seconds: float, usd: Decimal = Decimal(0)) -> CallLease | None:
        """Count a request of a key without blocking the event loop; see ``Ledger.admit``."""
        if self.limits is None or not key.has_rates:
            place = await self._admit_counted(key, seconds, usd)
            return None if place is None else CallLease(place)
        limited = await self.limits.admit(key, seconds)
        place = None
        try:
            if key.has_budget:
                place = await self._admit_counted(key, seconds, usd)
        except BaseException:
            if limited is not None:
                self.limits.settle(limited, key, requests=1)
            raise
        return None if limited is None and place is None else CallLease(place, limited)

    def settle(
        self,
        lease: CallLease | None,
        key: Key,
        tokens: int = 0,
        money: Decimal = Decimal(0),
        tried: asyncio.Future[None] | None = None,
    ) -> bool:
        """Release a lease and count a call's usage as soon as the ledger can be written.

        If the ledger's thread writes the usage, return true; the thread resolves the future
        ``tried`` after its first attempt. Otherwise return false.
        """
        if self.limits is not None and key.has_rates:
            if lease is not None and lease.limits is not None:
                self.limits.settle(lease.limits, key, tokens)
            tokens = 0
        place = None if lease is None else lease.ledger
        if place is None and not tokens and not money:
            return False
        if not self.ledger.is_shared:
            try:
                self.ledger.settle(place, key, tokens, money)
            except self.ledger.invalid as error:
                self._leave_out(_Settlement(place, key, tokens, money), error)
            return False
        self._put(_Settlement(place, key, tokens, money, tried))
        return True

    async def settle_and_wait(
        self, lease: CallLease | None, key: Key, tokens: int, money: Decimal
    ) -> None:
        """Count a call's usage before the end of its reply is sent; wait until it is written.

        If the ledger cannot be written, return after a few seconds. The usage stays queued, and
        this process admits no call before it is written.
        """
        tried = asyncio.get_running_loop().create_future()
        if self.settle(lease, key, tokens, money, tried):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BUSY_SECONDS):
                    await tried

    async def read_budgets(self, budgets: Sequence[Budget]) -> list[KeyBudget]:
        """Return what is left of budgets; nothing, and a count, if the database cannot be read."""
        try:
            return await self.run(lambda ledger: ledger.read_budgets(budgets))
        except TimeoutError:
            log.warning("the budgets cannot be read: timeout")
        except self.ledger.errors as error:
            log.warning("the budgets cannot be read: %s", scrub(str(error)))
        if self.on_unread is not None:
            self.on_unread()
        return []

    async def run(self, work: Callable[[Ledger], T]) -> T:
        """Call a function with the ledger in its thread; raise ``TimeoutError`` after seconds."""
        if not self.ledger.is_shared:
            return work(self.ledger)
        result: Future[T] = Future()
        self._put(_Work(work, result))
        async with asyncio.timeout(_BUSY_SECONDS):
            return await asyncio.wrap_future(result)

    def describe_limits(self, key: Key) -> dict[str, str]:
        """Return response headers with a key's per-minute limits and what is left of each."""
        left = self.ledger.find_standing(key) if self.limits is None else self.limits.describe(key)
        headers = {}
        for what, limit in key.rates.items():
            headers[f"x-ratelimit-limit-{what}"] = str(limit)
            headers[f"x-ratelimit-remaining-{what}"] = str(left.get(what, 0))
        return headers

    async def close(self) -> None:
        """Write the usage that is still queued; give up after some seconds."""
        if self.limits is not None:
            await self.limits.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(thread.join)

    # --- private methods

    async def _admit_counted(self, key: Key, seconds: float, usd: Decimal) -> str | None:
        if not self.ledger.is_shared:
            return self.ledger.admit(key, seconds, rates=self.limits is None, usd=usd)
        result: Future[str | None] = Future()
        self._put(_Admission(key, seconds, usd, self._clock() + _BUSY_SECONDS, result))
        waiting = asyncio.wrap_future(result)
        try:
            # stop waiting if the database hangs, although the ledger's thread still waits for it
            async with asyncio.timeout(2 * _BUSY_SECONDS):
                await asyncio.wait([waiting])  # unlike await, this does not cancel the future
            return waiting.result()
        except (asyncio.CancelledError, TimeoutError) as error:
            # The call no longer waits, but the thread may still obtain a lease for it. Release
            # that lease.
            result.add_done_callback(lambda done: self._give_back(done, key))
            # Read the error, or asyncio logs that it was never retrieved.
            waiting.add_done_callback(lambda done: done.exception())
            if isinstance(error, TimeoutError):
                raise _overloaded() from error
            raise

    def _put(self, job: _Job) -> None:
        if self._thread is not None and not self._thread.is_alive():
            log.error("the ledger's thread has ended; another one is started")
            self._thread = None
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="dragoman-ledger", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _give_back(self, done: Future[str | None], key: Key) -> None:
        if done.exception() is None and (lease := done.result()) is not None:
            self._put(_Settlement(lease, key))

    def _work(self) -> None:
        is_open = True
        while is_open:
            jobs = self._next_jobs()
            is_open = None not in jobs
            self._owed.extend([job for job in jobs if isinstance(job, _Settlement)])
            # Try to write the usage once for all waiting jobs: each attempt may last until a lock
            # times out.
            is_paid = self._pay()
            for job in jobs:
                if isinstance(job, _Admission):
                    self._admit(job, is_writable=is_paid)
                elif isinstance(job, _Work):
                    self._run(job)
        deadline = time.monotonic() + _CLOSE_SECONDS
        while not self._pay() and time.monotonic() < deadline:
            time.sleep(_RETRY_SECONDS)
        if self._owed:
            log.error("the ledger cannot be written; %d calls were not counted", len(self._owed))

    def _next_jobs(self) -> list[_Job | None]:
        """Wait for a job or for the next attempt to write usage; return all queued jobs."""
        jobs = []
        with contextlib.suppress(queue.Empty):
            jobs.append(self._jobs.get(timeout=_RETRY_SECONDS if self._owed else None))
            while True:
                jobs.append(self._jobs.get_nowait())
        return jobs

    def _admit(self, job: _Admission, *, is_writable: bool) -> None:
        try:
            if not is_writable or self._clock() > job.deadline:
                raise _overloaded()
            lease = self.ledger.admit(job.key, job.seconds, rates=self.limits is None, usd=job.usd)
            job.result.set_result(lease)
        except self.ledger.errors as error:
            log.warning("the ledger cannot be written: %s", scrub(str(error)))
            job.result.set_exception(_overloaded())
        except Exception as error:
            job.result.set_exception(error)

    def _run(self, job: _Work) -> None:
        if not job.result.set_running_or_notify_cancel():
            return  # its caller no longer waits
        try:
            job.result.set_result(job.work(self.ledger))
        except Exception as error:
            job.result.set_exception(error)

    def _pay(self) -> bool:
        """Write the queued usage, one transaction per key; return whether all was written."""
        is_single = False
        while self._owed:
            key = self._owed[0].key
            settlements = [each for each in self._owed if each.key == key]
            if is_single:
                settlements = settlements[:1]
            try:
                self._settle(key, settlements)
            except self.ledger.invalid as error:
                if len(settlements) > 1:
                    # One of these calls can never be counted, so count each of them by itself.
                    is_single = True
                    continue
                self._leave_out(settlements[0], error)
            except Exception as error:
                log.warning(
                    "the ledger cannot be written, %d calls are to be counted: %s",
                    len(self._owed),
                    scrub(str(error)),
                )
                _report_tried(self._owed)
                return False
            _report_tried(settlements)
            if is_single:
                self._owed.popleft()
            else:
                self._owed = deque([each for each in self._owed if each.key != key])
        return True

    def _leave_out(self, settlement: _Settlement, error: Exception) -> None:
        """Report the usage of a call that can never be counted, and release the call's lease."""
        log.error(
            "the usage of a call of the key %s can never be counted and is left out: %s",
            settlement.key.id,
            scrub(str(error)),
        )
        if self.on_miss is not None:
            self.on_miss()
        if settlement.lease is not None:
            # the lease of a call expires if it cannot be released now
            with contextlib.suppress(*self.ledger.errors, *self.ledger.invalid):
                self.ledger.settle(settlement.lease, settlement.key)

    def _settle(self, key: Key, settlements: Sequence[_Settlement]) -> None:
        money = Decimal(0)
        for each in settlements:
            money = EXACT.add(money, each.money)
        leases = [each.lease for each in settlements if each.lease is not None]
        self.ledger.settle(None, key, sum([each.tokens for each in settlements]), money, *leases)


def _report_tried(settlements: Iterable[_Settlement]) -> None:
    """Wake the calls that wait until the first attempt to write their usage has ended."""
    for each in settlements:
        if each.tried is not None:
            with contextlib.suppress(RuntimeError):  # the event loop may already be closed
                each.tried.get_loop().call_soon_threadsafe(_resolve, each.tried)


def _resolve(tried: asyncio.Future[None]) -> None:
    if not tried.done():
        tried.set_result(None)


def _overloaded() -> OverloadedError:
    return OverloadedError("the gateway cannot count this key's use at the moment", retry_after=2)
