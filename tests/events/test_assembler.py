"""Test that the assembler emits a valid stream for any order of calls, wherever the stream is cut."""

import itertools
import json
import re
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import dragoman as d
from dragoman.events import (
    Assembler,
    AssemblerError,
    Follower,
    Problem,
    Raw,
    UnknownEvent,
    read_object,
)
from dragoman.messages import AssistantBlock
from tests import strategies as some

ISSUER = d.Issuer("openai", "acme", "m1")
MINE = d.Continuity(issuer=ISSUER)
NEVER = replace(MINE, replayable=False)


class Expected:
    """Accept calls of the tools ``any`` and ``weather``, and structured output that is a JSON
    list. A call of ``weather`` must have a city.
    """

    response_schema: dict[str, Any] | None = None

    def tool_problem(self, name: str, arguments: dict[str, Any]) -> tuple[Problem, str] | None:
        if name not in ("any", "weather"):
            return "unknown_tool", "no such tool"
        if name == "weather" and not isinstance(arguments.get("city"), str):
            return "invalid_arguments", "no city"
        return None

    def read_text(self, text: str) -> tuple[Any, str | None]:
        return (json.loads(text), None) if text.startswith("[") else (None, "not a list")


def make(**settings: Any) -> Assembler:
    numbers = itertools.count(1)
    out = Assembler(
        request_id="req",
        model="m1",
        provider="acme",
        issuer=ISSUER,
        expected=Expected(),
        new_id=lambda: str(next(numbers)),
        **settings,
    )
    out.start()
    return out


def say(out: Assembler, verbs: Iterable[some.Verb]) -> Assembler:
    for verb, arguments in verbs:
        getattr(out, verb)(*arguments)
    return out


def ends(events: Iterable[d.Event]) -> list[d.ToolUseEnd]:
    return [event for event in events if isinstance(event, d.ToolUseEnd)]


def without_state(blocks: Iterable[AssistantBlock]) -> list[AssistantBlock]:
    """Return the blocks as events contain them: no opaque state, no empty blocks, and ``{}`` in
    place of unreadable arguments.
    """
    spoken: list[AssistantBlock] = []
    for block in blocks:
        if isinstance(block, d.ToolCall):
            spoken.append(d.ToolCall(block.id, block.name, block.arguments or {}))
        elif isinstance(block, d.Text | d.Thinking) and block.text:
            spoken.append(replace(block, continuity=None))
    return spoken


# --- the assembler under random orders of calls ------------------------------------------------

endings = st.sampled_from(
    ["stop", "tool_calls", "length", "content_filter", "error", "fail", "cancel"]
)


def end(out: Assembler, ending: Any) -> None:
    if ending == "fail":
        out.fail(d.StreamInterruptedError("cut"))
    elif ending == "cancel":
        out.cancel()
    else:
        out.finish(ending)


@given(some.verbs(), endings, st.booleans())
def test_any_order_of_assembler_calls_gives_a_valid_stream(
    verbs: list[some.Verb], ending: str, by_and_by: bool
) -> None:
    out = make()
    events: list[d.Event] = []
    for verb in verbs:
        say(out, [verb])
        events += out.take() if by_and_by else []
    end(out, ending)
    events += out.take()
    d.check_events(events)
    assert out.take() == []
    assert out.response == d.fold(events)
    assert events[-1] is out.complete


@given(some.verbs(), endings)
def test_final_content_is_the_sum_of_the_deltas(verbs: list[some.Verb], ending: str) -> None:
    out = say(make(), verbs)
    end(out, ending)
    response = d.fold(out.take())
    said = {name: [arguments for verb, arguments in verbs if verb == name] for name, _ in verbs}
    assert response.message.text == "".join(piece for (piece,) in said.get("text", []))
    assert response.message.thinking == "".join(piece for (piece,) in said.get("thinking", []))
    assert [call.name for call in response.tool_calls] == [
        name for _, _, name in said.get("tool_start", [])
    ]
    whole = [
        block
        for block in response.message.content
        if isinstance(block, d.RedactedThinking | d.Opaque)
    ]
    mine = replace(MINE, replayable=ending not in ("fail", "cancel"))
    assert whole == [replace(block, continuity=mine) for (block,) in said.get("whole", [])]
    assert response.usage == ([usage for (usage,) in said.get("usage", [])] or [d.Usage()])[-1]


