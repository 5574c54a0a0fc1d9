"""Sources of rows: JSON lines, CSV or Parquet files, or an iterable; read in constant memory."""

from __future__ import annotations

import csv
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import msgspec

from ..errors import advise_import

Record: TypeAlias = dict[str, Any]
Read: TypeAlias = tuple[int, Record | str]
"""A line number, from 1, with the record of the line or the reason why it is invalid."""

MAX_ROW_BYTES = 8_000_000
_rows = msgspec.json.Encoder(enc_hook=str, order="sorted")
_BOM = b"\xef\xbb\xbf"


class Source(ABC):
    """Rows with their line numbers. Reading a source again yields the same rows."""

    @abstractmethod
    def __iter__(self) -> Iterator[Read]: ...

    @abstractmethod
    def count(self) -> int | None:
        """Return the approximate number of rows, for a progress bar; ``None`` if unknown."""

    has_columns: ClassVar[bool] = False
    """Whether all rows have the same columns, those of the first one."""

    def peek(self) -> Record | None:
        """Return the first record that can be read; ``None`` if there is none."""
        return next((record for _, record in self if not isinstance(record, str)), None)

    def identify(self, length: int | None = None) -> dict[str, Any]:
        """Return the length and the hash of the input, so that a resumed batch can recognise it.

        With ``length``, use only the beginning of the input, up to that length. Return nothing for
        an iterator, since it cannot be read twice.
        """
        return {}


def open_source(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]], max_row_bytes: int
) -> Source:
    """Return a source for an iterable of mappings, or for a file, whose suffix sets the format."""
    if not isinstance(source, str | os.PathLike):
        return RowsSource(source)
    path = Path(source)
    with path.open("rb"):  # report an unreadable file at once, before rows are read
        pass
    ending = path.suffix.lower()
    if ending in (".csv", ".tsv"):
        return CsvSource(path, max_row_bytes, "\t" if ending == ".tsv" else ",")
    if ending in (".parquet", ".pq"):
        return ParquetSource(path)
    return JsonlSource(path, max_row_bytes)


class RowsSource(Source):
    """A source that reads mappings from a list or a generator."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Read]:
        for number, row in enumerate(self._rows, 1):
            yield (
                number,
                dict(row)
                if isinstance(row, Mapping)
                else f"must be a mapping, not {type(row).__name__}",
            )

    def peek(self) -> Record | None:
        # put the first row back, since an iterator can be read only once
        if isinstance(self._rows, Iterator):
            first = list(islice(self._rows, 1))
            self._rows = chain(first, self._rows)
            return dict(first[0]) if first and isinstance(first[0], Mapping) else None
        return super().peek()

    def identify(self, length: int | None = None) -> dict[str, Any]:
        if not isinstance(self._rows, Sequence):
            return {}
        known = hashlib.sha256()
        for row in self._rows[:length]:
            known.update(_rows.encode(row) + b"\n")
        return {"length": len(self._rows[:length]), "sha256": known.hexdigest()}

    def count(self) -> int | None:
        return len(self._rows) if isinstance(self._rows, Sized) else None


class FileSource(Source):
    """A source that reads a file. The input counts as unchanged if rows were only appended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def is_file(self, path: Path) -> bool:
        """Return whether ``path`` is the file, by this name or through a link."""
        return path.exists() and path.samefile(self.path)

    def identify(self, length: int | None = None) -> dict[str, Any]:
        known = hashlib.sha256()
        read = 0
        last = b"\n"
        with self.path.open("rb") as file:
            while block := file.read(1 << 20 if length is None else min(1 << 20, length - read)):
                known.update(block)
                read += len(block)
                last = block[-1:]
            if last != b"\n" and file.read(1) not in (b"", b"\n", b"\r"):
                known.update(b"the last row goes on")  # so it is a different row now
        return {"length": read, "sha256": known.hexdigest()}

    def count(self) -> int | None:
        with self.path.open("rb") as file:
            lines = 0
            last = b"\n"
            while block := file.read(1 << 20):
                lines += block.count(b"\n")
                last = block[-1:]
        return lines + (last != b"\n")


