"""Test the check of event streams: each rule is broken by at least one stream."""

import ast
import inspect
from typing import Any, TypeGuard, get_args

import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.events import AssembledFrom, FinishReason, IntentSource, Problem, UnknownEvent, check
from dragoman.messages import AssistantBlock

ID = ("msg", "req")
REASONS: tuple[FinishReason, ...] = get_args(FinishReason)
PROBLEMS: tuple[Problem, ...] = get_args(Problem)
START = d.MessageStart(*ID, model="m")


def text(index: int, said: str, message_id: str = "msg") -> d.TextDelta:
    return d.TextDelta(message_id, "req", content_block_index=index, text=said)


def thought(index: int, said: str, signature: str | None = None) -> d.ThinkingDelta:
    return d.ThinkingDelta(*ID, content_block_index=index, text=said, signature=signature)


def call(index: int, name: str = "a") -> d.ToolUseStart:
    return d.ToolUseStart(*ID, content_block_index=index, tool_use_id=name, tool_name="search")


def more(index: int, fragment: str, name: str = "a") -> d.ToolUseInputDelta:
    return d.ToolUseInputDelta(
        *ID, content_block_index=index, tool_use_id=name, partial_json=fragment
    )


def intent(value: dict[str, Any], raw: str = "", name: str = "a", index: int = 0) -> d.ToolIntent:
    source = IntentSource("", "", "req", index)
    return d.ToolIntent(
        id=f"tu_{name}",
        provider_call_id=name,
        tool_name="search",
        input=value,
        raw_input_text=raw,
        source=source,
        assembled_from=AssembledFrom(0, 0, 0),
    )


def end(index: int, name: str, value: dict[str, Any], **fields: Any) -> d.ToolUseEnd:
    return d.ToolUseEnd(
        *ID, content_block_index=index, tool_use_id=name, final_input=value, **fields
    )


def over(
    index: int, value: dict[str, Any] | None = None, raw: str = "", name: str = "a"
) -> d.ToolUseEnd:
    made = intent(value or {}, raw, name, index)
    return end(index, name, value or {}, intent=made)


def broken(index: int, name: str = "a") -> d.ToolUseEnd:
    return end(index, name, {}, problem="malformed")


def complete(*blocks: AssistantBlock, reason: FinishReason = "stop") -> d.MessageComplete:
    return d.MessageComplete(*ID, finish_reason=reason, final_content=blocks)


def proposing(end: d.ToolUseEnd, **fields: Any) -> d.ToolUseEnd:
    """Return a copy of the event that ends a tool call, with some fields of its intent replaced."""
    assert end.intent is not None
    return replace(end, intent=replace(end.intent, **fields))


def signed(text: str, signature: str | None) -> d.Thinking:
    return d.Thinking(text, d.Continuity(signature))


ANY: Any = None  # values of type Any, with which tests build events that the types forbid
TIRED: Any = "tired"
ONE = {"n": 1}
SEARCH = d.ToolCall("a", "search", {})
SEARCH_ONE = d.ToolCall("a", "search", ONE)
A_CALL: list[d.Event] = [START, call(0), more(0, '{"n":1}'), over(0, ONE, '{"n":1}')]
BROKEN_CALL: list[d.Event] = [START, call(0), more(0, "{"), broken(0)]

