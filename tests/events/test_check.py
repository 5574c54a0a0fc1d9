"""One broken stream for every rule of the stream."""

from __future__ import annotations

import ast
import inspect
from typing import TypeGuard

import pytest
from msgspec.structs import replace

from dragoman.events import (
    AssembledFrom,
    Event,
    FinishReason,
    IntentSource,
    MessageComplete,
    MessageStart,
    StreamContractError,
    TextDelta,
    ThinkingDelta,
    ToolIntent,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UnknownEvent,
    check,
    check_events,
)
from dragoman.messages import AssistantBlock, Opaque, RedactedThinking, Text, Thinking, ToolCall

ID = ("msg", "req")
START = MessageStart(*ID, "m")


def text(index: int, said: str, message_id: str = "msg") -> TextDelta:
    return TextDelta(message_id, "req", index, said)


def thought(index: int, said: str, signature: str | None = None) -> ThinkingDelta:
    return ThinkingDelta(*ID, index, said, signature)


def call(index: int, name: str = "a") -> ToolUseStart:
    return ToolUseStart(*ID, index, name, "search")


def more(index: int, fragment: str, name: str = "a") -> ToolUseInputDelta:
    return ToolUseInputDelta(*ID, index, name, fragment)


def intent(value: dict[str, int]) -> ToolIntent:
    return ToolIntent("tu", "a", "search", value, "", IntentSource("", "", "", 0), AssembledFrom(0, 0, 0))


def over(index: int, value: dict[str, int] | None = None, name: str = "a") -> ToolUseEnd:
    return ToolUseEnd(*ID, index, name, value or {}, intent(value or {}))


def broken(index: int, name: str = "a") -> ToolUseEnd:
    return ToolUseEnd(*ID, index, name, {}, None, "malformed")


def complete(*blocks: AssistantBlock, reason: FinishReason = "stop") -> MessageComplete:
    return MessageComplete(*ID, reason, blocks)


def naming(tool: str = "search", call_id: str = "a") -> ToolUseEnd:
    """The end of call ``a``, with an intent that names these."""
    return replace(over(0), intent=replace(intent({}), tool_name=tool, provider_call_id=call_id))


SOUND: dict[str, list[Event]] = {
    "nothing": [],
    "an empty reply": [START, complete()],
    "text": [START, text(0, "a"), text(0, "b"), complete(Text("ab"))],
    "thinking and text": [
        START,
        thought(0, "a"),
        thought(0, "", "sig"),
        text(1, "b"),
        complete(Thinking("a"), Text("b")),
    ],
    "a signature alone": [START, thought(0, "", "sig"), complete(Thinking(""))],
    "blocks that make no events": [
        START,
        text(3, "a"),
        complete(Opaque(1), RedactedThinking("x"), Text(""), Text("a")),
    ],
    "calls": [
        START,
        call(0),
        more(0, '{"n"'),
        more(0, ":1}"),
        over(0, {"n": 1}),
        call(1, "b"),
        over(1, name="b"),
        complete(ToolCall("a", "search", {"n": 1}), ToolCall("b", "search", {})),
    ],
    "a call whose id was used before": [
        START,
        call(0),
        naming(),
        call(1, "minted"),
        replace(naming(), content_block_index=1, tool_use_id="minted"),
        complete(ToolCall("a", "search", {}), ToolCall("minted", "search", {}), reason="tool_calls"),
    ],
    "arguments of white space": [START, call(0), more(0, " "), over(0), complete(ToolCall("a", "search", {}))],
    "a call that cannot be read": [START, call(0), more(0, "{"), broken(0), complete(ToolCall("a", "search", None))],
}


@pytest.mark.parametrize("events", SOUND.values(), ids=SOUND)
def test_sound_streams(events: list[Event]) -> None:
    check_events(events)
    check_events(iter(events))


