"""JSON of requests: equal values give equal bytes, and extra fields are merged with the codec's
fields.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.capabilities import Capabilities
from dragoman.errors import InvalidRequestError
from dragoman.messages import Assistant, Request, RuntimeConfig, ToolCall, ToolResult, User
from dragoman.validate.content import MAX_DEPTH
from dragoman.wire import CODECS
from dragoman.wire.fields import read_body
from dragoman.wire.json import merge_extras, put_over, sorted_json, to_bytes
from tests.rows import read_table


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": float("nan")}, "a is nan"),
        ({"a": [1, {"b": (None, float("inf"))}]}, r"a\[1\]\.b\[1\] is inf"),
        ([-float("inf")], r"\[0\] is -inf"),
        (float("nan"), "it is nan"),
    ],
)
def test_nan_and_infinity_are_rejected_with_their_json_path(value: Any, place: str) -> None:
    with pytest.raises(InvalidRequestError, match=place):
        sorted_json(value)


def test_null_can_be_encoded_as_json() -> None:
    deep: Any = None
    for _ in range(200):
        deep = {"a": [deep, 1.5, "null"]}
    assert msgspec.json.decode(sorted_json(deep)) == deep


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


NOT_JSON: list[Any] = [object(), {1j}, "a\ud800b", nested(10_000), [float("nan")], float("inf")]


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_no_wire_sends_values_that_are_not_json(wire: str) -> None:
    codec = CODECS[wire].connect("m", "http://test", None, Capabilities())
    limit = RuntimeConfig(max_tokens=10)
    requests = [Request([User("\ud800")], config=limit)]
    for value in NOT_JSON:
        said = [User("a"), Assistant([ToolCall("1", "f", {"a": value})]), ToolResult("1", "r")]
        extras = RuntimeConfig(max_tokens=10, extras={"x": value})
        requests += [Request(said, config=limit), Request([User("a")], config=extras)]
    for request in requests:
        with pytest.raises(InvalidRequestError, match="JSON"):
            codec.encode(request)


def merged(body: dict[str, Any], extras: dict[str, Any], **settings: Any) -> dict[str, Any]:
    merge_extras(body, extras, **settings)
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body))
    return plain


STOP = {"lists": frozenset({"stop"})}
JOINED = {"objects": frozenset({"o"})}
EXTRAS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {}, {}, {}),
    ({"a": 1}, {"b": 2}, {}, {"a": 1, "b": 2}),
    ({}, {"b": None}, {}, {"b": None}),
    ({}, {"b": {"z": 1, "a": [2, {"y": 1, "x": 2}]}}, {},
     {"b": {"a": [2, {"x": 2, "y": 1}], "z": 1}}),
    # An extra field that equals the value which the codec sets is redundant.
    ({"a": 1}, {"a": 1.0}, {}, {"a": 1}),
    ({"a": True}, {"a": True}, {}, {"a": True}),
    ({"a": None}, {"a": None}, {}, {"a": None}),
    ({"a": {"x": [1, {"y": 2}]}}, {"a": {"x": (1, {"y": 2.0})}}, {}, {"a": {"x": [1, {"y": 2}]}}),
    ({"a": User("u")}, {"a": {"content": "u", "role": "user"}}, {},
     {"a": {"role": "user", "content": "u"}}),
    ({"a": msgspec.Raw(b'{"x":1}')}, {"a": {"x": 1}}, {}, {"a": {"x": 1}}),
    # Lists that are merged; the codec's own items come first.
    ({"stop": ["a"]}, {"stop": ["b", "a", "c"]}, STOP, {"stop": ["a", "b", "c"]}),
    ({"stop": ["a"]}, {"stop": ("b",)}, STOP, {"stop": ["a", "b"]}),
    ({"stop": ["a"]}, {"stop": []}, STOP, {"stop": ["a"]}),
    ({"stop": ["a"]}, {"stop": "b"}, {**STOP, "coerce": True}, {"stop": ["a", "b"]}),
    ({}, {"stop": "b"}, {**STOP, "coerce": True}, {"stop": "b"}),
    # Objects that are merged field by field.
    ({"o": {"x": 1}}, {"o": {"y": 2, "x": 1.0}}, JOINED, {"o": {"x": 1, "y": 2}}),
    ({}, {"o": {"y": 2}}, JOINED, {"o": {"y": 2}}),
    # An extra field of the wrong type is not merged, and the value of the codec is kept.
    ({"stop": ["a"]}, {"stop": "b"}, STOP, {"stop": ["a"]}),
    ({"stop": ["a"]}, {"stop": ["b", 5]}, STOP, {"stop": ["a"]}),
    ({"stop": ["a"]}, {"stop": None}, STOP, {"stop": ["a"]}),
    ({"stop": ["a"]}, {"stop": 5}, {**STOP, "coerce": True}, {"stop": ["a"]}),
]  # fmt: skip


@pytest.mark.parametrize(("body", "extras", "settings", "expected"), EXTRAS)
def test_extra_fields_are_merged_into_the_body(
    body: dict[str, Any], extras: dict[str, Any], settings: dict[str, Any], expected: Any
) -> None:
    assert merged(dict(body), extras, **settings) == expected


@pytest.mark.parametrize(
    ("ours", "theirs"), read_table("extra_fields_that_contradict_the_body_are_rejected")
)
def test_extra_fields_that_contradict_the_body_are_rejected(ours: Any, theirs: Any) -> None:
    with pytest.raises(
        InvalidRequestError,
        match=r"^config\.extras\['a'\] contradicts a field that this call sets",
    ):
        merge_extras({"a": ours}, {"a": theirs})


@pytest.mark.parametrize("theirs", [{"x": 2}, 5, None])
def test_contradicting_values_inside_merged_objects_are_rejected(theirs: Any) -> None:
    with pytest.raises(
        InvalidRequestError, match="contradicts a field that this call sets by itself"
    ):
        merge_extras({"o": {"x": 1}}, {"o": theirs}, objects=JOINED["objects"])


def test_extra_fields_are_sorted_and_nested_keys_keep_their_order() -> None:
    body: dict[str, Any] = {"z": 1}
    merge_extras(body, {"y": 1, "b": {"d": 1, "c": 2}, "a": 1})
    assert msgspec.json.encode(body) == b'{"z":1,"a":1,"b":{"d":1,"c":2},"y":1}'


@pytest.mark.parametrize(
    "value", [object(), {1, object()}, "\ud800", nested(10_000), {1: 1, "a": object()}]
)
def test_values_that_are_not_json_are_rejected(value: Any) -> None:
    with pytest.raises(
        InvalidRequestError, match="a value of the request cannot be written as JSON"
    ):
        sorted_json(value)


@pytest.mark.parametrize("value", [object(), "\ud800", nested(10_000)])
def test_bodies_that_are_not_json_are_rejected(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^the request cannot be written as JSON"):
        to_bytes({"a": value})


def test_encoded_body_keeps_its_key_order() -> None:
    assert to_bytes({"b": sorted_json({"z": 1, "a": 2}), "a": {"z": User("u"), "y": None}}) == (
        b'{"b":{"a":2,"z":1},"a":{"z":{"role":"user","content":"u"},"y":null}}'
    )


inner_objects = st.dictionaries(st.text(max_size=3), st.integers(), max_size=3)


@given(st.dictionaries(st.text(max_size=3), inner_objects, max_size=4))
def test_equal_objects_give_equal_bytes_in_any_key_order(value: dict[str, dict[str, int]]) -> None:
    backwards = {name: dict(reversed(inner.items())) for name, inner in reversed(value.items())}
    assert bytes(sorted_json(value)) == bytes(sorted_json(backwards))
    assert msgspec.json.decode(bytes(sorted_json(value))) == value


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_native_fields_override_the_fields_of_the_codec(wire: str) -> None:
    codec = CODECS[wire].connect("m", "http://test", None, Capabilities())
    native = {wire: {"own": {"deep": 1}, "stream": None}, "another": {"lost": True}}
    made = codec.encode(
        Request([User("a")], config=RuntimeConfig(max_tokens=10), stream=True, native=native)
    )
    plain = msgspec.json.decode(made.http.body)
    assert plain["own"] == {"deep": 1}
    assert not {"stream", "lost"} & set(plain)


def test_overriding_merges_objects_and_replaces_other_values() -> None:
    body = {"a": {"x": 1, "y": 2}, "b": [1], "c": 3, "d": 4}
    over = {
        "a": {"y": 5, "z": {"w": 6}},
        "b": [2],
        "c": None,
        "missing": None,
        "d": {"e": 7, "f": None},
    }
    assert put_over(body, over) == {"a": {"x": 1, "y": 5, "z": {"w": 6}}, "b": [2], "d": {"e": 7}}
    assert body["c"] == 3


def test_body_that_is_already_parsed_is_used_unchanged() -> None:
    assert read_body({"model": "m"}) == {"model": "m"}


@pytest.mark.parametrize(
    ("depth", "is_read"), [(MAX_DEPTH - 1, True), (MAX_DEPTH, False), (MAX_DEPTH * 2, False)]
)
def test_deeply_nested_bodies_are_rejected(depth: int, is_read: bool) -> None:
    """The body itself is one level of nesting. Lists next to each other do not add levels."""
    body = (
        b'{"wide": ['
        + b"[]," * MAX_DEPTH
        + b'[]], "deep": '
        + b"[" * (depth - 1)
        + b"]" * (depth - 1)
        + b"}"
    )
    for data in (body, b'{"deep": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"):
        if is_read:
            assert "deep" in read_body(data)
        else:
            with pytest.raises(InvalidRequestError, match=f"nested more than {MAX_DEPTH} levels"):
                read_body(data)