@given(some.verbs(), endings)
def test_only_complete_and_valid_tool_calls_become_intents(
    verbs: list[some.Verb], ending: str
) -> None:
    out = say(make(), verbs)
    end(out, ending)
    events = out.take()
    starts = [event for event in events if isinstance(event, d.ToolUseStart)]
    fragments = [
        "".join(
            e.partial_json
            for e in events
            if isinstance(e, d.ToolUseInputDelta) and e.tool_use_id == s.tool_use_id
        )
        for s in starts
    ]
    assert len({start.tool_use_id for start in starts}) == len(starts) == len(ends(events))
    for start, text, over in zip(starts, fragments, ends(events), strict=True):
        sound = text.strip() == "" or read_object(text) is not None
        assert over.final_input == (read_object(text) or {})
        if over.intent is not None:
            assert sound
            assert Expected().tool_problem(start.tool_name, over.final_input) is None
            assert over.intent.input == over.final_input
            assert over.intent.raw_input_text == text
            assert over.intent.tool_name == start.tool_name
        elif ending in ("stop", "tool_calls"):
            late = over.detail == "more arguments arrived after the call was complete"
            assert (
                late
                or not sound
                or Expected().tool_problem(start.tool_name, over.final_input) is not None
            )
    if ending in ("stop", "tool_calls"):
        unsound = isinstance(out.error, d.MalformedToolCallError)
        assert unsound == any(over.problem for over in ends(events)) or late_in(verbs)
        assert d.fold(events).finish_reason == ("error" if unsound else ending)


def late_in(verbs: list[some.Verb]) -> bool:
    """Return whether a tool call receives more arguments after its arguments were already a
    complete JSON object.
    """
    texts: dict[Any, str] = {}
    for verb, arguments in verbs:
        if verb == "tool_input":
            if read_object(texts.get(arguments[0], "")) is not None and arguments[1].strip():
                return True
            texts[arguments[0]] = texts.get(arguments[0], "") + arguments[1]
    return False


@given(some.verbs(), endings)
def test_stream_cut_at_any_point_can_be_closed_with_valid_events(
    verbs: list[some.Verb], ending: str
) -> None:
    out = say(make(), verbs)
    end(out, ending)
    events = out.take()
    final = without_state(d.fold(events).message.content)
    for cut in range(len(events) + 1):
        follower = followed(events[:cut])
        closing = follower.cut()
        assert follower.cut() == []
        d.check_events(events[:cut] + closing)
        if cut == len(events):
            assert closing == []
            continue
        response = d.fold(events[:cut] + closing)
        assert [type(event) for event in closing].count(d.MessageComplete) == 1
        found = (response.finish_reason, response.model, response.request_id)
        assert found == ("cancelled", "m1", "req")
        heard = without_state(response.message.content)
        assert all(mine == theirs for mine, theirs in zip(heard[:-1], final, strict=False))


# --- events that scripted assembler calls emit -------------------------------------------------


def brief(events: Iterable[d.Event]) -> list[Any]:
    """Return a short form of each event: its kind, block index and content."""
    short: list[Any] = []
    for event in events:
        match event:
            case d.TextDelta():
                short.append(("text", event.content_block_index, event.text))
            case d.ThinkingDelta():
                short.append(("think", event.content_block_index, event.text, event.signature))
            case d.ToolUseStart():
                short.append(
                    ("call", event.content_block_index, event.tool_use_id, event.tool_name)
                )
            case d.ToolUseInputDelta():
                short.append(("more", event.content_block_index, event.partial_json))
            case d.ToolUseEnd():
                short.append(("end", event.content_block_index, event.final_input, event.problem))
            case d.MessageComplete():
                short.append(event.finish_reason)
            case d.MessageStart():
                short.append("start")
    return short


