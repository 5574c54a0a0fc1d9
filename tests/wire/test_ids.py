"""Conversion of tool-call ids to ids that a wire accepts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.messages import Assistant, Message, Text, ToolCall, ToolResult, User
from dragoman.wire.ids import IdMap, IdRule

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
def test_id_rule_recognises_allowed_ids(rule: IdRule, call_id: str, allowed: bool) -> None:
    assert rule.allows(call_id) is allowed


def talk(ids: list[str]) -> list[Message]:
    """Return a conversation with a tool call and a result for each id."""
    messages: list[Message] = [User("u")]
    for call_id in ids:
        messages += [Assistant([Text("t"), ToolCall(call_id, "f", {})]), ToolResult(call_id, "r")]
    return messages


ids = st.lists(st.text(max_size=12) | st.text("ab1_", max_size=70), max_size=8, unique=True)


@given(st.sampled_from(RULES), ids)
def test_rewritten_ids_stay_distinct_and_allowed_ids_are_unchanged(
    rule: IdRule, given: list[str]
) -> None:
    # The worst case: some ids equal the rewritten form of other ids.
    given = list(dict.fromkeys([*given, *[rule.fold(each, 0) for each in given[:3]]]))
    projected = IdMap(rule, talk(given))
    assert len({projected[each] for each in given}) == len(given)
    for each in given:
        assert rule.allows(projected[each])
        assert (projected[each] == each) == rule.allows(each)
        assert (each in projected) == (not rule.allows(each))


@given(st.sampled_from(RULES), ids)
def test_rewriting_an_id_is_deterministic(rule: IdRule, given: list[str]) -> None:
    once = IdMap(rule, talk(given))
    again = IdMap(rule, iter(talk(given)))
    grown = IdMap(rule, [*talk(given), User("more")])
    assert (
        [once[each] for each in given]
        == [again[each] for each in given]
        == [grown[each] for each in given]
    )


def test_rewritten_id_never_equals_an_existing_id() -> None:
    taken = NINE.fold("call_1", 0)
    for order in (["call_1", taken], [taken, "call_1"]):
        projected = IdMap(NINE, talk(order))
        assert projected[taken] == taken
        assert projected["call_1"] == NINE.fold("call_1", 1)


def test_ids_with_colliding_rewritten_forms_stay_distinct() -> None:
    """An alphabet of two letters and a length of two allow only four ids, so collisions are
    certain.
    """
    clash = next(
        each for each in map(str, range(99)) if TINY.fold(each, 0) == TINY.fold("first", 0)
    )
    projected = IdMap(TINY, talk(["first", clash]))
    assert projected["first"] == TINY.fold("first", 0)
    assert projected[clash] not in (projected["first"], clash)


def test_id_of_a_call_or_a_result_alone_is_rewritten() -> None:
    for alone in (ToolResult("call_1", "r"), Assistant([ToolCall("call_1", "f", {})])):
        projected = IdMap(NINE, [User("u"), alone])
        assert projected["call_1"] == IdMap(NINE, talk(["call_1"]))["call_1"] != "call_1"


def test_every_id_is_allowed_without_an_id_rule() -> None:
    projected = IdMap(None, talk(["call/1"]))
    assert projected["call/1"] == "call/1"
    assert "call/1" not in projected


def test_id_that_is_not_in_the_conversation_is_unchanged() -> None:
    assert IdMap(NINE)["call_1"] == "call_1"


@pytest.mark.parametrize(
    ("rule", "length"), [(NINE, 9), (FORTY, 32), (DASHED, 32), (LONG, 48), (IdRule(5), 5)]
)
def test_length_of_a_rewritten_id_is_limited(rule: IdRule, length: int) -> None:
    assert len(rule.fold("call/1", 0)) == length
    assert rule.fold("call/1", 0) != rule.fold("call/1", 1) != rule.fold("call/2", 1)
    assert rule.fold("\ud800", 0).isalnum()
