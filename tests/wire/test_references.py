"""Every row of the error tables and every quirk has a case, and every case that a comment cites
exists.
"""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dragoman
from dragoman.wire import CODECS
from dragoman.wire.bedrock.errors import read_refusal as read_exception
from dragoman.wire.errors import ErrorRow, Failure, read_failure
from dragoman.wire.gemini.errors import read_refusal
from dragoman.wire.openai.errors import ROWS as OPENAI_ROWS
from dragoman.wire.responses.errors import read_error_body

from .cases import find_cases

PACKAGE = Path(dragoman.__file__).parent
CASES = PACKAGE / "conformance/cases"
READERS: dict[str, Callable[[bytes], Failure]] = {
    "gemini": read_refusal,
    "responses": read_error_body,
    "bedrock": read_exception,
}
# the ollama wire uses the error table of the openai wire
WIRES = ["openai", "anthropic", "gemini", "responses", "cohere", "bedrock"]


def rows_of(wire: str) -> tuple[ErrorRow, ...]:
    rows: tuple[ErrorRow, ...] = importlib.import_module(f"dragoman.wire.{wire}.errors").ROWS
    return rows


def deciding_rows(wire: str) -> list[ErrorRow]:
    """Return the rows of a wire's error table that decide the error classes of its conformance
    cases.
    """
    rows = rows_of(wire)
    found = []
    for case in find_cases(wire, "error.json"):
        if case.reply is not None:
            failure = READERS.get(wire, read_failure)(case.reply)
            found += [row for row in rows if row.fits(case.options.status, failure)][:1]
    return found


@pytest.mark.parametrize("wire", WIRES)
def test_every_row_of_the_error_tables_is_used_by_a_case(wire: str) -> None:
    own = [row for row in rows_of(wire) if wire == "openai" or row not in OPENAI_ROWS]
    decided = deciding_rows(wire)
    assert [row.pattern for row in own if row not in decided] == []
    assert len(own) > 1


def quirks_of(case: Any) -> set[str]:
    named = set(case.options.quirks or {})
    if (case.folder / case.wire / f"{case.name}.ready.json").exists():
        named |= {name for row in case.json("ready.json") for name in row.get("quirks", {})}
    return named


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_every_quirk_is_exercised_by_a_case(wire: str) -> None:
    fields = {field.name for field in msgspec.structs.fields(CODECS[wire].quirks_type)}  # type: ignore[attr-defined]
    used = set().union(*[quirks_of(case) for case in find_cases(wire)])
    assert fields - used == set()


SOURCES = [*PACKAGE.rglob("*.py"), *(PACKAGE / "catalog").glob("*.yaml")]
NAMED = [
    (path.relative_to(PACKAGE).as_posix(), name)
    for path in SOURCES
    for name in re.findall(r"case: ([a-z]+/[\w-]+)", path.read_text(encoding="utf-8"))
]


def test_comments_cite_only_existing_cases() -> None:
    missing = [(path, name) for path, name in NAMED if not list(CASES.glob(f"{name}.*.*"))]
    assert missing == []
    assert len(NAMED) > 20


def test_comments_cite_no_recording_outside_the_repository() -> None:
    ids = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{8}\b")
    assert [path.name for path in SOURCES if ids.search(path.read_text(encoding="utf-8"))] == []
