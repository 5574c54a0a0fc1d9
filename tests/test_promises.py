"""Each sentence of two pages about the gateway has a test, or a reason why none can hold it.

``tests/tables/promises.jsonl`` has a row for each sentence, by its first words.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .rows import read_table
from .specified import find_place, find_tests

ROOT = Path(__file__).resolve().parent.parent
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(r"\n\s*\n|\n(?=- )|\n(?=#)")
_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z`\[\"])")


def read_sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a page, without its code and headings."""
    text = _CODE.sub("\n\n", (ROOT / page).read_text())
    for block in _BLOCK.split(text):
        line = " ".join(block.split()).removeprefix("- ")
        if line and not line.startswith("#"):
            yield from _END.split(line)


def read_promises() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each page."""
    rows: dict[str, list[dict[str, Any]]] = {}
    page = ""
    for row in read_table("promises"):
        page = row.get("page", page)
        if "says" in row:
            rows.setdefault(page, []).append(row)
    return rows


def test_each_sentence_has_one_row() -> None:
    for page, rows in read_promises().items():
        used = set()
        for sentence in read_sentences(page):
            found = [row["says"] for row in rows if sentence.startswith(row["says"])]
            assert len(found) == 1, f"{page}: {sentence!r} has the rows {found}"
            used.add(found[0])
        assert not {row["says"] for row in rows} - used, page


def test_each_row_has_a_test_that_exists_or_a_reason() -> None:
    places = find_tests()
    for page, rows in read_promises().items():
        for row in rows:
            assert row.keys() in ({"says", "test"}, {"says", "why"}), f"{page}: {row}"
            for test in row.get("test", ()):
                assert find_place(test, places), f"{page}: {row}"
