"""The runner on Ray: a Ray Data job whose actors call the model and write results to part files.

The driver writes the rows that have no result to files. Ray Data reads these files in parallel and
passes the rows in blocks to a pool of asynchronous actors, which grows and shrinks with the load.
An actor syncs the results of a block to disk before it returns the block. When an actor dies, Ray
gives its block to another actor, which finds the finished rows in the part files. When the driver
dies, the next run merges the part files first.

If the batch has a budget, one more actor counts for all workers. A worker requests permission from
this actor before each call, and reports the cost before it writes the result: what is on disk has
been counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..errors import advise_import, scrub
from ..messages import new_ulid
from .job import Job
from .output import Lines, Output, Recovered, replace_file
from .parts import FinishedLines, hold, merge, parts_of
from .results import Result, write_bad
from .rows import TOO_DEEP, BadRow, NamedRow, Parser, Row, Skipped, name_rows, parse_row
from .runner import MAX_PROBLEMS, BatchError, RowCaller
from .sources import Source
from .spending import BatchBudget, SharedBudget

_SHARD = 1_000  # number of rows in each file that the driver writes
_BLOCK = 200  # number of rows that an actor processes at a time


_spooled = msgspec.json.Decoder(NamedRow)
_result = msgspec.json.Decoder(Result)
# Ray reads lines with ``str.splitlines``, which also splits at these characters. JSON contains
# them only in strings, where they can be escaped.
_LINE_ENDS = {
    character.encode(): f"\\u{ord(character):04x}".encode()
    for character in ("\x85", "\u2028", "\u2029")
}
_NAMES = re.compile(r'\[(\d+),(null|"(?:[^"\\]|\\.)*"),("\w+"),')


def write_spooled(row: NamedRow) -> bytes:
    """Encode a row as one line of the files that the actors read."""
    data = msgspec.json.encode(row)
    if not data.isascii():
        for character, escaped in _LINE_ENDS.items():
            data = data.replace(character, escaped)
    return data + b"\n"


def read_spooled(text: str) -> NamedRow | BadRow:
    """Decode a line of the files that the actors read."""
    try:
        return _spooled.decode(text)
    except RecursionError:  # an actor has less stack space left than the driver
        names = _NAMES.match(text)
        assert names is not None
        line, name, shape = [msgspec.json.decode(each) for each in names.groups()]
        return BadRow(line, name, shape, TOO_DEEP)


@dataclass(eq=False)
class ClusterRunner:
    """Run a batch on Ray, controlled from a separate thread."""

    source: Source
    job: Job
    out: Path
    spending: BatchBudget
    _: KW_ONLY
    ordered: bool
    workers: int
    address: str | None
    on_saved: Callable[[], None]
    problems: list[str] = field(default_factory=list)
    stopped: str | None = None
    saved: int = 0

    def __post_init__(self) -> None:
        self._folder = parts_of(self.out)
        self.found = Recovered(Lines())

    async def run(self, done: Lines) -> None:
        """Process the remaining rows on the cluster, and merge the results into the output."""
        driving = asyncio.get_running_loop().run_in_executor(None, self._drive, done)
        try:
            await asyncio.shield(driving)
        except asyncio.CancelledError:
            import ray  # fast, because the other thread has already imported ray

            ray.shutdown()
            with contextlib.suppress(Exception):
                await driving
            raise

    # --- methods that run in the separate thread

    def _drive(self, done: Lines) -> None:
        with hold(self.out):
            bad = self._spool(done)
            if bad:
                with (self._folder / f"part-driver-{new_ulid()}.jsonl").open("wb") as file:
                    file.write(b"".join([result.data for result in bad]))
            if next(self._folder.glob("rows-*.jsonl"), None) is not None:
                # Ray prints the output of its processes. Redirect it, so that standard output
                # stays clean.
                with contextlib.redirect_stdout(sys.stderr):
                    self._ask_all(*_load_ray())
        self.problems.sort(key=lambda each: int(each.removeprefix("line ").partition(":")[0]))
        self.found = merge(self.out, ordered=self.ordered)

    def _spool(self, done: Lines) -> list[Result]:
        """Write the remaining rows to files; return the results of invalid rows."""
        for path in self._folder.glob("rows-*"):
            path.unlink()
        found: list[Result] = []
        count = 0
        rows = name_rows(self.source, self.job.make_parser(self.job.model), done)
        while shard := _take(rows, _SHARD, found):
            count += 1
            with replace_file(self._folder / f"rows-{count:08}.jsonl") as file:
                file.write(b"".join(shard))
        for result in found:
            self._report(_find_problem(result))
            self._add(result)
        return found

    def _report(self, problem: str) -> None:
        if problem and len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def _ask_all(self, ray: Any, data: Any) -> None:
        is_ours = not ray.is_initialized()
        try:
            if is_ours:
                _start(ray, self.address, self.workers)
            context = data.DataContext.get_current()
            context.enable_progress_bars = False
            pool = data.ActorPoolStrategy(min_size=1, max_size=self.workers)
            shards = [str(path) for path in sorted(self._folder.glob("rows-*.jsonl"))]
            budget = self._start_budget(ray)
            dataset = data.read_text(shards).map_batches(
                Asker,
                fn_constructor_args=(self.job, str(self._folder), budget),
                batch_size=_BLOCK,
                compute=pool,
            )
            for block in dataset.iter_batches(batch_size=None, prefetch_batches=0):
                self._count(block)
            if budget is not None and ray.get(budget.shared.is_over.remote()):
                self.stopped = "budget"
        except ray.exceptions.RayError as error:
            raise BatchError(f"the batch on Ray failed: {_last_line(error)}") from error
        finally:
            if is_ours:
                ray.shutdown()

    def _start_budget(self, ray: Any) -> _Budget | None:
        limits = self.spending.limits
        spent = self.spending.spent
        if not limits:
            return None
        waiting = self.workers * self.job.concurrency + 10  # calls of the actor at a time
        actor = ray.remote(SharedBudget).options(num_cpus=0, max_concurrency=waiting)
        return _Budget(actor.remote(limits, spent), needs_price="usd" in limits)

    def _count(self, block: Any) -> None:
        for result, problem in zip(block["result"], block["problem"], strict=True):
            self._report(str(problem))
            self._add(_result.decode(str(result)))
        self.on_saved()

    def _add(self, result: Result) -> None:
        self.spending.add(result)
        self.saved += 1


def _take(
    rows: Iterator[NamedRow | BadRow | Skipped], count: int, bad: list[Result]
) -> list[bytes]:
    """Return up to ``count`` encoded rows; add the results of invalid rows to ``bad``."""
    found: list[bytes] = []
    for row in rows:
        if isinstance(row, BadRow):
            bad.append(write_bad(row))
        elif isinstance(row, NamedRow):
            try:
                found.append(write_spooled(row))
            except RecursionError:
                bad.append(write_bad(BadRow(row.line, row.id, row.shape, TOO_DEEP)))
            if len(found) >= count:
                break
    return found


def _find_problem(result: Result) -> str:
    """Return what is wrong with a row; an empty string if the row is valid."""
    return str(msgspec.json.decode(result.data)["error"]["message"]) if result.bad else ""


def _load_ray() -> tuple[Any, Any]:
    with advise_import('batches on Ray need the extra "ray": pip install "dragoman[ray]"'):
        import ray  # lazy import: an optional dependency that is slow to import
        import ray.data
    return ray, ray.data


def _start(ray: Any, address: str | None, workers: int) -> None:
    """Connect to a cluster, or start a local one with a CPU per worker and a CPU for reading."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray must not send usage statistics
    settings = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            ray.init(address="local", num_cpus=workers + 1, include_dashboard=False, **settings)
        else:
            ray.init(address=address, **settings)
    except Exception as error:  # Ray has no class of its own for these errors
        raise BatchError(f"Ray cannot be started: {_last_line(error)}") from error


