"""Each alternative in an error pattern is needed: without it, a case or an example in the
repository would get another error class.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.capabilities import Capabilities
from dragoman.wire import CODECS
from dragoman.wire.errors import ErrorRow, Failure, build_error, read_failure
from dragoman.wire.openai.errors import ROWS as OPENAI_ROWS
from tests.rows import read_table

from .cases import find_cases
from .test_references import READERS, WIRES, rows_of

EXHAUSTIVE = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1"

# The wire, class, status and text of errors that occur in no conformance case of the wire. A word
# before a vertical bar is the ``type`` of the error.
EXAMPLES = read_table("error_words")


def failure_of(words: str) -> Failure:
    kind, bar, message = words.rpartition("|")
    if not bar and "_" in message and " " not in message:  # the message is only an error code
        return Failure(code=message)
    return Failure(message, kind=kind)


def test_text_of_an_error_decides_its_class() -> None:
    for wire, kind, status, words in EXAMPLES:
        found = build_error(status, {}, failure_of(words), rows_of(wire))
        assert type(found).__name__ == kind, words


def failures_of(wire: str) -> list[tuple[int, Failure]]:
    cases = [case for case in find_cases(wire, "error.json") if case.reply is not None]
    found = [
        (case.options.status, READERS.get(wire, read_failure)(case.reply or b"")) for case in cases
    ]
    own = [(status, failure_of(words)) for at, _, status, words in EXAMPLES if at == wire]
    return found + own


def without_one_alternative(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield each alternative of a pattern, together with the pattern without this alternative."""
    stack: list[list[int]] = [[0]]
    spans: list[tuple[int, int]] = []
    for at, sign in enumerate(pattern):
        if sign == "(":
            stack.append([at + 1])
        elif sign == "|":
            stack[-1].append(at + 1)
        elif sign == ")":
            starts = stack.pop()
            spans += zip(starts, [*[start - 1 for start in starts[1:]], at], strict=True)
    starts = stack.pop()
    spans += zip(starts, [*[start - 1 for start in starts[1:]], len(pattern)], strict=True)
    for start, end in spans:
        yield pattern[start:end], f"{pattern[:start]}(?!){pattern[end:]}"


def survivors(wire: str) -> list[str]:
    """Return the alternatives in error patterns that could be removed without changing any error
    class.
    """
    rows = rows_of(wire)
    found = []
    ruled = [(row_for(rows, *each), each) for each in failures_of(wire)]
    decided = [[each for rule, each in ruled if rule is row] for row in rows]
    for at, (row, failures) in enumerate(zip(rows, decided, strict=True)):
        if wire != "openai" and row in OPENAI_ROWS:
            continue
        expected = [(*each, type(build_error(each[0], {}, each[1], rows))) for each in failures]
        alternatives = list(without_one_alternative(row.pattern))
        for alternative, pattern in alternatives[:: 1 if EXHAUSTIVE else 3]:
            left = (replace(row, pattern=pattern), *rows[at + 1 :])  # no earlier row fits these
            if all(
                type(build_error(status, {}, failure, left)) is kind
                for status, failure, kind in expected
            ):
                found.append(f"{sorted(row.statuses or ())} {row.pattern}: {alternative}")
    return found


def row_for(rows: tuple[ErrorRow, ...], status: int, failure: Failure) -> ErrorRow | None:
    """Return the row of an error table that decides the class of an error."""
    return next((row for row in rows if row.fits(status, failure)), None)


@pytest.mark.parametrize("wire", WIRES)
def test_rows_of_an_error_table_apply_to_their_statuses_only(wire: str) -> None:
    for status, failure in failures_of(wire):
        row = row_for(rows_of(wire), status, failure)
        assert row is None or row.statuses is None or not row.fits(418, failure), failure


@pytest.mark.exhaustive
@pytest.mark.no_cover  # the other tests read the same errors
@pytest.mark.parametrize("wire", WIRES)
def test_every_alternative_in_an_error_pattern_is_needed(wire: str) -> None:
    assert survivors(wire) == []


# The wire, class, status and text of errors that users reported, with the issue or file that has
# them (seen 2026-11-18 and 2026-11-19; the day is that of the report). Patterns were made from the
# rows "made" alone, so the rows "kept", which the hash of their text selects, show how many texts
# the patterns recognise that their author did not use: 68 of 75. Two rows about the dimensions of
# images were selected too, until a pattern used them. Of the 12 that were added last, after all
# patterns but one, 11 were recognised.
WORDINGS = read_table("error_wordings")
RECALLED = 68
PAGE = Path(__file__).parents[2] / "docs/reference/errors.md"


def classify(wire: str, status: int, words: str) -> str:
    """Return the class of an error whose body has the form of the wire."""
    failure = failure_of(words)
    record: dict[str, Any] = {"message": failure.message}
    body: Any = {"error": {**record, "type": failure.kind, "code": failure.code}}
    if wire == "gemini":
        body = {"error": {**record, "status": failure.kind, "code": status}}
    elif wire in ("bedrock", "cohere"):
        body = record
    elif wire == "ollama":
        body = {"error": failure.message}
    codec = CODECS[wire].connect("m", "http://127.0.0.1:9", None, Capabilities())
    return type(codec.error(status, {}, json.dumps(body).encode())).__name__


def test_reported_texts_of_errors_have_their_class() -> None:
    kept = []
    for half, wire, kind, status, words, source in WORDINGS:
        found = classify(wire, status, words)
        if half == "made":
            assert found == kind, (words, source)
        else:
            kept.append(found == kind)
    assert sum(kept) == RECALLED
    assert len(kept) == 75
    assert len(WORDINGS) == 170
    assert f"{RECALLED} of {len(kept)} texts" in PAGE.read_text().replace("\n", " ")
