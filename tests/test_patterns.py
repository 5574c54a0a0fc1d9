"""Every regular expression of the package takes linear time on every input."""

import os
import re
from typing import Any

import pytest

from .patterns import SIZES, Found, find_made, find_patterns, grows, shapes

PATTERNS = find_patterns()
# The maximum text length for regexes whose cost per character does not rise. If the cost rises,
# longer texts are measured as well.
ENOUGH = 1_000_000 if os.environ.get("DRAGOMAN_EXHAUSTIVE") else 2_000


def test_search_finds_regexes_in_constants_tables_and_functions() -> None:
    places = {found.place for found in PATTERNS}
    assert len(PATTERNS) > 60
    assert {"dragoman.errors._SECRETS", "dragoman.tokens.text._PIECE"} <= places
    assert any(place.startswith("wire/errors.py:") for place in places), (
        "literals inside functions"
    )
    assert any("ROWS[" in place for place in places), "tables"


def test_regexes_are_compiled_at_run_time_only_in_listed_functions() -> None:
    """The search cannot find what is compiled at run time, so these functions are listed."""
    assert (
        find_made()
        == {
            "validate/yaml.py:_loader",  # regexes for YAML scalars; the search reads them from the loader
            "gateway/clients.py:fill_steps",  # texts in the table of clients, escaped
            "gateway/openapi.py:_find_codec",  # the paths of the wires, escaped
            "permission/patterns.py:compile_text",  # a pattern that the operator writes after "re:"
            "prices/rows.py:__post_init__",
            "prices/rows.py:covers",  # patterns from price files of the package or of the user
            # Patterns from data files, matched against names from data files.
            "registry/vendors.py:models",
            "registry/vendors.py:wire_of",  # patterns from data files of the package
            "sim/script.py:__post_init__",
            "sim/script.py:fits",  # a pattern in a simulator script of the user
            # The pattern of the reply headers to keep; the search calls this function.
            "transport/http.py:_kept_lines",
            # Patterns from data files of the package, for names of models.
            "wire/beliefs.py:_applies",
            "wire/beliefs.py:find_rows",
            "wire/readiness.py:_lacks_model",  # the name of a model, escaped
            # Patterns of the error tables; the search reads them from the tables.
            "wire/errors.py:compiled",
        }
    )


def slow_shape(found: Found, sizes: tuple[int, ...] = SIZES, enough: int = ENOUGH) -> str | None:
    pattern = found.pattern
    as_bytes = isinstance(pattern.pattern, bytes)

    def run(text: Any) -> object:
        return (
            pattern.sub(b"" if as_bytes else "", text)
            if found.searches
            else pattern.fullmatch(text)
        )

    for start, unit, end in shapes(pattern):

        def make(size: int, start: str = start, unit: str = unit, end: str = end) -> Any:
            text = start + unit * (size // len(unit)) + end
            return text.encode("utf-8", "surrogatepass") if as_bytes else text

        why = grows(run, make, sizes, enough)
        if why is not None:
            return f"{found.place} on {start[:60]!r} + {unit[:60]!r} * n + {end!r}: {why}"
    return None


@pytest.mark.exhaustive
@pytest.mark.parametrize("found", PATTERNS, ids=[found.place for found in PATTERNS])
def test_regexes_take_linear_time(found: Found) -> None:
    assert slow_shape(found) is None


@pytest.mark.parametrize(
    "source",
    [
        r"\beyJ[\w-]{10,}\.[\w-]{10,}\.",
        "(a+)+b",
        r"\b(?:[\w-]+\.)*[\w-]+:\d{2,5}\b",
        ".*/models/(.+):x",
    ],
)
def test_regexes_that_take_more_than_linear_time_are_detected(source: str) -> None:
    found = Found("here", re.compile(source, re.DOTALL), True)
    assert slow_shape(found, (100, 400, 1600) if "+)+" not in source else (8, 16, 24)) is not None
