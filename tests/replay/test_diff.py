"""Test the comparison of two values and of two runs."""

from typing import Any

import pytest
from hypothesis import given

from dragoman.events import ToolIntent
from dragoman.log import CallCompleted, MessageRecorded, Payload, ToolObserved, ToolStarted
from dragoman.log.record import draft_record, link_record
from dragoman.messages import Assistant
from dragoman.replay import ReplayStep, compare_runs, find_differences, to_steps

from ..story import EDIT, STORY, intent
from ..strategies import json_values


def steps(payloads: list[Payload]) -> list[ReplayStep]:
    return list(to_steps([link_record(draft_record("s", payload), None) for payload in payloads]))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (1, 2, [": 1 and 2"]),
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1, "b": 2}, {"b": 3, "c": None},
         ["a: 1 and nothing", "b: 2 and 3", "c: nothing and null"]),
        ([1, [2]], [1, [3], 4], ["[1][0]: 2 and 3", "[2]: nothing and 4"]),
        ({"x": {"y": ["a", "b"]}}, {"x": {"y": ["a", "c"]}}, ['x.y[1]: "b" and "c"']),
        (True, 1, [": true and 1"]),
        (None, {}, [": null and {}"]),
        ("x" * 50 + "1", "x" * 50 + "2", [f', character 50: "…{"x" * 20}1" and "…{"x" * 20}2"']),
    ],
)  # fmt: skip
def test_differences_between_values_are_listed_by_path(a: Any, b: Any, words: list[str]) -> None:
    assert [str(found) for found in find_differences(a, b)] == words


@given(a=json_values, b=json_values)
def test_differences_are_found_only_between_unequal_values(a: Any, b: Any) -> None:
    assert list(find_differences(a, a)) == []
    if a != b:
        assert list(find_differences(a, b))


def rename(payload: Payload) -> Payload:
    """Return a record as another run would write it, with other ids and durations."""
    if isinstance(payload, ToolIntent):
        return intent(int(payload.id[3:]) + 50, payload.tool_name, payload.input)
    if isinstance(payload, CallCompleted):
        return CallCompleted(**{
            **{name: getattr(payload, name) for name in payload.__struct_fields__},
            "latency_ms": 1.0, "request_id": "x"
        })  # fmt: skip
    return payload


def test_comparing_two_runs_ignores_ids_and_durations() -> None:
    assert compare_runs(steps(STORY), steps([rename(payload) for payload in STORY])) == ()


def test_additional_step_is_reported_as_one_difference() -> None:
    extra = MessageRecorded(message=Assistant("By the way ..."), request_id="r9")
    [change] = compare_runs(steps(STORY), steps([*STORY[:10], extra, *STORY[10:]]))
    assert change.kind == "only_b"
    assert change.a is None
    assert (change.b is not None and change.b.title) == "assistant: By the way ..."
    [change] = compare_runs(steps([*STORY[:10], extra, *STORY[10:]]), steps(STORY))
    assert change.kind == "only_a"


def test_difference_of_a_changed_step_names_the_path() -> None:
    other = [
        (
            ToolObserved(
                intent_id="tu_1",
                tool_name="bash",
                content="expected 4, received 6\n",
                is_error=True,
                exit_code=2,
            )
            if isinstance(payload, ToolObserved) and payload.intent_id == "tu_1"
            else payload
        )
        for payload in STORY
    ]
    [change] = compare_runs(steps(STORY), steps(other))
    assert change.kind == "changed"
    assert [str(found) for found in change.where] == [
        'content: "expected 4, received 5\\n" and "expected 4, received 6\\n"',
        "exit_code: 1 and 2",
    ]


def test_different_tool_proposal_is_reported_as_a_change() -> None:
    other = [
        (
            intent(3, "edit_file", {**EDIT, "new": "a * b"})
            if isinstance(payload, ToolIntent) and payload.id == "tu_3"
            else payload
        )
        for payload in STORY
    ]
    changes = compare_runs(steps(STORY), steps(other))
    assert (
        next(str(found) for change in changes for found in change.where)
        == 'input.new: "a + b" and "a * b"'
    )


def test_long_runs_are_compared() -> None:
    long = steps(STORY) * 100
    changes = compare_runs(long, [*long[:-1], long[0]])
    assert [change.kind for change in changes] == ["only_a", "only_b"]


def test_order_of_concurrent_steps_is_not_compared() -> None:
    def seen(number: int) -> ToolObserved:
        return ToolObserved(intent_id=f"tu_{number}", tool_name="look", content=str(number))

    proposed = [intent(1, "look", {"word": "ox"}), intent(2, "look", {"word": "yak"})]
    begun = [
        ToolStarted("tu_1", "look", {"word": "ox"}),
        ToolStarted("tu_2", "look", {"word": "yak"}),
    ]
    one = steps([*proposed, *begun, seen(1), seen(2)])
    two = steps([*proposed, *begun[::-1], seen(2), seen(1)])
    assert compare_runs(one, two) == ()
    assert (
        compare_runs(
            one,
            steps(
                [
                    *proposed,
                    *begun,
                    seen(1),
                    ToolObserved(intent_id="tu_2", tool_name="look", content="1"),
                ]
            ),
        )
        != ()
    )
