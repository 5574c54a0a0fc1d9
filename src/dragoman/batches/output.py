"""The output file, which is also the checkpoint: a row counts as finished only when it is on disk.

Rows are appended to ``OUT`` and synced in groups. If results are written in input order, a row
that finishes before an earlier one is first synced to ``OUT.ahead``, so that it is not sent again
after a crash. A restart reads both files, cuts off an incomplete last line, and continues with the
rows that are in neither file.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta, Struct

from ..prices.results import EXACT
from .results import INVALID_ROW

_PAUSE = 0.02  # seconds between two syncs, so that one sync covers many rows
_WINDOW = 2_000  # at least this many rows may finish while an earlier row is unfinished
# No new row is started while more than this many bytes of results are not on disk yet. Without
# this limit, results would fill the memory during a slow sync.
_UNSYNCED_BYTES = 1024 * 1024
# no new row is started while finished rows in memory exceed this size
_HELD_BYTES = 64 * 1024 * 1024
_DIGITS = 30  # an amount of money has at most this many digits before or after its point
# The size from which OUT.ahead is rewritten without the rows that OUT contains.
_JOURNAL_BYTES = 64 * 1024 * 1024


class OutputError(ValueError):
    """The output file cannot be used: another batch wrote it, or another process is writing it."""


_BLOCK = 32_768  # number of lines in a block of bits
MOST_LINES = 2**53  # the greatest line number; JSON readers round greater numbers


class Lines:
    """A set of line numbers, stored as one bit per line, in blocks."""

    def __init__(self) -> None:
        self._blocks: defaultdict[int, bytearray] = defaultdict(lambda: bytearray(_BLOCK // 8))
        self.count = 0

    def add(self, line: int) -> bool:
        """Add a line number; return ``False`` if it was already in the set."""
        block, place = divmod(line, _BLOCK)
        bits = self._blocks[block]
        at = place >> 3
        bit = 1 << (place & 7)
        if bits[at] & bit:
            return False
        bits[at] |= bit
        self.count += 1
        return True

    def __contains__(self, line: object) -> bool:
        if not isinstance(line, int):
            return False
        block, place = divmod(line, _BLOCK)
        return block in self._blocks and bool(self._blocks[block][place >> 3] >> (place & 7) & 1)


def check_money(name: str, amount: Decimal) -> None:
    """Raise ``ValueError`` if a decimal number is not an amount of money."""
    if not amount.is_finite() or amount < 0 or abs(amount.adjusted()) > _DIGITS:
        raise ValueError(f"{name} is not an amount of money: {str(amount)[:20]}")


class SavedRow(Struct):
    """The fields of an output row that a restart needs."""

    line: Annotated[int, Meta(ge=1, le=MOST_LINES)]
    error: Any = None
    result: Any = None
    cost_usd: Decimal | None = None
    usage: dict[str, Any] | None = None
    spent: dict[str, Any] | None = None  # what a session used

    def __post_init__(self) -> None:
        """Reject amounts that no run can have written."""
        check_money("cost_usd", self.cost_usd or Decimal(0))
        if not all(isinstance(each, int) and 0 <= each <= MOST_LINES for each in self._counts()):
            raise ValueError("usage has counts of tokens that are not whole numbers")

    def _counts(self) -> list[Any]:
        usage = self.usage or {}
        spent = self.spent or {}
        counts = usage.get("input_tokens"), usage.get("output_tokens"), spent.get("tokens")
        return [each or 0 for each in counts]

    @property
    def failed(self) -> bool:
        is_errored = isinstance(self.result, dict) and self.result.get("type") != "succeeded"
        return self.error is not None or is_errored

    @property
    def bad(self) -> bool:
        return isinstance(self.error, dict) and self.error.get("category") == INVALID_ROW

    @property
    def tokens(self) -> int:
        return sum(self._counts())


_saved = msgspec.json.Decoder(SavedRow)


class Recovered(Struct):
    """The state that earlier runs left: the line numbers of finished rows, and their totals."""

    done: Lines
    failed: int = 0
    bad: int = 0
    tokens: int = 0
    cost: Decimal = Decimal(0)

    def add(self, row: SavedRow) -> bool:
        if not self.done.add(row.line):
            return False
        self.failed += row.failed
        self.bad += row.bad
        self.tokens += row.tokens
        if row.cost_usd is not None:
            self.cost = EXACT.add(self.cost, row.cost_usd)
        return True


class Output:
    """Append results to a file and sync them to disk.

    Call ``begin`` when the processing of a row starts, and ``put`` with its result.
    """

    def __init__(self, path: Path, *, ordered: bool, concurrency: int) -> None:
        self.path = path
        self.ordered = ordered
        self.saved = 0
        self._ahead_path = path.with_name(path.name + ".ahead")
        self._window = max(_WINDOW, 8 * concurrency)
        self._file: BinaryIO | None = None
        self._journal: BinaryIO | None = None
        self._order: deque[int] = deque()  # lines whose results are not ready to be written yet
        # finished results that wait for the result of an earlier line
        self._held: dict[int, bytes] = {}
        self._fresh: list[int] = []  # lines with a new result that is not in the journal yet
        self._ready: list[bytes] = []
        self._bytes = 0
        self._unsynced = 0  # bytes of results that neither the output nor the journal has on disk
        self._put = 0
        self._dirty = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False
        self._thread = ThreadPoolExecutor(1, "dragoman-batch")

    # --- opening the output

    def open(self) -> Recovered:
        """Open the files, lock the output, and return what an earlier run has finished."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab+")
        lock(self._file, self.path)
        recovered = Recovered(Lines())
        _recover(self._file, self.path, recovered, None)
        ahead: dict[int, bytes] = {}
        if self.ordered or self._ahead_path.exists():
            self._journal = self._ahead_path.open("ab+")
            _recover(self._journal, self._ahead_path, recovered, ahead)
        self._bytes = sum(map(len, ahead.values()))
        if self.ordered:
            self._held = ahead
        else:
            for data in ahead.values():
                self._add(data)
        return recovered

    # --- adding and writing results

    async def wait_for_room(self) -> None:
        """Wait until there is room in memory for another row."""
        while self._is_full():
            self._room.clear()
            await self._room.wait()

    def begin(self, line: int) -> None:
        """Register a row when its processing starts, which fixes its position in the output."""
        if self.ordered:
            self._order.append(line)

    def skip(self, line: int) -> None:
        """Skip a row that an earlier run finished.

        If its result is only in the journal ``OUT.ahead``, queue it for the output.
        """
        if line in self._held:
            self._order.append(line)
            self._release()

    def put(self, line: int, data: bytes) -> None:
        """Add the result of a row; one of the next syncs writes it to disk."""
        self._put += 1
        self._unsynced += len(data)
        if not self.ordered:
            self._add(data)
            self._bytes += len(data)
            return
        self._held[line] = data
        self._fresh.append(line)
        self._bytes += len(data)
        self._release()
        self._dirty.set()

    def forget(self, line: int) -> None:
        """Unregister a row that will not get a result in this run."""
        if self.ordered and line in self._order:
            self._order.remove(line)
            self._release()

    async def run(self, on_saved: Callable[[], None]) -> None:
        """Write results and sync them to disk until ``close`` is called."""
        loop = asyncio.get_running_loop()
        while True:
            await self._dirty.wait()
            if not self._closing:
                await asyncio.sleep(_PAUSE)
            self._dirty.clear()
            unsynced = self._unsynced
            ready, self._ready = self._ready, []
            fresh = [self._held[line] for line in self._fresh if line in self._held]
            self._fresh = []
            compact = list(self._held.values()) if self._must_compact() else None
            await loop.run_in_executor(self._thread, self._save, ready, fresh, compact)
            self.saved += len(ready)
            self._unsynced -= unsynced
            self._bytes -= sum(map(len, ready))
            self._room.set()
            on_saved()
            if self._closing and not self._ready and not self._fresh:
                return

    async def sync(self) -> None:
        """Wait until all added results are on disk.

        This works only if results are written in order of completion.
        """
        while self.saved < self._put:
            self._room.clear()
            await self._room.wait()

    def close(self) -> None:
        """Make ``run`` return once all added results are on disk."""
        self._closing = True
        self._dirty.set()

    def release(self) -> None:
        """Close the files, which also releases the lock."""
        self._thread.shutdown()
        for file in (self._file, self._journal):
            if file is not None:
                file.close()
        if self._ahead_path.exists() and self._ahead_path.stat().st_size == 0:
            self._ahead_path.unlink()

    # --- private methods

    def _is_full(self) -> bool:
        return (
            self._unsynced > _UNSYNCED_BYTES
            or self._bytes > _HELD_BYTES
            or len(self._order) >= self._window
        )

    def _release(self) -> None:
        """Queue the results that can be written now, because all earlier rows are finished."""
        order = self._order
        held = self._held
        while order and order[0] in held:
            self._add(held.pop(order.popleft()))

    def _add(self, data: bytes) -> None:
        self._ready.append(data)
        self._dirty.set()

    def _must_compact(self) -> bool:
        if self._journal is None:
            return False
        size = self._journal.tell()
        return size > _JOURNAL_BYTES or (size > 0 and not self._held)

    def _save(self, ready: list[bytes], fresh: list[bytes], compact: list[bytes] | None) -> None:
        """Write results and sync them to disk, in a thread.

        Rows are removed from the journal only after the output is synced.
        """
        assert self._file is not None
        if ready:
            self._file.write(b"".join(ready))
            _sync(self._file)
        if self._journal is None:
            return
        if compact is not None:
            self._journal = _rewrite(self._ahead_path, compact, self._journal)
        elif fresh:
            self._journal.write(b"".join(fresh))
            _sync(self._journal)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _rewrite(path: Path, lines: list[bytes], old: BinaryIO) -> BinaryIO:
    if not lines:
        old.truncate(0)
        old.seek(0)
        _sync(old)
        return old
    with replace_file(path) as file:
        for line in lines:
            file.write(line)
    old.close()
    return path.open("ab+")


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Replace a file atomically: write a temporary file next to it, sync it, rename it."""
    target = path.resolve()  # the file, where ``path`` is a symbolic link to it
    fresh = target.with_name(f".{path.name}.new")
    try:
        with fresh.open("wb") as file:
            yield file
            _sync(file)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def lock(file: BinaryIO, path: Path) -> None:
    """Lock a file. The lock is released when the process ends, even after a crash."""
    if sys.platform == "win32":
        return
    import fcntl  # Windows lacks fcntl, so concurrent runs are not detected there

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise OutputError(f"{path} is being written by another process") from None


def _recover(
    file: BinaryIO, path: Path, recovered: Recovered, kept: dict[int, bytes] | None
) -> None:
    """Read the rows of an earlier run, and cut off the incomplete last line that a crash left."""
    end = 0
    file.seek(0)
    for data, row in _read_whole(file, path):
        end += len(data)
        is_new = recovered.add(row)
        if kept is not None and is_new:
            kept[row.line] = data
    file.truncate(end)
    file.seek(0, os.SEEK_END)


def _read_whole(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, SavedRow]]:
    """Yield the results in a file up to an incomplete end; reject a line without a result."""
    damaged = 0
    for number, (data, row) in enumerate(read_saved(file), 1):
        if isinstance(row, str) and (not data.endswith(b"\n") or b"\0" in data):
            damaged = damaged or number
        elif isinstance(row, str) or damaged:
            reason = row if isinstance(row, str) else "the line is damaged"
            raise OutputError(
                f"{path}, line {damaged or number}, is not a result of a batch: {reason}; choose "
                "another file, or start afresh"
            )
        else:
            yield data, row


def read_saved(file: BinaryIO) -> Iterator[tuple[bytes, SavedRow | str]]:
    """Yield the results from a file's current position on; for an invalid line, the reason."""
    for data in file:
        try:
            yield data, _saved.decode(data) if data.endswith(b"\n") else "the line has no end"
        except (ValueError, RecursionError) as error:
            yield data, str(error)


def drop_failures(path: Path) -> Decimal:
    """Remove the failed rows from an output, so that they are sent again; return their cost."""
    cost = Decimal(0)
    for each in (path, path.with_name(path.name + ".ahead")):
        if not each.exists():
            continue
        with each.open("rb") as old, replace_file(each) as file:
            lock(old, each)
            for data, row in _read_whole(old, each):
                if not row.failed:
                    file.write(data)
                elif row.cost_usd is not None:
                    cost = EXACT.add(cost, row.cost_usd)
    return cost
