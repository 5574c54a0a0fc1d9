"""A log in memory, for sessions whose records need not outlive the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from .eventlog import EventLog
from .record import Draft, Head, LogRecord, Row, to_row
from .view import LogChange, LogView


class MemoryLog(EventLog):
    """A log in memory, with the same hash chain as in a file.

    It is lost when the process ends; ``export`` writes it to a file.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[str, list[Row]] = {}
        self._changing = threading.RLock()

    def __repr__(self) -> str:
        return "MemoryLog()"

    def _offer(self, item: Draft | Callable[[], Any]) -> tuple[bool, Future[Any]]:
        """Store the item at once in the caller's thread, since no disk is involved."""
        self._check_open()
        future: Future[Any] = Future()
        with self._changing:
            try:
                result = self._write([item])[0] if isinstance(item, Draft) else item()
            except Exception as error:
                result = error
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
        return True, future

    @contextmanager
    def _change(self, sessions: set[str] | None) -> Iterator[LogChange]:
        yield _MemoryView(self._rows)

    @contextmanager
    def _view(self) -> Iterator[LogView]:
        self._check_open()
        with self._changing:
            rows = {session: list(stored) for session, stored in self._rows.items()}
        yield _MemoryView(rows)


class _MemoryView(LogChange):
    def __init__(self, rows: dict[str, list[Row]]) -> None:
        self._rows = rows

    def names(self) -> list[str]:
        return sorted(self._rows)

    def count(self) -> int:
        return sum(map(len, self._rows.values()))

    def length(self, session: str) -> int:
        return len(self._rows.get(session, ()))

    def page(self, session: str, after: int, size: int) -> list[Row]:
        return self._rows.get(session, [])[after : after + size]

    def ends(self) -> list[tuple[Row, Row]]:
        return [(self._rows[name][0], self._rows[name][-1]) for name in self.names()]

    def heads(self, sessions: set[str]) -> dict[str, Head]:
        ends = {name: self._rows[name][-1] for name in sessions if name in self._rows}
        return {name: Head(row[1], row[11].hex()) for name, row in ends.items()}

    def insert(self, records: Sequence[LogRecord]) -> None:
        for record in records:
            self._rows.setdefault(record.session, []).append(to_row(record))

    def replace(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._rows[row[0]][row[1] - 1] = row

    def delete(self, sessions: Sequence[str]) -> None:
        for session in sessions:
            del self._rows[session]
