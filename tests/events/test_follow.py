"""Test followers, which add the missing last events to a stream that was cut off, and the
conversion of recorded messages to events.
"""

from typing import Any

import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.events import (
    AssembledFrom,
    Follower,
    IntentSource,
    Raw,
    RecordedAssembler,
    make_intent,
)
from dragoman.validate import Expectation, build_request

ISSUER = d.Issuer("openai", "acme", "m1")
STATE = d.Continuity("sig", {"o": 1}, ISSUER)
CALL = d.ToolCall("c1", "city", {"a": 1}, STATE)
INTENT = d.ToolIntent(
    id="tu_1",
    provider_call_id="c1",
    tool_name="city",
    input={"a": 1},
    raw_input_text='{"a":  1}',
    source=IntentSource("p", "m", "old", 3),
    assembled_from=AssembledFrom(7, 1, 9),
)
CONTENT: tuple[Any, ...] = (
    d.Thinking("hm", STATE),
    d.RedactedThinking("secret", STATE),
    d.Text("Well", STATE),
    CALL,
    d.Opaque({"type": "search"}, STATE),
    d.Text(""),
)


def record(
    error: Exception | None = None, intent: d.ToolIntent | None = INTENT
) -> RecordedAssembler:
    out = RecordedAssembler(request_id="req", model="m1", provider="acme")
    out.begin("msg_then")
    for block in CONTENT:
        if isinstance(block, d.ToolCall):
            out.call(block, '{"a":  1}', intent, is_whole=intent is None)
        else:
            out.block(block)
    out.end("tool_calls", d.Usage(3, 4), [d.LossWarning("c", "p", "d")], error)  # type: ignore[arg-type]
    return out


def test_recorded_message_is_converted_back_to_events() -> None:
    events = record().take()
    d.check_events(events)
    response = d.fold(events)
    assert response.message.content == CONTENT
    found = (response.finish_reason, response.usage, response.provider)
    assert found == ("tool_calls", d.Usage(3, 4), "acme")
    assert response.warnings == (d.LossWarning("c", "p", "d"),)
    assert {event.message_id for event in events} == {"msg_then"}
    [over] = [event for event in events if isinstance(event, d.ToolUseEnd)]
    assert over.intent == replace(INTENT, source=replace(INTENT.source, request_id="req"))


def test_error_of_a_recorded_message_carries_the_partial_reply() -> None:
    error = d.StreamInterruptedError("lost")
    out = record(error)
    assert out.error is error
    assert error.response is not None
    assert error.response.message.content == CONTENT


def test_intent_is_created_for_a_complete_call_recorded_without_one() -> None:
    [over] = [event for event in record(intent=None).take() if isinstance(event, d.ToolUseEnd)]
    assert over.intent is not None
    assert over.intent.input == {"a": 1}
    assert over.intent.raw_input_text == '{"a":  1}'


def test_recorded_truncated_call_has_no_intent() -> None:
    out = RecordedAssembler(request_id="req", model="m1", provider="acme")
    out.begin(None)
    out.call(d.ToolCall("c1", "city", None), "", None, is_whole=False)
    out.end("length", d.Usage(), (), None)
    events = out.take()
    d.check_events(events)
    [over] = [event for event in events if isinstance(event, d.ToolUseEnd)]
    assert over.problem == "interrupted"
    assert over.final_input == {}
    assert over.intent is None
    assert events[0].message_id.startswith("msg_")


@pytest.mark.parametrize("at", range(len(record().take())))
def test_a_recorded_message_can_be_cancelled_after_each_event(at: int) -> None:
    out = record()
    events = out.take()
    closing = out.cut(events[at:])
    seen: list[d.Event] = [*events[:at], *closing]
    d.check_events(seen)
    response = d.fold(seen)
    assert response.finish_reason == "cancelled"
    assert all(
        block.continuity is None or not block.continuity.replayable
        for block in response.message.content
    )


