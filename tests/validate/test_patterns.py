"""Test regular expressions of schemas: what they match, and the limits that keep them from
blocking the event loop.
"""

from typing import Any

import pytest

from dragoman import InvalidRequestError
from dragoman.validate.patterns import MAX_PATTERNS, weigh
from dragoman.validate.schema import compile_schema, first_error, has_final_error


def check(schema: dict[str, Any], value: Any) -> str | None:
    return first_error(compile_schema(schema, "parameters"), value)


HEAVY = "a[ab]{900}c"
LOOKAHEAD = "(?=(a+)+$)b"


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^[a-z]+$", "abc", "a1"),
        (r"^\w{1,64}$", "abc", "a b"),
        (r"^(?!foo)\w+$", "barfoo", "foobar"),
        (r"^(a+)-\1$", "aa-aa", "aa-a"),
        ("^[a-z]{2,}$", "ab", "a"),
    ],
)
def test_schema_patterns_match_the_expected_strings(pattern: str, good: str, bad: str) -> None:
    schema = {"type": "object", "properties": {"x": {"pattern": pattern}}}
    assert check(schema, {"x": good}) is None
    assert check(schema, {"x": 5}) is None  # a pattern applies to strings only
    error = check(schema, {"x": bad})
    assert error is not None
    assert "does not match" in error
    assert error.endswith("at /x")


@pytest.mark.parametrize(("pattern", "length"), [(HEAVY, 2_000_000), (LOOKAHEAD, 300_000)])
def test_strings_too_long_for_a_pattern_are_rejected(pattern: str, length: int) -> None:
    error = check({"type": "string", "pattern": pattern}, "a" * length)
    assert error is not None
    assert f"a string of {length} characters is too long for the pattern" in error


def test_strings_of_one_value_share_the_limit_of_matching_steps() -> None:
    schema = {"type": "array", "items": {"pattern": HEAVY + "|^a*$"}}
    assert check(schema, ["a" * 20_000] * 2) is None
    assert "too long" in str(check(schema, ["a" * 20_000] * 20))


@pytest.mark.parametrize("pattern", [HEAVY, LOOKAHEAD])
def test_property_names_too_long_for_a_pattern_are_rejected(pattern: str) -> None:
    schema = {"patternProperties": {f"^short$|{pattern}": {"type": "integer"}}}
    assert "not of type" in str(check(schema, [{"short": "x"}][0]))
    assert check(schema, {"inner": [{"other": 1}]}) is None
    assert "property names are too long" in str(check(schema, {"a" * 100_000: 1}))


def test_cheap_patterns_accept_property_names_of_any_length() -> None:
    assert check({"patternProperties": {"^a": {"type": "integer"}}}, {"a" * 100_000: 1}) is None


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"pattern": r"\w{9000}|(?=x)"}, "is not a regular expression, or too large"),
        ({"pattern": "({20,30}"}, "is not a regular expression"),
        ({"pattern": "("}, "is not a"),
        (
            {"anyOf": [{"pattern": f"a{n}"} for n in range(MAX_PATTERNS + 1)]},
            "more than 1000 patterns",
        ),
        (
            {"properties": {f"p{n}": {"pattern": rf"\w{{900}}|{n}"} for n in range(500)}},
            "too large",
        ),
    ],
)
def test_patterns_that_cost_too_much_to_compile_are_rejected(
    schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        compile_schema(schema, "parameters")


def test_patterns_are_checked_in_the_finished_parts_of_a_partial_value() -> None:
    schema = compile_schema({"properties": {"x": {"pattern": "^b{20}$"}, "y": {}}}, "parameters")
    assert has_final_error(schema, {"x": "a", "y": ""}, ["y"])
    assert not has_final_error(schema, {"x": "b" * 20, "y": ""}, ["y"])


@pytest.mark.parametrize(
    ("pattern", "weight"),
    [("a", 1), ("a{3}", 3), ("(a{1,10}){2,5}", 50), ("a{7,}", 7), ("a{0}", 1)],
)
def test_weight_of_a_pattern_is_the_product_of_its_repetitions(pattern: str, weight: int) -> None:
    assert weigh(pattern) == weight