class JsonlSource(FileSource):
    """A source that reads one JSON object from each line of a file. Empty lines are skipped."""

    def __init__(self, path: Path, max_row_bytes: int) -> None:
        super().__init__(path)
        self._limit = max_row_bytes

    def __iter__(self) -> Iterator[Read]:
        with self.path.open("rb") as file:
            yield from read_lines(file, self._limit)


def read_lines(file: Any, limit: int) -> Iterator[Read]:
    """Read JSON lines from a binary file, and number them from 1 on."""
    read = file.readline
    number = 0
    while line := read(limit + 1):
        number += 1
        if len(line) > limit and not line.endswith(b"\n"):
            yield number, f"has more than {limit:,} bytes"
            while line and not line.endswith(b"\n"):
                line = read(1 << 20)
            continue
        if number == 1:
            line = line.removeprefix(_BOM)
        if not line.isspace() and line:
            yield number, _decode(line)


def _decode(line: bytes) -> Record | str:
    try:
        record = msgspec.json.decode(line)
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {str(error) or type(error).__name__}"
    return record if isinstance(record, dict) else "must be a JSON object"


class CsvSource(FileSource):
    """A CSV or TSV file whose first line names the columns.

    The number of a row is the line number at which the row ends in the file.
    """

    has_columns = True

    def __init__(self, path: Path, max_row_bytes: int, delimiter: str) -> None:
        super().__init__(path)
        self._limit = max_row_bytes
        self._delimiter = delimiter

    def __iter__(self) -> Iterator[Read]:
        csv.field_size_limit(self._limit)
        with self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file, delimiter=self._delimiter, strict=True)
            names = self._read_names(reader)
            while True:
                try:
                    values = next(reader, None)
                except csv.Error as error:
                    yield reader.line_num, f"is not CSV: {error}"
                    continue
                if values is None:
                    return
                if values:
                    yield reader.line_num, _name_columns(names, values)

    def _read_names(self, reader: Any) -> list[str]:
        try:
            names: list[str] = next(reader, [])
        except csv.Error as error:
            raise ValueError(
                f"{self.path}: the names of the columns cannot be read: {error}"
            ) from None
        if len(set(names)) != len(names):
            raise ValueError(f"{self.path}: two columns have the same name")
        return names


def _name_columns(names: list[str], values: list[str]) -> Record | str:
    if len(values) != len(names):
        return f"has {len(values)} columns, the first line has {len(names)}"
    for name, value in zip(names, values, strict=True):
        if "\0" in value:
            return f"column {name!r} contains a NUL byte"
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            return f"column {name!r} is not UTF-8"
    return dict(zip(names, values, strict=True))


class ParquetSource(FileSource):
    """A Parquet file, read with pyarrow (the extra ``parquet``). Rows are numbered from 1."""

    has_columns = True

    def __iter__(self) -> Iterator[Read]:
        number = 0
        for group in self._open().iter_batches(batch_size=512):
            for record in group.to_pylist():
                number += 1
                yield number, _to_plain(record)

    def count(self) -> int | None:
        return int(self._open().metadata.num_rows)

    def _open(self) -> Any:
        with advise_import(
            'Parquet files need the extra "parquet": pip install "dragoman[parquet]"'
        ):
            # lazy import: an optional dependency that is slow to import
            from pyarrow import ArrowException, parquet
        try:
            return parquet.ParquetFile(self.path)
        except (ArrowException, OSError) as error:
            raise ValueError(f"{self.path} cannot be read as Parquet: {error}") from None


def _to_plain(record: Record) -> Record | str:
    """Return a record with JSON values; dates and decimals become strings."""
    try:
        plain = msgspec.to_builtins(record)
    except (TypeError, ValueError) as error:
        return f"has a value that JSON cannot hold: {error}"
    return dict(plain)