SCRIPTS: dict[str, tuple[list[some.Verb], list[Any]]] = {
    "nothing": ([], []),
    "empty pieces open nothing": ([("text", ("",)), ("thinking", ("",))], []),
    "text after thinking": ([("thinking", ("a",)), ("text", ("b",)), ("text", ("c",))],
                            [("think", 0, "a", None), ("text", 1, "b"), ("text", 1, "c")]),
    "thinking after text": ([("text", ("b",)), ("thinking", ("a",))],
                            [("text", 0, "b"), ("think", 1, "a", None)]),
    "block_end parts two texts": (
        [("text", ("a",)), ("block_end", (None,)), ("text", ("b",))],
        [("text", 0, "a"), ("text", 1, "b")]),
    "block_end parts two thoughts": (
        [("thinking", ("a",)), ("block_end", (None,)), ("block_end", (None,)),
         ("thinking", ("b",))], [("think", 0, "a", None), ("think", 1, "b", None)]),
    "block_end without a block": ([("block_end", (None,)), ("text", ("a",))], [("text", 0, "a")]),
    "a call": ([("tool_start", (0, "x", "any")), ("tool_input", (0, '{"a"')),
                ("tool_input", (0, "")), ("tool_input", (0, ":1}"))],
               [("call", 0, "x", "any"), ("more", 0, '{"a"'), ("more", 0, ":1}"),
                ("end", 0, {"a": 1}, None)]),
    "text after a call opens a new block": (
        [("text", ("a",)), ("tool_start", (0, "x", "any")), ("tool_input", (0, "{}")),
         ("text", ("b",))],
        [("text", 0, "a"), ("call", 1, "x", "any"), ("more", 1, "{}"), ("end", 1, {}, None),
         ("text", 2, "b")],
    ),
    "two calls interleaved: the second waits": (
        [("tool_start", (0, "x", "any")), ("tool_input", (0, "{")),
         ("tool_start", (1, "y", "any")), ("tool_input", (1, '{"b":2')), ("tool_input", (0, "}")),
         ("tool_input", (1, "}"))],
        [("call", 0, "x", "any"), ("more", 0, "{"), ("more", 0, "}"), ("end", 0, {}, None),
         ("call", 1, "y", "any"), ("more", 1, '{"b":2'), ("more", 1, "}"),
         ("end", 1, {"b": 2}, None)]),
    "text waits for a call that is open": (
        [("tool_start", (0, "x", "any")), ("text", ("a",)), ("text", ("b",)),
         ("tool_input", (0, "{}"))],
        [("call", 0, "x", "any"), ("more", 0, "{}"), ("end", 0, {}, None), ("text", 1, "a"),
         ("text", 1, "b")],
    ),
    "thinking waits with its signature": (
        [("tool_start", (0, "x", "any")), ("thinking", ("a",)), ("attach", (d.Thinking, "sig")),
         ("block_end", (0,))],
        [("call", 0, "x", "any"), ("end", 0, {}, None), ("think", 1, "a", "sig")]),
    "the wire ends the first call although the second is open": (
        [("tool_start", (0, "x", "any")), ("tool_start", (1, "y", "any")), ("block_end", (0,)),
         ("tool_input", (1, "{}"))],
        [("call", 0, "x", "any"), ("end", 0, {}, None), ("call", 1, "y", "any"), ("more", 1, "{}"),
         ("end", 1, {}, None)]),
    "a whole block has an index and no event": (
        [("text", ("a",)), ("whole", (d.Opaque(1),)), ("text", ("b",))],
        [("text", 0, "a"), ("text", 2, "b")]),
    "a signature ends a thought": (
        [("thinking", ("a",)), ("attach", (d.Thinking, "sig")), ("text", ("b",))],
        [("think", 0, "a", None), ("think", 0, "", "sig"), ("text", 1, "b")]),
    "a signature without a thought": ([("attach", (d.Thinking, "sig"))], [("think", 0, "", "sig")]),
    "opaque state of an empty block": ([("attach", (d.Thinking, None, "state")),
                                        ("attach", (d.Text, "sig"))],
                                       [("think", 0, "", None), ("text", 1, "")]),
    "a signed piece is a block of its own": (
        [("thinking", ("a",)), ("thinking", ("b", d.Continuity("sig"))),
         ("text", ("", d.Continuity("s")))],
        [("think", 0, "a", None), ("think", 1, "b", "sig"), ("text", 2, "")]),
    "no arguments at all": ([("tool_start", (0, "x", "any"))],
                            [("call", 0, "x", "any"), ("end", 0, {}, None)]),
    "arguments of white space": (
        [("tool_start", (0, "x", "any")), ("tool_input", (0, " \n"))],
        [("call", 0, "x", "any"), ("more", 0, " \n"), ("end", 0, {}, None)]),
    "null as the arguments": ([("tool_start", (0, "x", "any")), ("tool_input", (0, "null"))],
                              [("call", 0, "x", "any"), ("end", 0, {}, None)]),
    "a call without an id": ([("tool_start", (0, None, "any"))],
                             [("call", 0, "call_2", "any"), ("end", 0, {}, None)]),
    "two calls of one id": ([("tool_start", (0, "x", "any")), ("tool_input", (0, "{}")),
                             ("tool_start", (1, "x", "any"))],
                            [("call", 0, "x", "any"), ("more", 0, "{}"), ("end", 0, {}, None),
                             ("call", 1, "call_2", "any"), ("end", 1, {}, None)]),
}  # fmt: skip


@pytest.mark.parametrize(("verbs", "heard"), SCRIPTS.values(), ids=SCRIPTS)
def test_scripted_assembler_calls_emit_the_expected_events(
    verbs: list[some.Verb], heard: list[Any]
) -> None:
    out = say(make(), verbs)
    out.finish("stop", "eos", "###")
    events = out.take()
    d.check_events(events)
    assert brief(events) == ["start", *heard, "stop"]
    assert out.error is None
    assert out.complete is not None
    assert out.complete.finish_raw == "eos"
    assert out.complete.stop_sequence == "###"


