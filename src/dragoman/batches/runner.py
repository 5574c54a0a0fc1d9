"""The local runner: one process and one event loop, with a fixed number of concurrent calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol, TypeAlias

from msgspec.structs import replace

from ..errors import ProviderError
from ..events import Response, Usage
from ..messages import new_ulid
from ..middleware import LimiterUnavailableError
from ..prices import Cost, PricedAs, PriceTable, Unpriced
from ..provider import Provider
from ..retrieval import Embedder, Embeddings
from .output import Output
from .results import Result, find_usage, write_bad, write_failure, write_reply
from .rows import BadRow, Row, Skipped
from .spending import BatchBudget

MAX_PROBLEMS = 20
"""The maximum number of invalid rows that a report names."""

_BREATH = 200  # let other tasks run after this many rows that needed no call


class BatchError(RuntimeError):
    """A batch cannot continue. Finished rows are on disk, and the batch can be started again."""


Outcome: TypeAlias = Response[Any] | Embeddings | Exception
"""The reply to a call, or the error with which it failed."""


class Caller(Protocol):
    """What does the work of a row.

    ``send`` returns ``None`` for a row that gets no result in this run; a later run repeats it.
    """

    async def send(self, row: Row) -> Any: ...

    def write(self, row: Row, outcome: Any) -> Result: ...


class RowCaller:
    """Call the model for a row, and write the result; a failed call becomes an error row.

    A runner that calls ``send`` and ``write`` for many rows at once should let other tasks run
    before each of them (``await asyncio.sleep(0)``). The same code then runs for many rows in
    succession, while it is in the processor's caches: this saves a quarter of the CPU time.
    """

    def __init__(self, model: Provider | Embedder, *, needs_price: bool = False) -> None:
        self.model = model
        self._needs_price = needs_price
        self._sold: dict[tuple[str | None, str | None], PricedAs] = {}

    async def send(self, row: Row) -> Outcome:
        """Call the model for a row; return its reply, or the error if the call fails."""
        request = row.request.request if self.model.operation == "embed" else row.request
        try:
            return await self.model.send(replace(request, request_id=new_ulid()))
        except LimiterUnavailableError as error:
            raise BatchError(str(error)) from error
        except Exception as error:
            return error

    def write(self, row: Row, outcome: Outcome) -> Result:
        """Return the result of a row: its line of the output, and its price."""
        if isinstance(outcome, Exception):
            return write_failure(row, outcome, self._price_failure(outcome))
        bill = self._price_reply(outcome)
        if self._needs_price and isinstance(bill, Unpriced):
            raise BatchError(f"a budget in usd cannot hold: {bill.reason}")
        return write_reply(row, outcome, bill)

    def _price_reply(self, response: Response[Any] | Embeddings) -> Cost | Unpriced:
        key = (response.provider, response.model)
        sold = self._sold.get(key)
        if sold is None:
            find = None if response.sale is None else response.sale.find
            sold = (find and find()) or self.model.priced_as
            # look up the price table once, not for every row
            if sold.table is None and sold.row is None:
                sold = replace(sold, table=PriceTable.default())
            self._sold[key] = sold
        return sold.cost(response.usage)

    def _price_failure(self, error: Exception) -> Cost | Unpriced | None:
        """Return what a failed call costs; ``None`` if it used no tokens, as far as is known."""
        usage = find_usage(error)
        if not isinstance(error, ProviderError) or usage == Usage():
            return None
        return self.model.find_sold(error.provider or "", error.model or "").cost(usage)


@dataclass(eq=False, kw_only=True)
class RowWriter:
    """What the runners of this process have in common: where results go, and what went wrong."""

    output: Output
    spending: BatchBudget
    on_saved: Callable[[], None]
    problems: list[str] = field(default_factory=list)
    stopped: str | None = None

    def pass_over(self, row: BadRow | Skipped) -> None:
        """Handle a row that needs no call: it is invalid, or has a result already."""
        if isinstance(row, Skipped):
            self.output.skip(row.line)
            return
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(str(row))
        self.put_first(write_bad(row))

    def put_first(self, result: Result) -> None:
        """Write the result of a row whose processing was not registered before."""
        self.output.begin(result.line)
        self.put(result)

    def put(self, result: Result) -> None:
        """Count a result, and write it."""
        self.spending.add(result)
        self.output.put(result.line, result.data)


@dataclass(eq=False)
class Runner(RowWriter):
    """Take rows from the source, call the model or run an agent, and write results to the output."""

    rows: Iterator[Row | BadRow | Skipped]
    caller: Caller
    _: KW_ONLY
    concurrency: int

    def __post_init__(self) -> None:
        self._settled = asyncio.Event()
        self._is_over = False

    async def run(self) -> None:
        """Process rows until none is left or the budget is used up.

        Even after an error, the finished rows are on disk.
        """
        saving = asyncio.create_task(self.output.run(self.on_saved))
        workers = [asyncio.create_task(self._work()) for _ in range(self.concurrency)]
        try:
            pending: set[asyncio.Task[None]] = {saving, *workers}
            while len(pending) > 1:
                finished, pending = await asyncio.wait(
                    pending, return_when=asyncio.FIRST_COMPLETED
                )
                for task in finished:
                    task.result()
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            self.output.close()
            await saving

    async def _work(self) -> None:
        while (row := await self._take()) is not None:
            outcome: Outcome | None = None
            try:
                await asyncio.sleep(0)
                outcome = await self.caller.send(row)
                await asyncio.sleep(0)
            finally:  # even if the batch is cancelled, a reply that has arrived is written
                self._finish(row, outcome)
            await asyncio.sleep(0)

    def _finish(self, row: Row, outcome: Outcome | None) -> None:
        """Write the result of a row, and count its call as ended."""
        result: Result | None = None
        try:
            result = None if outcome is None else self.caller.write(row, outcome)
        finally:
            self.spending.settle(result)
            self._settled.set()
        if result is not None:
            self.output.put(row.line, result.data)

    async def _take(self) -> Row | None:
        """Return the next valid row, or ``None`` at the end; write errors for invalid rows."""
        output = self.output
        passed = 0
        while not self._is_over:
            await output.wait_for_room()
            if not self.spending.admit():
                await self._wait_for_budget()
                continue
            row = next(self.rows, None)
            if isinstance(row, Row):
                output.begin(row.line)
                return row
            self.spending.settle(None)
            if row is None:
                return None
            self.pass_over(row)
            passed += 1
            if passed % _BREATH == 0:
                await asyncio.sleep(0)
        return None

    async def _wait_for_budget(self) -> None:
        if self.spending.in_flight == 0:
            self._is_over = True
            for row in self.rows:
                if isinstance(row, Row):  # the rest of the budget is too small for the next row
                    self.stopped = "budget"
                    break
                self.pass_over(row)
            self._settled.set()
            return
        self._settled.clear()
        await self._settled.wait()
