"""Test parsing structured output while it arrives."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import InvalidRequestError
from dragoman.events import TextDelta
from dragoman.messages import Request, User
from dragoman.validate import PartialValue, build_request
from dragoman.validate.partial import PartialJson
from tests import cpu
from tests.rows import read_table

ANY_OBJECT = {"type": "object"}


def delta(text: str, block: int = 0) -> TextDelta:
    return TextDelta("m", "r", content_block_index=block, text=text)


def values(schema: Any, *fragments: str) -> list[Any]:
    value = PartialValue(build_request("?", response_schema=schema))
    return [item for fragment in fragments for item in value.feed(delta(fragment))]


CASES = read_table("partial_json")


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_incomplete_json_is_parsed_as_far_as_it_goes(text: str, expected: list[Any]) -> None:
    assert values(ANY_OBJECT, text) == expected


def test_each_partial_value_is_returned_once() -> None:
    found = values(ANY_OBJECT, "{", " ", '"a', '": ', '"x', "y", '"', ", ", "}")
    assert found == [{}, {"a": "x"}, {"a": "xy"}]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def begins(part: Any, entire: Any) -> bool:
    """Return whether a partial value can still become the complete value."""
    if isinstance(part, dict) and isinstance(entire, dict):
        return all(key in entire and begins(part[key], entire[key]) for key in part)
    if isinstance(part, list) and isinstance(entire, list):
        return len(part) <= len(entire) and all(map(begins, part, entire))
    if isinstance(part, str) and isinstance(entire, str):
        return entire.startswith(part)
    return type(part) is type(entire) and part == entire


@given(
    st.dictionaries(st.text(max_size=4), json_values, max_size=4), st.booleans(), st.integers(1, 7)
)
def test_partial_values_grow_into_the_complete_value(
    value: dict[str, Any], ascii_only: bool, size: int
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    reader = PartialJson()
    for at in range(0, len(text), size):
        assert not reader.is_complete
        reader.feed(text[at : at + size])
        part, _ = reader.read()
        assert begins(part, value), (part, text[: at + size])
    assert reader.is_complete
    assert reader.read() == (value, 0)


def test_deeply_nested_value_is_read_quickly() -> None:
    reader = PartialJson()
    with cpu.spending() as spent:
        for _ in range(100):
            reader.feed("[" * 300)
            reader.read()
        reader.feed("]" * 30_000)
    assert spent.units < cpu.QUARTER_SECOND
    assert reader.is_complete


SCHEMA = {
    "type": "object",
    "properties": {
        "km": {"type": "integer"},
        "kind": {"enum": ["river", "lake"]},
        "in": {"type": "array", "items": {"type": "object", "required": ["code"]}, "minItems": 2},
    },
    "required": ["km", "kind"],
}


def test_partial_value_is_returned_only_if_its_finished_parts_match_the_schema() -> None:
    # The unfinished text may still become "river", which the schema allows.
    assert values(SCHEMA, '{"kind": "riv') == [{"kind": "riv"}]
    assert values(SCHEMA, '{"in": [{"code": 1}, {') == [{"in": [{"code": 1}, {}]}]
    assert values(SCHEMA, '{"kind": "rivulet", ') == []
    assert values(SCHEMA, '{"km": "far", ', '"kind": "river"') == []
    assert values(SCHEMA, '{"in": [{}, ') == []


def test_schema_with_unions_is_checked_only_when_the_value_is_complete() -> None:
    node = {"anyOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}, {"type": "null"}]}
    tree = {
        "$defs": {
            "n": {"type": "object", "properties": {"a": node, "c": node, "b": {"type": "integer"}}}
        },
        "$ref": "#/$defs/n",
        "type": "object",
    }
    assert values(tree, '{"b": "x", ') == [{"b": "x"}]


def test_text_before_the_json_answer_is_skipped() -> None:
    value = PartialValue(build_request("?", response_schema=ANY_OBJECT))
    assert value.feed(delta("Let me see.")) == []
    assert value.feed(delta('{"a": "x', 1)) == [{"a": "x"}]


def test_value_of_a_type_that_is_not_an_object_is_unwrapped() -> None:
    assert values(list[int], "{", '"value": [1, 2, 3') == [[1, 2]]
    assert values(str, '{"value": "Rh') == ["Rh"]


def test_partial_objects_need_a_schema() -> None:
    with pytest.raises(InvalidRequestError, match="response_schema"):
        PartialValue(Request((User("?"),)))


@pytest.mark.parametrize("number", ["1e999", "1" + "0" * 5000])
def test_partial_value_with_a_huge_number_is_not_returned(number: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert values(schema, f'{{"a": {number}, ') == []


def test_deeply_nested_partial_value_is_not_returned() -> None:
    assert (
        values({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a": ' + "[" * 600)
        == []
    )