def test_events_are_emitted_as_early_as_possible() -> None:
    out = make()
    assert brief(out.take()) == ["start"]
    out.tool_start(0, "x", "any")
    out.tool_input(0, "{")
    assert brief(out.take()) == [("call", 0, "x", "any"), ("more", 0, "{")]
    out.text("later")
    assert out.take() == []
    out.tool_input(0, "}")
    assert brief(out.take()) == [("more", 0, "}"), ("end", 0, {}, None), ("text", 1, "later")]
    out.text("!")
    assert brief(out.take()) == [("text", 1, "!")]
    out.tool_start(1, "y", "any")
    out.block_end()
    assert brief(out.take()) == [("call", 2, "y", "any"), ("end", 2, {}, None)]


@pytest.mark.parametrize(("said", "model"), [(None, "m1"), ("", "m1"), ("m1-2024", "m1-2024")])
def test_reply_names_the_model_that_the_server_reports(said: str | None, model: str) -> None:
    out = Assembler(model="m1")
    assert not out.started
    out.start(said)
    assert out.started
    out.finish("stop")
    start, complete = out.take()
    assert isinstance(start, d.MessageStart)
    assert isinstance(complete, d.MessageComplete)
    assert start.model == model
    assert complete.model == model
    assert start.request_id == ""
    assert start.provider == ""
    assert complete.structured_path is None
    assert re.fullmatch(r"msg_[0-9A-Z]{26}", start.message_id)


# --- contents of the complete message ----------------------------------------------------------


def test_intent_keeps_the_id_of_its_provider_even_if_the_provider_repeats_it() -> None:
    out = make()
    for key in (0, 1):
        out.tool_start(key, "same", "any")
        out.tool_input(key, "{}")
    out.tool_start(2, None, "any")
    out.finish("tool_calls")
    overs = ends(out.take())
    assert [over.tool_use_id for over in overs] == ["same", "call_2", "call_4"]
    found = [over.intent and over.intent.provider_call_id for over in overs]
    assert found == ["same", "same", "call_4"]


def test_assembler_reports_whether_tool_calls_are_complete() -> None:
    out = make()
    assert not out.has_calls
    assert out.calls_are_complete()
    out.tool_start(0, "x", "any")
    out.tool_start(1, "y", "any")
    out.tool_input(0, "{}")
    assert out.has_calls
    found = (out.calls_are_complete(0), out.calls_are_complete(1), out.calls_are_complete())
    assert found == (True, False, False)
    out.tool_input(1, "{}")
    assert out.calls_are_complete()


@pytest.mark.parametrize("verb", ["text", "thinking"])
def test_long_text_needs_little_more_memory_than_its_bytes(verb: str) -> None:
    out = make()
    most = said = 0
    tracemalloc.start()
    try:
        for number in range(4_000):
            piece = f"word{number % 10}"
            said += len(piece)
            getattr(out, verb)(piece)
            out.take()
            most = max(most, tracemalloc.get_traced_memory()[0] - said)
    finally:
        tracemalloc.stop()
    out.finish("stop")
    final = d.fold(out.take()).message
    assert len(final.thinking or "" if verb == "thinking" else final.text) == said
    assert most < said // 4  # one stored object per fragment would take 240 KiB


# --- invalid tool calls ------------------------------------------------------------------------

Call = tuple[str, str]
NO_OBJECT = "tool call 0 (any): the arguments are not a JSON object"
NO_ARGUMENTS = "tool call 0 (any): the arguments are missing"
CUT = "; the reply was cut at max_tokens"
UNSOUND: list[tuple[Call, str, Problem, dict[str, Any] | None, str]] = [
    (("unknown", "{}"), "stop", "unknown_tool", {}, "tool call 0 (unknown): no such tool"),
    (("", "{}"), "stop", "unknown_tool", {}, "tool call 0 (without a name): no such tool"),
    (("weather", "{}"), "stop", "invalid_arguments", {}, "tool call 0 (weather): no city"),
    (("weather", ""), "stop", "invalid_arguments", {}, "tool call 0 (weather): no city"),
    (("any", "[1]"), "stop", "malformed", None, NO_OBJECT),
    (("any", '{"a":'), "tool_calls", "malformed", None, NO_OBJECT),
    (("any", '{"a":'), "content_filter", "malformed", None, NO_OBJECT),
    (("any", '{"a":'), "length", "malformed", None, NO_OBJECT + CUT),
    (("any", " "), "length", "malformed", None, NO_ARGUMENTS + CUT),
]


