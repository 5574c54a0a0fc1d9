"""Batch input files: which formats are read, and which mistakes are reported with their line."""

import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from dragoman.batches.sources import open_source


def read(path: Path, data: bytes | str, limit: int = 1000) -> list[Any]:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return list(open_source(path, limit))


JSONL: list[tuple[bytes, list[Any]]] = [
    (b"", []),
    (b'{"a": 1}', [(1, {"a": 1})]),
    (b'\xef\xbb\xbf{"a": 1}\n', [(1, {"a": 1})]),
    (b'{"a": 1}\n\n  \n{"a": 2}\r\n', [(1, {"a": 1}), (4, {"a": 2})]),
    (b'x\n{"a": 1}\n', [(1, "is not JSON"), (2, {"a": 1})]),
    (b'[1]\n"x"\nnull\n',
     [(1, "must be a JSON object"), (2, "must be a JSON object"), (3, "must be a JSON object")]),
    (b'{"a": "\x00"}\n{"a": 1}\n', [(1, "is not JSON"), (2, {"a": 1})]),
    (b'\x00\x00\n{"a": 1}\n', [(1, "is not JSON"), (2, {"a": 1})]),
    (b'{"a": "\xff"}\n{"a": 1}\n', [(1, "is not JSON"), (2, {"a": 1})]),
    (b'{"a": "\\ud800"}\n{"a": 1}\n', [(1, "is not JSON"), (2, {"a": 1})]),
    (b"[" * 100_000 + b'\n{"a": 1}\n', [(1, "has more than 1,000 bytes"), (2, {"a": 1})]),
    (b'{"a": "' + b"x" * 990 + b'"}\n{"a": 1}\n', [(1, {"a": "x" * 990}), (2, {"a": 1})]),
    (b'{"a": "' + b"x" * 2_000_000 + b'"}\n{"a": 1}\n',
     [(1, "has more than 1,000 bytes"), (2, {"a": 1})]),
    (b'{"a": "' + b"x" * 2000, [(1, "has more than 1,000 bytes")]),
    (b'{"a": 1', [(1, "is not JSON")]),
]  # fmt: skip


def test_too_long_row_is_not_read_into_memory(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"a": "' + b"x" * 30_000_000 + b'"}\n{"a": 1}\n')
    tracemalloc.start()
    try:
        assert len(list(open_source(tmp_path / "in.jsonl", 1000))) == 2
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


CSV: list[tuple[str | bytes, list[Any]]] = [
    ("", []),
    ("a,b\n", []),
    ("a,b\n1,2\n\n3,4\n", [(2, {"a": "1", "b": "2"}), (4, {"a": "3", "b": "4"})]),
    ('a,b\n"x\ny",2\n3,4\n', [(3, {"a": "x\ny", "b": "2"}), (4, {"a": "3", "b": "4"})]),
    ("a,b\n1\n3,4\n", [(2, "has 1 columns, the first line has 2"), (3, {"a": "3", "b": "4"})]),
    (b"a,b\n\xff,2\n3,4\n", [(2, "column 'a' is not UTF-8"), (3, {"a": "3", "b": "4"})]),
    (b"a,b\n\0,2\n3,4\n", [(2, "column 'a' contains a NUL byte"), (3, {"a": "3", "b": "4"})]),
    (
        "a,b\n" + "x" * 2000 + ",2\n3,4\n",
        [(2, "is not CSV: field larger"), (3, {"a": "3", "b": "4"})],
    ),
    ('a,b\n"x"y,2\n3,4\n', [(2, "is not CSV"), (3, {"a": "3", "b": "4"})]),
]


FILES = [
    *[("in.jsonl", *row) for row in JSONL],
    *[("in.csv", *row) for row in CSV],
    ("in.tsv", "a\tb\n1\t2\n", [(2, {"a": "1", "b": "2"})]),
]


@pytest.mark.parametrize(("name", "data", "wanted"), FILES)
def test_rows_are_read_from_files(
    tmp_path: Path, name: str, data: str | bytes, wanted: list[Any]
) -> None:
    found = read(tmp_path / name, data)
    assert [line for line, _ in found] == [line for line, _ in wanted]
    for (_, record), (_, expected) in zip(found, wanted, strict=True):
        assert record.startswith(expected) if isinstance(expected, str) else record == expected


def test_deeply_nested_json_is_an_invalid_row(tmp_path: Path) -> None:
    found = read(tmp_path / "in.jsonl", b'{"a": ' + b"[" * 100_000 + b'\n{"a": 1}\n', 1_000_000)
    assert found[0][1].startswith("is not JSON")
    assert found[1] == (2, {"a": 1})


def test_duplicate_column_names_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two columns have the same name"):
        read(tmp_path / "in.csv", "a,a\n1,2\n")


def test_rows_are_read_from_parquet_files(tmp_path: Path) -> None:
    table = pyarrow.table({"word": [f"w{n}" for n in range(2000)], "n": list(range(2000))})
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet")
    source = open_source(tmp_path / "in.parquet", 1000)
    assert source.count() == 2000
    found = list(source)
    assert found[0] == (1, {"word": "w0", "n": 0})
    assert found[-1] == (2000, {"word": "w1999", "n": 1999})


def test_file_that_is_not_parquet_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        read(tmp_path / "in.parquet", "hello")


@pytest.mark.parametrize(("data", "count"), [("", 0), ("{}\n", 1), ("{}\n{}", 2)])
def test_rows_are_counted_for_progress_reports(tmp_path: Path, data: str, count: int) -> None:
    (tmp_path / "in.jsonl").write_text(data)
    assert open_source(tmp_path / "in.jsonl", 10).count() == count


def test_rows_can_be_read_from_mappings() -> None:
    source: Any = open_source([{"a": 1}, 5], 10)  # type: ignore[list-item]
    assert list(source) == [(1, {"a": 1}), (2, "must be a mapping, not int")]
    assert source.count() == 2