SOUND: dict[str, list[d.Event]] = {
    "nothing": [],
    "an empty reply": [START, complete()],
    "text": [START, text(0, "a"), text(0, "b"), complete(d.Text("ab"))],
    "thinking and text": [
        START,
        thought(0, "a"),
        thought(0, "", "sig"),
        text(1, "b"),
        complete(signed("a", "sig"), d.Text("b")),
    ],
    "a signature alone": [START, thought(0, "", "sig"), complete(signed("", "sig"))],
    "a signature on a delta": [
        START,
        thought(0, "a", "old"),
        thought(0, "b", "sig"),
        complete(signed("ab", "sig")),
    ],
    "state that has no delta": [
        START,
        thought(1, "a"),
        complete(
            d.Thinking("", d.Continuity(None, {})),
            d.Thinking("a", d.Continuity(None, {})),
            d.Text("", d.Continuity("sig")),
        ),
    ],
    "blocks that make no events": [
        START,
        text(3, "a"),
        complete(d.Opaque(1), d.RedactedThinking("x"), d.Text(""), d.Text("a")),
    ],
    "calls": [
        START,
        call(0),
        more(0, '{"n"'),
        more(0, ":1}"),
        over(0, ONE, '{"n":1}'),
        call(1, "b"),
        over(1, name="b"),
        complete(SEARCH_ONE, d.ToolCall("b", "search", {}), reason="tool_calls"),
    ],
    "a call whose id was used before": [
        START,
        call(0),
        over(0),
        call(1, "minted"),
        proposing(over(1, name="minted"), provider_call_id="a"),
        complete(SEARCH, d.ToolCall("minted", "search", {}), reason="tool_calls"),
    ],
    "a call that the provider calls otherwise": [
        START,
        call(0),
        proposing(over(0), provider_call_id="toolu_1", source=IntentSource("", "", "req", 7)),
        complete(SEARCH),
    ],
    "arguments of white space": [START, call(0), more(0, " "), over(0, raw=" "), complete(SEARCH)],
    "arguments that come at the end alone": [START, call(0), over(0, ONE), complete(SEARCH_ONE)],
    "and as they were written": [START, call(0), over(0, ONE, ' {"n": 1}'), complete(SEARCH_ONE)],
    "and do not fit": [
        START,
        call(0),
        end(0, "a", ONE, problem="invalid_arguments"),
        complete(SEARCH_ONE, reason="error"),
    ],
    "arguments of a second call that come at the end alone": [
        *A_CALL,
        call(1, "b"),
        over(1, {"n": 2}, name="b"),
        complete(SEARCH_ONE, d.ToolCall("b", "search", {"n": 2})),
    ],
    **{
        f"a call that cannot be read, and {reason}": [
            *BROKEN_CALL,
            complete(d.ToolCall("a", "search", None), reason=reason),
        ]
        for reason in REASONS
        if reason not in ("stop", "tool_calls")
    },
    **{
        f"a call with the problem {problem}": [
            START,
            call(0),
            end(0, "a", {}, problem=problem),
            complete(SEARCH, reason="error"),
        ]
        for problem in PROBLEMS
    },
    **{
        f"a sound call, and {reason}": [*A_CALL, complete(SEARCH_ONE, reason=reason)]
        for reason in REASONS
    },
    "no tokens": [
        START,
        replace(
            complete(),
            usage=d.Usage(
                0,
                0,
                cached_input_tokens=0,
                cache_creation_input_tokens=0,
                reasoning_tokens=0,
                total_tokens=0,
            ),
        ),
    ],
}


@pytest.mark.parametrize("events", SOUND.values(), ids=SOUND)
def test_valid_event_streams_pass_the_check(events: list[d.Event]) -> None:
    d.check_events(events)
    d.check_events(iter(events))