@pytest.mark.parametrize(("call", "reason", "problem", "arguments", "message"), UNSOUND)
def test_invalid_call_is_reported_with_its_problem(
    call: Call, reason: Any, problem: str, arguments: dict[str, Any] | None, message: str
) -> None:
    out = make()
    out.tool_start(0, "x", call[0])
    out.tool_input(0, call[1])
    out.finish(reason)
    events = out.take()
    d.check_events(events)
    [over] = ends(events)
    assert over.intent is None
    assert over.problem == problem
    assert over.final_input == (arguments or {})
    assert over.detail in message
    assert isinstance(out.error, d.MalformedToolCallError)
    assert out.error.message == message
    assert out.error.response == d.fold(events)
    assert d.fold(events).finish_reason == ("length" if reason == "length" else "error")
    assert d.fold(events).tool_calls == (d.ToolCall("x", call[0], arguments),)


def test_arguments_that_continue_after_null_are_malformed() -> None:
    out = make()
    out.tool_start(0, "x", "any")
    for fragment in ("null", '{"a"', ":1}"):
        out.tool_input(0, fragment)
    out.finish("tool_calls")
    events = out.take()
    d.check_events(events)
    deltas = [event.partial_json for event in events if isinstance(event, d.ToolUseInputDelta)]
    assert "".join(deltas) == 'null{"a":1}'
    [over] = ends(events)
    assert over.intent is None
    assert over.problem == "malformed"


def test_arguments_after_the_end_of_a_call_are_malformed() -> None:
    out = make()
    out.tool_start(0, "x", "any")
    out.tool_start(1, "y", "any")
    out.tool_input(1, "{}")
    out.block_end(1)
    out.tool_input(1, " \n")
    out.tool_input(1, "{}")
    out.finish("stop")
    events = out.take()
    d.check_events(events)
    assert [(over.intent is None, over.problem) for over in ends(events)] == [
        (False, None),
        (True, "malformed"),
    ]


@pytest.mark.parametrize("reason", ["error", "cancelled"])
def test_finish_reason_of_a_failed_reply_is_reported_unchanged(reason: Any) -> None:
    out = make()
    out.tool_start(0, "x", "any")
    out.tool_input(0, '{"a":')
    out.finish(reason, "engine_error")
    events = out.take()
    d.check_events(events)
    assert out.error is None
    assert d.fold(events).finish_reason == reason
    assert d.fold(events).finish_raw == "engine_error"
    assert ends(events)[0].intent is None


# --- structured output in the text -------------------------------------------------------------


class Structured(Expected):
    response_schema = {"type": "array"}


def structured(text: str, reason: Any, *, call: bool = False, expected: Any = None) -> Assembler:
    out = Assembler(expected=expected or Structured())
    out.start()
    out.usage(d.Usage(1, 2))
    out.thinking("hm")
    out.text(text)
    if call:
        out.tool_start(0, "x", "any")
    out.finish(reason)
    return out


@pytest.mark.parametrize(
    ("texts", "parsed"),
    [
        (["[1]"], [1]),
        (["[1, ", "2]"], [1, 2]),
        (["Looking.", "[3]"], [3]),
        (["no", "nor this"], None),
    ],
)
def test_structured_output_is_parsed_from_several_text_blocks(
    texts: list[str], parsed: Any
) -> None:
    out = Assembler(expected=Structured())
    out.start()
    for text in texts:
        out.text(text)
        out.block_end()
    out.finish("stop")
    assert isinstance(out.error, d.StructuredOutputError) is (parsed is None)
    assert d.fold(out.take()).parsed == parsed


@pytest.mark.parametrize(("text", "reason"), [("no", "stop"), ("", "stop"), ("no", "length")])
def test_invalid_structured_output_raises_an_error(text: str, reason: str) -> None:
    out = structured(text, reason)
    assert isinstance(out.error, d.StructuredOutputError)
    cut = "the reply was cut off at the token limit (max_tokens) after 2 output tokens"
    problem = cut if reason == "length" else "the reply does not satisfy response_schema"
    assert out.error.message == f"{problem}: not a list"
    assert out.error.response_schema == {"type": "array"}
    assert out.error.output_content == text
    found = (out.error.error_message, out.error.finish_reason, out.error.usage)
    assert found == ("not a list", reason, d.Usage(1, 2))
    response = d.fold(out.take())
    assert response.finish_reason == reason
    assert response.parsed is None
    assert out.error.response == response


# --- failed and truncated messages -------------------------------------------------------------

OPEN: list[some.Verb] = [
    ("tool_start", (0, "x", "any")),
    ("tool_input", (0, '{"a":1}')),
    ("tool_start", (1, "y", "any")),
    ("tool_input", (1, '{"b":1}')),
]


@pytest.mark.parametrize("ending", ["fail", "cancel"])
def test_truncated_signed_text_is_marked_as_not_replayable(ending: str) -> None:
    out = make()
    out.text("cut")
    out.attach(d.Text, "sig", 5)
    end(out, ending)
    assert d.fold(out.take()).message.content == (
        d.Text("cut", d.Continuity("sig", 5, ISSUER, replayable=False)),
    )