def _last_line(error: Exception) -> str:
    """Return the last line of an error; the lines before it are a traceback from a worker."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return scrub(lines[-1])


class _Budget(Struct):
    """The handle of the actor that counts for all workers, and whether replies need a price."""

    shared: Any
    needs_price: bool


class Asker:
    """A Ray actor that calls the model for the rows of a block and writes the results to disk."""

    def __init__(self, job: Job, folder: str, budget: _Budget | None = None) -> None:
        self._job = job
        self._budget = budget
        self._id = "" if budget is None else _load_ray()[0].get_runtime_context().get_actor_id()
        self._is_over = False  # whether the budget is used up
        self._folder = Path(folder)
        self._finished = FinishedLines(self._folder)
        self._begun: asyncio.Task[None] | None = None
        self._caller: RowCaller
        self._parser: Parser
        self._output: Output
        self._announced: Any = None  # awaited before the first call
        # Ray may pass several blocks at a time; their rows are processed by the same tasks
        self._waiting: deque[tuple[Row | BadRow, asyncio.Future[Result | None]]] = deque()
        self._workers: set[asyncio.Task[None]] = set()

    async def __call__(self, block: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        if self._begun is None:
            self.begin()
        if self._announced is not None:
            await self._announced
        done = self._finished.refresh()
        rows = [read_spooled(text) for text in block["text"]]
        results = await self.answer_all([row for row in rows if row.line not in done])
        await self._sync()
        for result in results:
            self._finished.lines.add(result.line)
        bare = [replace(result, data=b"") for result in results]
        yield {
            "result": [msgspec.json.encode(result).decode() for result in bare],
            "problem": [_find_problem(result) for result in results],
        }

    def begin(self) -> None:
        """Open the model and the part file, in the event loop that the calls run in."""
        model = self._job.open()
        needs_price = self._budget is not None and self._budget.needs_price
        self._caller = RowCaller(model, needs_price=needs_price)
        self._parser = self._job.make_parser(model.model)
        path = self._folder / f"part-{os.getpid()}-{new_ulid()}.jsonl"
        self._output = Output(path, ordered=False, concurrency=self._job.concurrency)
        self._output.open()
        self._finished.own = path
        if self._budget is not None:
            self._announced = self._budget.shared.begin.remote(self._id)
        self._begun = asyncio.create_task(self._output.run(lambda: None))

    async def close(self) -> None:
        """Close the part file and the model; on Ray, the end of the process does this."""
        self._output.close()
        if self._begun is not None:
            await self._begun
        self._output.release()
        await self._caller.model.close()

    async def answer_all(self, rows: list[NamedRow | BadRow]) -> list[Result]:
        """Return the results of a block of rows, except rows that the budget does not cover."""
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[Result | None]] = [loop.create_future() for _ in rows]
        for row, answer in zip(rows, answers, strict=True):
            read = parse_row(row, self._parser) if isinstance(row, NamedRow) else row
            self._waiting.append((read, answer))
        missing = min(self._job.concurrency - len(self._workers), len(rows))
        for _ in range(missing):
            self._workers.add(asyncio.create_task(self._work()))
        return [each for each in await asyncio.gather(*answers) if each is not None]

    async def _work(self) -> None:
        while self._waiting:
            row, answer = self._waiting.popleft()
            try:
                result = await self._answer(row)
            except Exception as error:
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():  # not if the block was cancelled
                    answer.set_result(result)
        # A worker that takes no more rows must not count when the next block arrives: a callback
        # of the task would run too late.
        worker = asyncio.current_task()
        assert worker is not None
        self._workers.discard(worker)

    async def _answer(self, row: Row | BadRow) -> Result | None:
        """Return the result of a row; ``None`` if the budget does not cover the call."""
        if self._is_over:
            return None
        if isinstance(row, BadRow):
            result = write_bad(row)
            if self._budget is not None:
                await self._budget.shared.add.remote(replace(result, data=b""))
        else:
            await asyncio.sleep(0)
            if not await self._is_admitted():
                return None
            outcome = await self._caller.send(row)
            await asyncio.sleep(0)
            result = self._caller.write(row, outcome)
            if self._budget is not None:
                await self._budget.shared.settle.remote(self._id, replace(result, data=b""))
        self._output.put(result.line, result.data)
        return result

    async def _is_admitted(self) -> bool:
        if self._budget is None:
            return True
        if not self._is_over:
            self._is_over = not await self._budget.shared.admit.remote(self._id)
        return not self._is_over

    async def _sync(self) -> None:
        """Wait until all results are on disk; raise the error if writing has failed."""
        assert self._begun is not None
        syncing = asyncio.create_task(self._output.sync())
        await asyncio.wait([syncing, self._begun], return_when=asyncio.FIRST_COMPLETED)
        if self._begun.done():
            syncing.cancel()
            self._begun.result()