BROKEN: list[tuple[str, int, list[d.Event]]] = [
    ("not an event", 1, [START, ANY]),
    ("not an event", 0, [{"type": "message.start"}]),  # type: ignore[list-item]
    ("not an event", 2, [START, complete(), ANY]),
    ("a field of another type than the event's", 1, [START, text(0, ANY)]),
    ("a field of another type than the event's", 1, [START, text(ANY, "a")]),
    ("a field of another type than the event's", 1, [START, replace(complete(), final_content=ANY)]),
    ("the stream does not end with message.complete", 0, [START]),
    ("the stream does not end with message.complete", 1, [START, text(0, "a")]),
    ("an event after message.complete", 2, [START, complete(), text(0, "a")]),
    ("an event after message.complete", 2, [START, complete(), START]),
    ("an event after message.complete", 2, [START, complete(), complete()]),
    ("a second message.start", 1, [START, START]),
    ("an event before message.start", 0, [text(0, "a"), START]),
    ("an event before message.start", 0, [complete()]),
    ("a message_id that differs from message.start's", 1, [START, text(0, "a", "other")]),
    ("a request_id that differs from message.start's", 1,
     [START, d.TextDelta("msg", "other", content_block_index=0, text="a")]),
    ("a request_id that differs from message.start's", 1,
     [START, d.MessageComplete("msg", "other", finish_reason="stop")]),
    ("message.complete while a tool call is open", 2, [START, call(0), complete()]),
    ("final_content is not the sum of the deltas", 2, [START, text(0, "a"), complete()]),
    ("final_content is not the sum of the deltas", 1, [START, complete(d.Text("a"))]),
    ("final_content is not the sum of the deltas", 2,
     [START, text(0, "a"), complete(d.Text("b"))]),
    ("final_content is not the sum of the deltas", 2,
     [START, text(0, "a"), complete(d.Thinking("a"))]),
    ("final_content is not the sum of the deltas", 3,
     [START, text(0, "a"), text(1, "b"), complete(d.Text("ab"))]),
    ("final_content is not the sum of the deltas", 3,
     [START, call(0), over(0), complete(d.ToolCall("b", "search", {}))]),
    ("final_content is not the sum of the deltas", 3,
     [START, call(0), over(0), complete(SEARCH_ONE)]),
    ("final_content is not the sum of the deltas", 4,
     [*A_CALL, complete(d.ToolCall("a", "search", {"n": True}))]),
    ("final_content is not the sum of the deltas", 1, [START, complete(signed("", "sig"))]),
    ("final_content is not the sum of the deltas", 2,
     [START, thought(0, "", "sig"), complete(d.Thinking(""))]),
    ("final_content names another tool", 4, [*A_CALL, complete(d.ToolCall("a", "delete", ONE))]),
    *[
        (
            "final_content has another signature than the deltas",
            3,
            [START, thought(0, "a"), thought(0, "", said), complete(final)],
        )
        for said, final in (
            ("sig", signed("a", "other")),
            ("sig", signed("a", None)),
            ("sig", d.Thinking("a")),
            (None, signed("a", "sig")),
        )
    ],
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
    *[
        (
            "final_input is not the sum of the fragments",
            3,
            [*A_CALL[:3], over(0, {"n": value}, '{"n":1}')],
        )
        for value in (2, True, 1.0, "1", [1])
    ],
    ("final_input is not the sum of the fragments", 3, [*A_CALL[:3], broken(0)]),
    ("final_input is not the sum of the fragments", 3,
     [START, call(0), more(0, " "), over(0, ONE, " ")]),
    *[
        (
            "final_input is not the sum of the fragments",
            2,
            [START, call(0), end(0, "a", ONE, problem=problem)],
        )
        for problem in PROBLEMS
        if problem in ("cancelled", "interrupted", "malformed")
    ],
    *[
        (
            "final_input is not a JSON object",
            2,
            [START, call(0), replace(over(0), final_input=value)],
        )
        for value in (None, [], {"n": {object}}, {"n": "\ud83d"})
    ],
    ("an unknown problem", 2, [START, call(0), end(0, "a", {}, problem=TIRED)]),
    ("tool.use_end needs an intent or a problem", 2,
     [START, call(0), end(0, "a", {})]),
    ("tool.use_end needs an intent or a problem", 2,
     [START, call(0), end(0, "a", {}, intent=intent({}), problem="malformed")]),
    *[
        (
            "an intent of arguments that are not a JSON object",
            3,
            [START, call(0), more(0, text), over(0, raw=text)],
        )
        for text in ('{"n":', "[1]", "nul")
    ],
    *[
        ("raw_input_text is not the sum of the fragments", 3, [*A_CALL[:3], over(0, ONE, raw)])
        for raw in ("", '{"n": 1}', "lies")
    ],
    *[
        ("raw_input_text is not the input", 2, [START, call(0), over(0, ONE, raw)])
        for raw in ('{"n":2}', '{"n":true}', "[1]", "lies")
    ],
    ("an intent that is not merely proposed", 2,
     [START, call(0), proposing(over(0), status="executed")]),
    ("an intent that names another tool", 2,
     [START, call(0), proposing(over(0), tool_name="delete")]),
    ("an intent of another request", 2,
     [START, call(0), proposing(over(0), source=IntentSource("", "", "other", 0))]),
    ("an intent's id used twice", 5,
     [*A_CALL, call(1, "b"), proposing(over(1, name="b"), id="tu_a")]),
    ("an intent that names another call", 5,
     [*A_CALL, call(1, "b"),
      proposing(over(1, name="b"), provider_call_id="a", source=IntentSource("", "", "req", 0))]),
    *[
        (
            "stop or tool_calls as the reason after a call that made no intent",
            6,
            [
                *BROKEN_CALL,
                call(1, "b"),
                over(1, name="b"),
                complete(
                    d.ToolCall("a", "search", None), d.ToolCall("b", "search", {}), reason=reason
                ),
            ],
        )
        for reason in REASONS
        if reason in ("stop", "tool_calls")
    ],
    *[
        (
            "stop or tool_calls as the reason after a call that made no intent",
            3,
            [START, call(0), end(0, "a", {}, problem=problem), complete(SEARCH)],
        )
        for problem in PROBLEMS
    ],
    ("an unknown finish_reason", 1, [START, complete(reason=ANY)]),
    ("an unknown finish_reason", 1, [START, complete(reason=TIRED)]),
    *[
        ("usage that is not counts of 0 or more", 1, [START, replace(complete(), usage=usage)])
        for usage in (
            None,
            {},
            d.Usage(-1),
            d.Usage(total_tokens=-1),
            d.Usage(True),
            d.Usage(1.5),
            d.Usage(TIRED),
        )  # type: ignore[arg-type]
    ],
    *[
        ("intent and final_input differ", 3, [*A_CALL[:3], proposing(A_CALL[3], input=value)])  # type: ignore[arg-type]
        for value in ({}, {"n": 2}, {"n": True}, None)
    ],
]  # fmt: skip