def test_failure_before_the_message_starts_emits_no_events() -> None:
    out = Assembler()
    error = d.StreamInterruptedError("cut")
    out.fail(error)
    assert out.take() == []
    assert out.error == error
    assert out.complete is None
    assert out.response is None


def test_cancelling_before_the_message_starts_emits_a_valid_stream() -> None:
    out = Assembler(request_id="req")
    out.cancel()
    events = out.take()
    d.check_events(events)
    assert brief(events) == ["start", "cancelled"]


@pytest.mark.parametrize("ending", ["stop", "fail", "cancel"])
def test_failing_or_cancelling_an_ended_message_changes_nothing(ending: str) -> None:
    out = make()
    end(out, ending)
    error = out.error
    complete = out.complete
    out.take()
    out.fail(d.StreamInterruptedError("late"))
    out.cancel()
    assert out.take() == []
    assert out.error == error
    assert out.complete == complete


# --- illegal orders of assembler calls ---------------------------------------------------------

BEFORE: list[tuple[some.Verb, str]] = [
    (("text", ("a",)), "a block before start"),
    (("thinking", ("a",)), "a block before start"),
    (("tool_start", (0, "x", "any")), "a block before start"),
    (("whole", (d.Opaque(1),)), "a block before start"),
    (("attach", (d.Text, "sig")), "a block before start"),
    (("finish", ("stop",)), "finish before start"),
]
DURING: list[tuple[some.Verb, str]] = [
    (("start", ()), "start called twice"),
    (("tool_start", (0, "z", "any")), "tool_start called twice for 0"),
    (("tool_input", (9, "{}")), "tool_input for 9, which was not started"),
    (("block_end", (9,)), "block_end for 9, which was not started"),
    (("attach", (d.ToolCall, "sig")), "attach for None, which was not started"),
]
AFTER: list[tuple[some.Verb, str]] = [
    (("start", ()), "start called twice"),
    (("text", ("a",)), "a block after the end"),
    (("thinking", ("a",)), "a block after the end"),
    (("tool_start", (2, "z", "any")), "a block after the end"),
    (("tool_input", (1, "{}")), "tool_input after the end"),
    (("whole", (d.Opaque(1),)), "a block after the end"),
    (("attach", (d.Text, "sig")), "attach after the end"),
    (("usage", (d.Usage(1),)), "usage after the end"),
    (("finish", ("stop",)), "finish called twice"),
]


def test_message_cannot_start_after_a_failure() -> None:
    out = Assembler(request_id="r", model="m", provider="p")
    out.fail(d.StreamInterruptedError("it broke"))
    with pytest.raises(AssemblerError, match="start after the failure"):
        out.start()


@pytest.mark.parametrize("ending", ["stop", "fail", "cancel"])
@pytest.mark.parametrize(
    ("when", "verb", "message"),
    [
        *[("before", *row) for row in BEFORE],
        *[("during", *row) for row in DURING],
        *[("after", *row) for row in AFTER],
    ],
)
def test_illegal_assembler_calls_are_rejected_and_change_nothing(
    when: str, verb: some.Verb, message: str, ending: str
) -> None:
    out = Assembler() if when == "before" else say(make(), OPEN)
    if when == "after":
        end(out, ending)
    heard = out.take()
    complete = out.complete
    with pytest.raises(AssemblerError, match=f"^{message}$"):
        say(out, [verb])
    assert out.take() == []
    assert out.complete == complete
    if when == "during":
        end(out, ending)
        d.check_events(heard + out.take())


# --- the Follower, which completes the events of a broken stream -------------------------------


def followed(events: Iterable[d.Event]) -> Follower:
    follower = Follower(request_id="req", model="m1", provider="acme")
    for event in events:
        follower.follow(event)
    return follower


def test_stream_cut_before_its_first_event_gets_start_and_end_events() -> None:
    start, complete = followed([]).cut()
    assert isinstance(start, d.MessageStart)
    assert start == d.MessageStart(start.message_id, "req", model="m1", provider="acme")
    assert re.fullmatch(r"msg_[0-9A-Z]{26}", start.message_id)
    assert complete == d.MessageComplete(
        start.message_id, "req", finish_reason="cancelled", final_content=(), model="m1"
    )


def test_attaching_provider_state_keeps_an_earlier_signature() -> None:
    out = make()
    out.thinking("a")
    out.attach(d.Thinking, "sig")
    out.attach(d.Thinking, opaque="state")
    out.finish("stop")
    events = out.take()
    d.check_events(events)
    heard = [event for event in events if isinstance(event, d.ThinkingDelta)]
    assert [event.signature for event in heard] == [None, "sig", "sig"]
    assert [event.continuity for event in heard] == [
        None,
        d.Continuity("sig", None, ISSUER),
        d.Continuity("sig", "state", ISSUER),
    ]
    assert d.fold(events).message.content == (
        d.Thinking("a", d.Continuity("sig", "state", ISSUER)),
    )