def test_follower_provides_usage_and_warnings_after_the_last_event() -> None:
    kept = Raw([b"{}"], bytes.decode)
    warning = d.LossWarning("c", "p", "d")
    follower = Follower()
    follower.follow(d.MessageStart("msg", "req", model="m1", provider="acme"))
    follower.follow(
        d.MessageComplete(
            "msg",
            "req",
            finish_reason="stop",
            final_content=(),
            usage=d.Usage(1, 2),
            warnings=(warning,),
            kept=kept,
        )
    )
    found = (follower.reported, follower.kept, follower.warnings)
    assert found == (d.Usage(1, 2), kept, (warning,))
    assert follower.provider == "acme"
    assert follower.model == "m1"
    assert follower.cut() == []


def test_argument_fragments_without_a_call_are_ignored() -> None:
    follower = Follower()
    follower.follow(d.MessageStart("msg", "req", model="m1"))
    follower.follow(d.TextDelta("msg", "req", content_block_index=0, text="a"))
    follower.follow(
        d.ToolUseInputDelta(
            "msg", "req", content_block_index=0, tool_use_id="c1", partial_json="{}"
        )
    )
    [complete] = follower.cut()
    assert isinstance(complete, d.MessageComplete)
    assert complete.final_content == (d.Text("a"),)


def test_raw_reply_can_be_read_while_its_bytes_arrive() -> None:
    pieces = [b"a"]
    raw = Raw(pieces, bytes.decode)
    assert raw.peek() == "a"
    pieces.append(b"b")
    assert raw.peek() == raw.value == raw.peek() == "ab"


def test_intent_can_be_made_from_a_call_that_its_provider_rejected() -> None:
    start = d.ToolUseStart(
        "m", "req", content_block_index=2, tool_use_id="call_1", tool_name="fly"
    )
    end = d.ToolUseEnd(
        "m",
        "req",
        content_block_index=2,
        tool_use_id="call_1",
        final_input={"to": "Oslo"},
        problem="unknown_tool",
        detail="no such tool",
    )
    intent = make_intent(start, '{"to": "Oslo"}', end, "acme", "m1")
    found = (intent.tool_name, intent.input, intent.raw_input_text)
    assert found == ("fly", {"to": "Oslo"}, '{"to": "Oslo"}')
    assert intent.provider_call_id == "call_1"
    assert intent.source == IntentSource("acme", "m1", "req", 2)
    assert intent.assembled_from == AssembledFrom(1, 0, 0)
    assert make_intent(start, "", end, "acme", "m1").assembled_from == AssembledFrom(0, 0, 0)


def test_rebuilt_message_of_a_paused_turn_is_marked_as_paused() -> None:
    for paused in (True, False):
        out = RecordedAssembler(request_id="req", model="m1", provider="acme")
        out.begin("msg_1")
        out.block(d.Text("Searching."))
        out.end("stop", d.Usage(), (), None, paused=paused)
        assert d.fold(out.take()).is_paused is paused


@pytest.mark.parametrize(
    ("text", "error", "expected"),
    [
        ("{}", None, d.StructuredOutputError),
        ("{}", d.InvalidResponseError("cut"), d.StructuredOutputError),
        ('{"n": 1}', d.StructuredOutputError("the type rejects it"), type(None)),
        ('{"n": 1}', d.InvalidResponseError("cut"), d.InvalidResponseError),
        ('{"n": 1}', None, type(None)),
    ],
)
def test_recorded_structured_answer_is_checked_again(
    text: str, error: d.ProviderError | None, expected: type
) -> None:
    schema = {"type": "object", "properties": {"n": {}}, "required": ["n"]}
    request = build_request("x", response_schema=schema)
    out = RecordedAssembler(request_id="req", model="m1", expected=Expectation(request))
    out.begin(None)
    out.block(d.Text(text))
    out.end("stop", d.Usage(), (), error)
    assert type(out.error) is expected
    assert d.fold(out.take()).parsed == ({"n": 1} if "n" in text else None)


def test_redacted_thought_of_a_cut_stream_is_kept() -> None:
    follower = Follower()
    follower.follow(d.MessageStart("msg", "req", model="m1"))
    follower.follow(
        d.ThinkingDelta(
            "msg", "req", content_block_index=0, text="", redacted="hidden", continuity=STATE
        )
    )
    [complete] = follower.cut()
    assert isinstance(complete, d.MessageComplete)
    [block] = complete.final_content
    assert isinstance(block, d.RedactedThinking)
    assert block.data == "hidden"
