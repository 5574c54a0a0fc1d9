"""Read an export (JSON Lines) as a log, to list, verify, replay and price its sessions."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
from msgspec import Struct

from ..errors import quote
from .errors import LogCorruptError, LogReadOnlyError, LogStorageError
from .eventlog import EventLog
from .payloads import Actor, Sensitivity
from .record import Line, LogRecord, Row, to_row
from .view import LogChange, LogView


class _Place(Struct):
    """The position of a line in the file, and the fields by which the line is looked up."""

    session: str
    seq: int


class ExportedLog(EventLog):
    """A read-only log in a file that ``export`` wrote.

    The file is scanned once when it is opened, to index the records. Lines may be in any order;
    their contents are accepted as they are, and ``verify`` checks them.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path).resolve()
        self._places: dict[str, tuple[array[int], array[int]]] = {}
        self._count = 0
        with self._open() as file:
            self._learn(file)

    def __repr__(self) -> str:
        return f"ExportedLog({str(self.path)!r})"

    def _learn(self, file: BinaryIO) -> None:
        decoder = msgspec.json.Decoder(_Place)
        found = dict[str, list[tuple[int, int]]]()
        at = 0
        for number, line in enumerate(file, 1):
            try:
                place = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                end = "" if line.endswith(b"\n") else "; the file was cut off"
                raise LogCorruptError(
                    f"{self.path}, line {number}: is not a record: {error}{end}"
                ) from None
            found.setdefault(place.session, []).append((place.seq, at))
            at += len(line)
            self._count = number
        for session in sorted(found, key=str.encode):
            places = sorted(found[session])
            if not 0 < places[-1][0] < 2**63 or places[0][0] < -(2**63):
                raise LogCorruptError(
                    f"{self.path}: session {quote(session)} has a record with an invalid number"
                )
            self._places[session] = (
                array("q", [seq for seq, _ in places]),
                array("q", [where for _, where in places]),
            )

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        try:
            with self.path.open("rb") as file:
                yield file
        except FileNotFoundError:
            raise LogReadOnlyError(f"{self.path}: no log exists here") from None
        except OSError as error:
            raise LogStorageError(f"{self.path}: cannot be read: {error.strerror}") from error

    @contextmanager
    def _view(self) -> Iterator[_ExportView]:
        self._check_open()
        with self._open() as file:
            yield _ExportView(self, file)

    def _change(self, sessions: set[str] | None) -> AbstractContextManager[LogChange]:
        raise LogReadOnlyError(f"{self.path}: an export cannot be written")


class _ExportView(LogView):
    def __init__(self, log: ExportedLog, file: BinaryIO) -> None:
        self._path = log.path
        self._places = log._places
        self._count = log._count
        self._file = file
        self._decoder = msgspec.json.Decoder(Line)

    def names(self) -> list[str]:
        return list(self._places)

    def count(self) -> int:
        return self._count

    def length(self, session: str) -> int:
        numbers, _ = self._places.get(session, ((), ()))
        return numbers[-1] if numbers else 0

    def page(self, session: str, after: int, size: int) -> list[Row]:
        numbers, places = self._places.get(session, (array("q"), array("q")))
        start = bisect_right(numbers, after)
        return [self._read(place) for place in places[start : start + size]]

    def ends(self) -> list[tuple[Row, Row]]:
        return [
            (self._read(places[0]), self._read(places[-1])) for _, places in self._places.values()
        ]

    def _read(self, place: int) -> Row:
        self._file.seek(place)
        line = self._file.readline()
        try:
            return to_row(_to_record(self._decoder.decode(line)))
        except (TypeError, ValueError, OverflowError) as error:
            raise LogCorruptError(
                f"{self._path}: the line at byte {place} is not a record: {error}"
            ) from None


def _to_record(line: Line) -> LogRecord:
    for digest in (line.previous, line.hash):
        # A reader that compares the text of the hashes, such as grep, must agree with ``verify``.
        if digest != digest.lower():
            raise ValueError(f"the hash {digest} has capital letters")
    # Actor and sensitivity are not validated: the hash covers them, so ``verify`` finds a change.
    actor = cast("Actor", line.actor)
    sensitivity = cast("Sensitivity", line.sensitivity)
    return LogRecord(
        actor=actor,
        hash=line.hash,
        id=line.id,
        parent=line.parent,
        raw=line.payload,
        previous=line.previous,
        sensitivity=sensitivity,
        seq=line.seq,
        session=line.session,
        timestamp=datetime.fromisoformat(line.timestamp),
        turn=line.turn,
        type=line.type,
    )