def test_truncated_thinking_keeps_its_signature_and_is_not_replayable() -> None:
    out = make()
    say(
        out,
        [
            ("thinking", ("a",)),
            ("attach", (d.Thinking, "one")),
            ("block_end", (None,)),
            ("thinking", ("b",)),
        ],
    )
    say(out, [("block_end", (None,)), ("thinking", ("c",)), ("attach", (d.Thinking, "two"))])
    *_, complete = followed(out.take()).cut()
    assert isinstance(complete, d.MessageComplete)
    assert complete.final_content == (
        d.Thinking("a", d.Continuity("one", issuer=ISSUER, replayable=False)),
        d.Thinking("b"),
        d.Thinking("c", d.Continuity("two", issuer=ISSUER, replayable=False)),
    )


def test_unknown_events_do_not_end_a_text_block() -> None:
    start = d.MessageStart("msg", "req", model="m1")
    unknown = UnknownEvent("citation.delta", {})
    heard: list[Any] = [
        start,
        unknown,
        d.TextDelta("msg", "req", content_block_index=0, text="a"),
        unknown,
    ]
    [complete] = followed(heard).cut()
    assert complete == d.MessageComplete(
        "msg", "req", finish_reason="cancelled", final_content=(d.Text("a"),), model="m1"
    )


CUT_CALLS = [
    ("", {}, None),
    ('{"a":', {}, None),
    ("[1]", {}, None),
    ("{}", {}, {}),
    ('{"a":1}', {"a": 1}, {"a": 1}),
]


@pytest.mark.parametrize(("text", "final_input", "arguments"), CUT_CALLS)
def test_truncated_call_is_closed_without_an_intent(
    text: str, final_input: dict[str, Any], arguments: dict[str, Any] | None
) -> None:
    out = make()
    out.text("hm")
    out.tool_start(0, "x", "any")
    out.tool_input(0, text)
    over, complete = followed(out.take()).cut()
    assert over == d.ToolUseEnd(
        "msg_1",
        "req",
        content_block_index=1,
        tool_use_id="x",
        final_input=final_input,
        intent=None,
        problem="cancelled",
        detail="the reply was cancelled before the call ended",
    )
    assert complete == d.MessageComplete(
        "msg_1",
        "req",
        finish_reason="cancelled",
        final_content=(d.Text("hm"), d.ToolCall("x", "any", arguments)),
        model="m1",
    )


def test_end_of_a_call_that_never_started_adds_no_content() -> None:
    start = d.MessageStart("msg", "req", model="m1")
    follower = followed(
        [
            start,
            d.ToolUseEnd(
                "msg",
                "req",
                content_block_index=0,
                tool_use_id="x",
                final_input={},
                intent=None,
                problem="cancelled",
            ),
        ]
    )
    assert follower.cut() == [
        d.MessageComplete("msg", "req", finish_reason="cancelled", final_content=(), model="m1")
    ]


# --- events that were never delivered ----------------------------------------------------------


@given(some.verbs(), st.sampled_from(["stop", "fail", "open"]), st.data())
def test_assembler_and_follower_close_a_cut_stream_in_the_same_way(
    verbs: list[some.Verb], ending: str, data: st.DataObject
) -> None:
    out = say(make(), verbs)
    if ending != "open":
        end(out, ending)
    events = out.take()
    at = data.draw(st.integers(1, len(events)))
    assert out.opening == events[0]
    closing = out.cut(events[at:])
    d.check_events(events[:at] + closing)
    kept = followed(events[:at]).cut()
    assert brief(closing) == brief(kept)
    if closing:
        content = d.fold(closing).message.content
        theirs = d.fold(kept).message.content
        assert without_state(content) == without_state(theirs)
        assert {
            block.id: block.arguments for block in content if isinstance(block, d.ToolCall)
        } == {block.id: block.arguments for block in theirs if isinstance(block, d.ToolCall)}
        states = [block.continuity for block in content if block.continuity is not None]
        assert all(state.issuer == ISSUER and not state.replayable for state in states)
        assert signatures(content) == signatures(theirs)
        assert (
            d.fold(closing).usage
            == ([usage for verb, (usage, *_) in verbs if verb == "usage"] or [d.Usage()])[-1]
        )
    assert out.cut() == []


def signatures(blocks: Iterable[AssistantBlock]) -> list[str]:
    """Return the signatures of the thinking blocks among the given blocks."""
    states = [block.continuity for block in blocks if isinstance(block, d.Thinking)]
    return [
        state.signature for state in states if state is not None and state.signature is not None
    ]


