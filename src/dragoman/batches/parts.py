"""Part files: each worker of a cluster appends results to its own file; the driver merges them.

They are in the folder ``OUT.parts``, which must be shared by all machines of a cluster.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from .output import Lines, Recovered, lock, read_saved, replace_file


def parts_of(out: Path) -> Path:
    """Return the folder of an output's part files."""
    return out.with_name(out.name + ".parts")


@contextmanager
def hold(out: Path) -> Iterator[None]:
    """Lock the folder of an output's part files against other processes."""
    folder = parts_of(out)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as held:
        lock(held, out)
        yield


def list_parts(folder: Path) -> list[Path]:
    """Return the paths of the part files in a folder."""
    return sorted(folder.glob("part-*.jsonl"))


class _Numbered(Struct):
    """The line number of a result.

    A worker reads no other field, since it has to scan the results of all workers.
    """

    line: int


_numbered = msgspec.json.Decoder(_Numbered)


class FinishedLines:
    """The numbers of the finished lines; ``refresh`` reads new entries from the part files.

    ``own`` is this worker's part file. It is not read; the worker adds the lines that it finishes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.own: Path | None = None
        self._places: dict[Path, int] = {}
        self.lines = Lines()

    def refresh(self) -> Lines:
        """Read new entries from the part files, and return the numbers of all finished lines.

        An incomplete last line is skipped; the next call reads it again.
        """
        for path in list_parts(self._folder):
            place = self._places.get(path, 0)
            if path == self.own or path.stat().st_size == place:
                continue
            with path.open("rb") as file, contextlib.suppress(msgspec.DecodeError):
                file.seek(place)
                for data in file:
                    if not data.endswith(b"\n"):
                        break
                    self.lines.add(_numbered.decode(data).line)
                    place += len(data)
            self._places[path] = place
        return self.lines


def merge(out: Path, *, ordered: bool) -> Recovered:
    """Merge the results of all part files into the output, and remove the part files. Return the
    totals of the output; they are zero if there is nothing to merge.

    Results are sorted by line if ``ordered`` is set. The output is replaced once the merged file
    is on disk, and the part files are removed after that, so a crash at any point loses nothing.
    If a line has two results, the first one is kept.
    """
    folder = parts_of(out)
    found = Recovered(Lines())
    if not folder.exists():
        return found
    with hold(out), out.open("ab+") as held:
        lock(held, out)
        sources = [out, *list_parts(folder)]
        with replace_file(out) as file:
            for data in _read_merged(sources, found, ordered=ordered):
                file.write(data)
    shutil.rmtree(folder)
    return found


def _read_merged(sources: list[Path], found: Recovered, *, ordered: bool) -> Iterator[bytes]:
    """Yield the results in several files, sorted by line number if ``ordered``.

    Add them to the totals in ``found``. The sort index is a temporary SQLite database.
    """
    index = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    files = [path.open("rb") for path in sources]
    try:
        index.execute(
            "CREATE TABLE rows (line INTEGER PRIMARY KEY, at INTEGER, file INTEGER, place INTEGER)"
        )
        index.execute("BEGIN")
        at = 0
        for number, file in enumerate(files):
            place = 0
            for data, row in read_saved(file):
                if not isinstance(row, str) and found.add(row):
                    at += 1
                    index.execute(
                        "INSERT INTO rows VALUES (?, ?, ?, ?)", (row.line, at, number, place)
                    )
                place += len(data)
        by_line = "SELECT file, place FROM rows ORDER BY line"
        as_read = "SELECT file, place FROM rows ORDER BY at"
        wanted = by_line if ordered else as_read
        for number, place in index.execute(wanted):
            files[number].seek(place, os.SEEK_SET)
            yield files[number].readline()
    finally:
        for file in files:
            file.close()
        index.close()
