"""Ids, extras, names and addresses, fitted into what a wire takes."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.capabilities import Capabilities
from dragoman.errors import InvalidRequestError
from dragoman.messages import Assistant, Message, Request, RuntimeConfig, Text, Tool, ToolCall, ToolResult, User
from dragoman.wire import CODECS
from dragoman.wire.projection import IdMap, IdRule, join_url, merge_extras, root_of, schema_name, sorted_json, to_bytes

# --- ids ----------------------------------------------------------------------------------------------

NINE = IdRule(9, exact=True)
FORTY = IdRule(40)
DASHED = IdRule(64, also="_-")
LONG = IdRule(48, exact=True)
TINY = IdRule(2, alphabet="ab")
ANY = IdRule(40, any_character=True)
RULES = [NINE, FORTY, DASHED, LONG, ANY]

ALLOWED: list[tuple[IdRule, str, bool]] = [
    (NINE, "abcDEF123", True),
    (NINE, "abcDEF12", False),
    (NINE, "abcDEF1234", False),
    (NINE, "abcDEF12_", False),
    (FORTY, "a", True),
    (FORTY, "a" * 40, True),
    (FORTY, "a" * 41, False),
    (FORTY, "", False),
    (FORTY, "a_b", False),
    (DASHED, "call_1-x", True),
    (DASHED, "call.1", False),
    (DASHED, "é", False),
    (ANY, "call#1 {é}呼\n", True),
    (ANY, "é" * 40, True),
    (ANY, "é" * 41, False),
    (ANY, "", False),
    (ANY, "\ud800", False),
]


@pytest.mark.parametrize(("rule", "call_id", "allowed"), ALLOWED)
def test_which_ids_are_legal(rule: IdRule, call_id: str, allowed: bool) -> None:
    assert rule.allows(call_id) is allowed


def test_a_rule_cannot_be_changed() -> None:
    assert IdRule.__struct_config__.frozen


def talk(ids: list[str]) -> list[Message]:
    """A conversation that calls and answers each id, one after the other."""
    messages: list[Message] = [User("u")]
    for call_id in ids:
        messages += [Assistant([Text("t"), ToolCall(call_id, "f", {})]), ToolResult(call_id, "r")]
    return messages


ids = st.lists(st.text(max_size=12) | st.text("ab1_", max_size=70), max_size=8, unique=True)


@given(st.sampled_from(RULES), ids)
def test_no_two_ids_become_one_and_legal_ones_stay(rule: IdRule, given: list[str]) -> None:
    # the worst there is: ids that are themselves what others become
    given = list(dict.fromkeys([*given, *[rule.fold(each, 0) for each in given[:3]]]))
    projected = IdMap(rule, talk(given))
    assert len({projected[each] for each in given}) == len(given)
    for each in given:
        assert rule.allows(projected[each])
        assert (projected[each] == each) == rule.allows(each)
        assert (each in projected) == (not rule.allows(each))


@given(st.sampled_from(RULES), ids)
def test_projections_are_the_same_every_time(rule: IdRule, given: list[str]) -> None:
    once, again = IdMap(rule, talk(given)), IdMap(rule, iter(talk(given)))
    grown = IdMap(rule, [*talk(given), User("more")])
    assert [once[each] for each in given] == [again[each] for each in given] == [grown[each] for each in given]


def test_an_id_that_another_would_become_is_reserved() -> None:
    taken = NINE.fold("call_1", 0)
    for order in (["call_1", taken], [taken, "call_1"]):
        projected = IdMap(NINE, talk(order))
        assert projected[taken] == taken
        assert projected["call_1"] == NINE.fold("call_1", 1)


def test_two_ids_that_would_become_one() -> None:
    """With two letters of two there are four ids: some of many must collide at first."""
    clash = next(each for each in map(str, range(99)) if TINY.fold(each, 0) == TINY.fold("first", 0))
    projected = IdMap(TINY, talk(["first", clash]))
    assert projected["first"] == TINY.fold("first", 0)
    assert projected[clash] not in (projected["first"], clash)


def test_a_result_alone_is_projected_too() -> None:
    projected = IdMap(NINE, [User("u"), ToolResult("call_1", "r")])
    assert projected["call_1"] == IdMap(NINE, talk(["call_1"]))["call_1"] != "call_1"


def test_a_call_alone_is_projected_too() -> None:
    projected = IdMap(NINE, [User("u"), Assistant([Text("t"), ToolCall("call_1", "f", {})])])
    assert projected["call_1"] == IdMap(NINE, talk(["call_1"]))["call_1"] != "call_1"


def test_without_a_rule_every_id_is_legal() -> None:
    projected = IdMap(None, talk(["call/1"]))
    assert projected["call/1"] == "call/1"
    assert "call/1" not in projected


def test_an_id_that_is_not_in_the_conversation_stays() -> None:
    assert IdMap(NINE)["call_1"] == "call_1"


@pytest.mark.parametrize(("rule", "length"), [(NINE, 9), (FORTY, 32), (DASHED, 32), (LONG, 48), (IdRule(5), 5)])
def test_the_length_of_a_projection(rule: IdRule, length: int) -> None:
    assert len(rule.fold("call/1", 0)) == length
    assert rule.fold("call/1", 0) != rule.fold("call/1", 1) != rule.fold("call/2", 1)
    assert rule.fold("\ud800", 0).isalnum()


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": float("nan")}, "a is nan"),
        ({"a": [1, {"b": (None, float("inf"))}]}, r"a\[1\]\.b\[1\] is inf"),
        ([-float("inf")], r"\[0\] is -inf"),
        (float("nan"), "it is nan"),
    ],
)
def test_what_is_no_number_is_refused_with_its_place(value: Any, place: str) -> None:
    with pytest.raises(InvalidRequestError, match=place):
        sorted_json(value)


def test_nothing_is_a_value_like_any_other() -> None:
    deep: Any = None
    for _ in range(200):
        deep = {"a": [deep, 1.5, "null"]}
    assert msgspec.json.decode(sorted_json(deep)) == deep


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_no_wire_sends_what_is_no_number(wire: str) -> None:
    codec = CODECS[wire].connect("m", "http://test", None, Capabilities())
    said = [User("a"), Assistant([ToolCall("1", "f", {"x": [float("nan")]})]), ToolResult("1", "r")]
    config = RuntimeConfig(max_tokens=10)
    with pytest.raises(InvalidRequestError, match=r"x\[0\] is nan"):
        codec.encode(Request(said, tools=[Tool("f")], config=config))
    with pytest.raises(InvalidRequestError, match="x is inf"):
        codec.encode(Request([User("a")], config=RuntimeConfig(max_tokens=10, extras={"own": {"x": float("inf")}})))


# --- extras -------------------------------------------------------------------------------------------


def merged(body: dict[str, Any], extras: dict[str, Any], **settings: Any) -> dict[str, Any]:
    merge_extras(body, extras, **settings)
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body))
    return plain


STOP = {"lists": frozenset({"stop"})}
EXTRAS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {}, {}, {}),
    ({"a": 1}, {"b": 2}, {}, {"a": 1, "b": 2}),
    ({}, {"b": None}, {}, {"b": None}),
    ({}, {"b": {"z": 1, "a": [2, {"y": 1, "x": 2}]}}, {}, {"b": {"a": [2, {"x": 2, "y": 1}], "z": 1}}),
    # a field of ours: equal is redundant
    ({"a": 1}, {"a": 1.0}, {}, {"a": 1}),
    ({"a": True}, {"a": True}, {}, {"a": True}),
    ({"a": None}, {"a": None}, {}, {"a": None}),
    ({"a": {"x": [1, {"y": 2}]}}, {"a": {"x": (1, {"y": 2.0})}}, {}, {"a": {"x": [1, {"y": 2}]}}),
    ({"a": User("u")}, {"a": {"content": "u", "role": "user"}}, {}, {"a": {"role": "user", "content": "u"}}),
    ({"a": msgspec.Raw(b'{"x":1}')}, {"a": {"x": 1}}, {}, {"a": {"x": 1}}),
    # lists that merge, ours first
    ({"stop": ["a"]}, {"stop": ["b", "a", "c"]}, STOP, {"stop": ["a", "b", "c"]}),
    ({"stop": ["a"]}, {"stop": ("b",)}, STOP, {"stop": ["a", "b"]}),
    ({"stop": ["a"]}, {"stop": []}, STOP, {"stop": ["a"]}),
    ({"stop": ["a"]}, {"stop": "b"}, {**STOP, "coerce": True}, {"stop": ["a", "b"]}),
    ({}, {"stop": "b"}, {**STOP, "coerce": True}, {"stop": "b"}),
    # malformed for a merge counts as absent
    ({"stop": ["a"]}, {"stop": "b"}, STOP, {"stop": ["a"]}),
    ({"stop": ["a"]}, {"stop": ["b", 5]}, STOP, {"stop": ["a"]}),
    ({"stop": ["a"]}, {"stop": None}, STOP, {"stop": ["a"]}),
    ({"stop": ["a"]}, {"stop": 5}, {**STOP, "coerce": True}, {"stop": ["a"]}),
]


@pytest.mark.parametrize(("body", "extras", "settings", "expected"), EXTRAS)
def test_extras(body: dict[str, Any], extras: dict[str, Any], settings: dict[str, Any], expected: Any) -> None:
    assert merged(dict(body), extras, **settings) == expected


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (1, 2),
        (1, True),
        (True, 1),
        (0, False),
        (False, None),
        (1, "1"),
        ({"x": 1}, {"x": 2}),
        ({"x": 1}, {"x": 1, "y": 2}),
        ({"x": 1}, {}),
        ({"x": [1]}, {"x": [True]}),
        ([1, 2], [2, 1]),
        ([1, 2], [1]),
        ([1], [1, 2]),
        ([], {}),
        ("a", ["a"]),
    ],
)
def test_extras_that_contradict(ours: Any, theirs: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^config\.extras\['a'\] contradicts a field that this call sets"):
        merge_extras({"a": ours}, {"a": theirs})


def test_extras_are_written_in_order() -> None:
    body: dict[str, Any] = {"z": 1}
    merge_extras(body, {"y": 1, "b": {"d": 1, "c": 2}, "a": 1})
    assert msgspec.json.encode(body) == b'{"z":1,"a":1,"b":{"c":2,"d":1},"y":1}'


def test_extras_that_are_not_json() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be written as JSON"):
        merge_extras({}, {"a": object()})


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [object(), {1, object()}, "\ud800", nested(10_000), {1: 1, "a": object()}])
def test_values_that_are_not_json(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="a value of the request cannot be written as JSON"):
        sorted_json(value)


@pytest.mark.parametrize("value", [object(), "\ud800", nested(10_000)])
def test_bodies_that_are_not_json(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^the request cannot be written as JSON"):
        to_bytes({"a": value})


def test_a_body_keeps_the_order_it_was_built_in() -> None:
    assert to_bytes({"b": sorted_json({"z": 1, "a": 2}), "a": {"z": User("u"), "y": None}}) == (
        b'{"b":{"a":2,"z":1},"a":{"z":{"role":"user","content":"u"},"y":null}}'
    )


inner_objects = st.dictionaries(st.text(max_size=3), st.integers(), max_size=3)


@given(st.dictionaries(st.text(max_size=3), inner_objects, max_size=4))
def test_equal_values_give_equal_bytes(value: dict[str, dict[str, int]]) -> None:
    backwards = {name: dict(reversed(inner.items())) for name, inner in reversed(value.items())}
    assert bytes(sorted_json(value)) == bytes(sorted_json(backwards))
    assert msgspec.json.decode(bytes(sorted_json(value))) == value


# --- names ----------------------------------------------------------------------------------------------

TITLES = [
    ("Answer", "Answer"),
    ("An answer: yes/no", "An_answer_yes_no"),
    ("__x__", "x"),
    ("x" * 70, "x" * 64),
    ("snake-case_1", "snake-case_1"),
    ("_XRayX_", "XRayX"),
]


@pytest.mark.parametrize(("title", "name"), TITLES)
def test_schema_named_by_its_title(title: str, name: str) -> None:
    assert schema_name({"title": title}) == name


@pytest.mark.parametrize("title", [None, "", "答え", 5])
def test_schema_named_by_its_digest(title: Any) -> None:
    name = schema_name({"title": title, "type": "object"})
    assert re.fullmatch(r"schema_[0-9a-f]{12}", name)
    assert name == schema_name({"type": "object", "title": title}) != schema_name({"title": title})


# --- addresses --------------------------------------------------------------------------------------------

JOINED = [
    ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1/chat"),
    ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1/chat"),
    ("https://api.example.com/v1", "https://api.example.com/v1/chat"),
    ("https://api.example.com/v1/", "https://api.example.com/v1/chat"),
    ("https://api.example.com/openai/v1", "https://api.example.com/openai/v1/chat"),
    ("https://api.example.com/openai/v1//", "https://api.example.com/openai/v1/chat"),
    ("https://x.example/deployments/d?api-version=1", "https://x.example/deployments/d/chat?api-version=1"),
    ("https://x.example/API-X", "https://x.example/API-X/chat"),
    ("https://x.example?key=1", "https://x.example/v1/chat?key=1"),
    ("http://[::1]:8080/v1", "http://[::1]:8080/v1/chat"),
    ("HTTP://Example.com/v1", "http://Example.com/v1/chat"),
]


@pytest.mark.parametrize(("base", "url"), JOINED)
def test_join_url(base: str, url: str) -> None:
    assert join_url(base, "/chat", "/v1") == url


def test_a_base_without_a_default() -> None:
    assert join_url("https://x.example", "/health") == "https://x.example/health"


REFUSED = [
    ("", "base_url must be an http or https URL, not ''"),
    ("api.example.com/v1", "base_url must be an http or https URL, not 'api.example.com/v1'"),
    ("ftp://x.example", "base_url must be an http or https URL, not 'ftp://x.example'"),
    ("file:///etc/passwd", "base_url must be an http or https URL, not 'file:///etc/passwd'"),
    ("http://", "base_url must be an http or https URL, not 'http://'"),
    ("http:///v1", "base_url must be an http or https URL, not 'http:///v1'"),
    ("http://[bad", "base_url must be an http or https URL; its host or port cannot be read"),
    ("http://user:secret", "base_url must be an http or https URL; its host or port cannot be read"),
    ("http://x.example:99999", "base_url must be an http or https URL; its host or port cannot be read"),
    ("https://user:secret@x.example", "base_url must not contain credentials; pass api_key instead"),
    ("https://user@x.example", "base_url must not contain credentials; pass api_key instead"),
    ("https://:secret@x.example", "base_url must not contain credentials; pass api_key instead"),
    ("ws://user:secret@x.example?key=secret", "base_url must be an http or https URL, not 'x.example'"),
    ("https://x.example/v1#frag", "base_url must not contain a fragment"),
]


@pytest.mark.parametrize(("base", "message"), REFUSED)
def test_addresses_that_are_refused(base: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        join_url(base, "/chat", "/v1")
    assert str(caught.value) == message
    assert "secret" not in str(caught.value)


ROOTS = [
    ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
    ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
    ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
    ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080"),
    ("http://x.example/openai/v1", "http://x.example"),
    ("http://x.example/models/v1beta", "http://x.example/models"),
    ("http://x.example/proxy", "http://x.example/proxy"),
    ("http://x.example/v1/more", "http://x.example/v1/more"),
    ("http://x.example/v1?key=1#f", "http://x.example"),
]


@pytest.mark.parametrize(("base", "root"), ROOTS)
def test_root_of(base: str, root: str) -> None:
    assert root_of(base) == root
