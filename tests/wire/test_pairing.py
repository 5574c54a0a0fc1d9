"""Matching of tool results with their calls."""

from typing import Any

import dragoman as d
from dragoman.wire.ids import CallPosition, IdRule, Pairs


def call(call_id: str, arguments: Any = None) -> d.ToolCall:
    return d.ToolCall(call_id, "t", {} if arguments is None else arguments)


def test_result_with_a_reused_id_belongs_to_the_latest_tool_call() -> None:
    messages = [
        d.User("a"),
        d.Assistant([call("1")]),
        d.Assistant([d.Text("x"), call("1"), call("2")]),
        d.ToolResult("1", "late"),
        d.ToolResult("2", "two"),
        d.ToolResult("1", "early"),
        d.ToolResult("nobody", "?"),
    ]
    pairs = Pairs(messages, 5, None)
    assert pairs.answers == {8: CallPosition(7, 1), 9: CallPosition(7, 2), 10: CallPosition(6, 0)}
    assert pairs.results == {where: at for at, where in pairs.answers.items()}
    assert len(set(pairs.ids.values())) == 3, "an id is sent once"
    assert pairs.ids[CallPosition(6, 0)] == "1"


def test_only_tool_calls_with_a_result_get_an_id() -> None:
    messages: list[d.Message] = [d.Assistant([call("1"), call("2")]), d.ToolResult("2", "x")]
    assert Pairs(messages, 0, IdRule(9, exact=True)).ids.keys() == {CallPosition(0, 1)}