@pytest.mark.parametrize(("rule", "index", "events"), BROKEN)
def test_invalid_event_streams_fail_the_check(
    rule: str, index: int, events: list[d.Event]
) -> None:
    with pytest.raises(d.StreamContractError) as caught:
        d.check_events(events)
    assert caught.value.rule == rule
    assert caught.value.index == index
    assert str(caught.value) == f"event {index}: {rule}"


def is_pair(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and len(node.args) == 2


def test_every_rule_of_the_stream_check_has_a_failing_case() -> None:
    """Find the rules by their error texts in the source code of the stream check."""
    second = [
        node.args[1] for node in ast.walk(ast.parse(inspect.getsource(check))) if is_pair(node)
    ]
    texts = [
        each.value
        for each in second
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    assert len(texts) > 10
    assert set(texts) == {rule for rule, _, _ in BROKEN}


def test_unknown_events_are_ignored() -> None:
    unknown = UnknownEvent("citation.delta", {})
    for events in SOUND.values():
        d.check_events(
            [unknown, *[each for event in events for each in (event, unknown)]] if events else []
        )
    with pytest.raises(
        d.StreamContractError, match=r"^event 2: the stream does not end with message\.complete$"
    ):
        d.check_events([unknown, START, unknown])


def test_error_names_the_first_broken_rule() -> None:
    with pytest.raises(d.StreamContractError) as caught:
        d.check_events([START, text(1, "a"), text(0, "b"), START])
    assert caught.value.index == 2