def all_kinds() -> Assembler:
    """Return an assembler that has completed a reply with every kind of content block."""
    out = make(warnings=[d.LossWarning("c", "p", "d")], structured_path="native")
    out.kept = Raw([b"x"], bytes.decode)
    say(
        out,
        [
            ("thinking", ("h",)),
            ("thinking", ("m",)),
            ("attach", (d.Thinking, "sig", 1)),
            ("block_end", (None,)),
        ],
    )
    out.whole(d.RedactedThinking("secret"))
    say(out, [("text", ("a",)), ("text", ("b",)), ("attach", (d.Text, "text"))])
    say(out, [("tool_start", (0, "x", "any")), ("tool_input", (0, "{")), ("tool_input", (0, "}"))])
    out.attach(d.ToolCall, "call", key=0)
    out.whole(d.Opaque({"type": "search"}))
    out.text("c")
    out.usage(d.Usage(1, 2))
    out.finish("stop")
    return out


SIGNED = d.Thinking("hm", d.Continuity("sig", 1, ISSUER, replayable=False))
REDACTED = d.RedactedThinking("secret", NEVER)
SPOKEN = d.Text("ab", replace(NEVER, signature="text"))
CALLED = d.ToolCall("x", "any", {}, replace(NEVER, signature="call"))
SEARCHED = d.Opaque({"type": "search"}, NEVER)
# Number of delivered events -> content blocks of the reply at that point.
HEARD: dict[int, tuple[AssistantBlock, ...]] = {
    0: (),  # before the first event is delivered
    1: (),  # after only the start event is delivered
    2: (d.Thinking("h", d.Continuity(None, 1, ISSUER, replayable=False)),),
    3: (d.Thinking("hm", d.Continuity(None, 1, ISSUER, replayable=False)),),
    4: (SIGNED,),
    5: (SIGNED, REDACTED),
    6: (SIGNED, REDACTED, replace(SPOKEN, text="a")),
    7: (SIGNED, REDACTED, SPOKEN),
    8: (SIGNED, REDACTED, SPOKEN),
    9: (SIGNED, REDACTED, SPOKEN, replace(CALLED, arguments=None)),
    10: (SIGNED, REDACTED, SPOKEN, replace(CALLED, arguments=None)),
    11: (SIGNED, REDACTED, SPOKEN, CALLED),
    12: (SIGNED, REDACTED, SPOKEN, CALLED, SEARCHED),
    13: (SIGNED, REDACTED, SPOKEN, CALLED, SEARCHED, d.Text("c")),
}


@pytest.mark.parametrize(("at", "content"), HEARD.items())
def test_cutting_a_stream_does_not_change_delivered_events(
    at: int, content: tuple[AssistantBlock, ...]
) -> None:
    out = all_kinds()
    events = out.take()
    assert len(events) == 14
    closing = out.cut(events[at:])
    d.check_events(events[:at] + closing)
    *before, complete = closing
    assert [type(event) for event in before] == (
        [d.MessageStart] if at == 0 else [d.ToolUseEnd] if 9 <= at <= 11 else []
    )
    assert complete == d.MessageComplete(
        complete.message_id,
        "req",
        finish_reason="cancelled",
        final_content=content,
        usage=d.Usage(1, 2),
        model="m1",
        structured_path="native",
        warnings=(d.LossWarning("c", "p", "d"),),
        kept=out.kept,
    )
    assert out.response == d.fold([events[0], *closing])


def test_undelivered_failure_is_removed_from_the_reply() -> None:
    out = make()
    out.text("a")
    heard = out.take()
    out.fail(d.StreamInterruptedError("cut"))
    closing = out.cut(out.take())
    d.check_events(heard + closing)
    found = (d.fold(closing).finish_reason, d.fold(closing).text, out.error)
    assert found == ("cancelled", "a", None)


def test_cutting_a_message_that_never_started_emits_start_and_end_events() -> None:
    out = Assembler(
        request_id="req", model="m1", provider="acme", warnings=[d.LossWarning("c", "p", "d")]
    )
    start, complete = out.cut()
    assert isinstance(start, d.MessageStart)
    assert start == d.MessageStart(start.message_id, "req", model="m1", provider="acme")
    assert d.fold([start, complete]).warnings == (d.LossWarning("c", "p", "d"),)


def test_number_of_content_blocks_is_limited() -> None:
    out = make()
    for number in range(4_000):
        out.tool_start(number, "same id", "t")
    with pytest.raises(d.InvalidResponseError, match="more than 4000 blocks"):
        out.text("one more")
    # Call ids of open blocks have no public accessor, so the test reads a private field.
    assert len({block.call_id for block in out._blocks.all}) == 4_000  # noqa: SLF001