BROKEN: list[tuple[str, int, list[Event]]] = [
    ("the stream does not end with message.complete", 0, [START]),
    ("the stream does not end with message.complete", 1, [START, text(0, "a")]),
    ("an event after message.complete", 2, [START, complete(), text(0, "a")]),
    ("an event after message.complete", 2, [START, complete(), START]),
    ("an event after message.complete", 2, [START, complete(), complete()]),
    ("a second message.start", 1, [START, START]),
    ("an event before message.start", 0, [text(0, "a"), START]),
    ("an event before message.start", 0, [complete()]),
    ("a message_id that differs from message.start's", 1, [START, text(0, "a", "other")]),
    ("a request_id that differs from message.start's", 1, [START, TextDelta("msg", "other", 0, "a")]),
    ("a request_id that differs from message.start's", 1, [START, MessageComplete("msg", "other", "stop")]),
    ("message.complete while a tool call is open", 2, [START, call(0), complete()]),
    ("final_content is not the sum of the deltas", 2, [START, text(0, "a"), complete()]),
    ("final_content is not the sum of the deltas", 1, [START, complete(Text("a"))]),
    ("final_content is not the sum of the deltas", 2, [START, text(0, "a"), complete(Text("b"))]),
    ("final_content is not the sum of the deltas", 2, [START, text(0, "a"), complete(Thinking("a"))]),
    ("final_content is not the sum of the deltas", 3, [START, text(0, "a"), text(1, "b"), complete(Text("ab"))]),
    ("final_content is not the sum of the deltas", 3, [START, call(0), over(0), complete(ToolCall("b", "search", {}))]),
    (
        "final_content is not the sum of the deltas",
        3,
        [START, call(0), over(0), complete(ToolCall("a", "search", {"n": 1}))],
    ),
    ("content_block_index decreased", 2, [START, text(1, "a"), text(0, "b")]),
    ("content_block_index decreased", 1, [START, text(-1, "a")]),
    ("content_block_index decreased", 2, [START, call(1), more(0, "{}")]),
    ("another block while a tool call is open", 2, [START, call(0), text(1, "a")]),
    ("another block while a tool call is open", 2, [START, call(0), thought(0, "a")]),
    ("another block while a tool call is open", 2, [START, call(0), call(1, "b")]),
    ("two kinds of delta in one block", 2, [START, text(0, "a"), thought(0, "b")]),
    ("two kinds of delta in one block", 2, [START, thought(0, "a"), text(0, "b")]),
    ("two kinds of delta in one block", 3, [START, call(0), over(0), text(0, "b")]),
    ("a tool call in a block that had begun", 2, [START, text(0, "a"), call(0)]),
    ("a tool_use_id used twice", 3, [START, call(0), over(0), call(1)]),
    ("a tool call that is not open", 1, [START, more(0, "{}")]),
    ("a tool call that is not open", 1, [START, over(0)]),
    ("a tool call that is not open", 2, [START, call(0), more(0, "{}", "b")]),
    ("a tool call that is not open", 2, [START, call(0), over(0, name="b")]),
    ("a tool call that is not open", 2, [START, call(0), more(1, "{}")]),
    ("a tool call that is not open", 3, [START, call(0), over(0), over(0)]),
    ("final_input is not the sum of the fragments", 3, [START, call(0), more(0, '{"n":1}'), over(0, {"n": 2})]),
    ("final_input is not the sum of the fragments", 3, [START, call(0), more(0, '{"n":1}'), broken(0)]),
    ("final_input is not the sum of the fragments", 2, [START, call(0), over(0, {"n": 2})]),
    (
        "final_input is not the sum of the fragments",
        5,
        [START, call(0), more(0, "{}"), over(0), call(1, "b"), over(1, {"n": 2}, "b")],
    ),
    ("tool.use_end needs an intent or a problem", 2, [START, call(0), ToolUseEnd(*ID, 0, "a", {})]),
    (
        "tool.use_end needs an intent or a problem",
        2,
        [START, call(0), ToolUseEnd(*ID, 0, "a", {}, intent({}), "malformed")],
    ),
    *[
        ("an intent of arguments that are not a JSON object", 3, [START, call(0), more(0, text), over(0)])
        for text in ('{"n":', "[1]", "nul")
    ],
    ("an intent that names another tool", 2, [START, call(0), naming(tool="delete")]),
    ("an intent that names another call", 2, [START, call(0), naming(call_id="b")]),
    (
        "tool_calls as the reason after a call that made no intent",
        6,
        [
            START,
            call(0),
            more(0, "{"),
            broken(0),
            call(1, "b"),
            over(1, name="b"),
            complete(ToolCall("a", "search", None), ToolCall("b", "search", {}), reason="tool_calls"),
        ],
    ),
    ("intent and final_input differ", 2, [START, call(0), ToolUseEnd(*ID, 0, "a", {}, intent({"n": 1}))]),
]


@pytest.mark.parametrize(("rule", "index", "events"), BROKEN)
def test_broken_streams(rule: str, index: int, events: list[Event]) -> None:
    with pytest.raises(StreamContractError) as caught:
        check_events(events)
    assert (caught.value.rule, caught.value.index) == (rule, index)
    assert str(caught.value) == f"event {index}: {rule}"


def is_pair(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and len(node.args) == 2


def test_every_rule_is_broken_once() -> None:
    """The rules are the texts that the checker may raise."""
    second = [node.args[1] for node in ast.walk(ast.parse(inspect.getsource(check))) if is_pair(node)]
    texts = [each.value for each in second if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    assert len(texts) > 10
    assert set(texts) == {rule for rule, _, _ in BROKEN}


def test_events_of_unknown_types_are_passed_over() -> None:
    unknown = UnknownEvent("citation.delta", {})
    for events in SOUND.values():
        check_events([unknown, *[each for event in events for each in (event, unknown)]] if events else [])
    with pytest.raises(StreamContractError, match=r"^event 2: the stream does not end with message\.complete$"):
        check_events([unknown, START, unknown])


def test_the_first_broken_rule_is_named() -> None:
    with pytest.raises(StreamContractError) as caught:
        check_events([START, text(1, "a"), text(0, "b"), START])
    assert caught.value.index == 2
