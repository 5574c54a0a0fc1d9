"""Test followers, which add the missing last events to a stream that was cut off, and the
conversion of recorded messages to events.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import StreamInterruptedError
from dragoman.events import (
    AssembledFrom,
    Event,
    Follower,
    IntentSource,
    MessageComplete,
    MessageStart,
    Raw,
    RecordedAssembler,
    TextDelta,
    ToolIntent,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    Usage,
    check_events,
    fold,
    make_intent,
)
from dragoman.messages import (
    Continuity,
    Issuer,
    LossWarning,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
)

ISSUER = Issuer("openai", "acme", "m1")
STATE = Continuity("sig", {"o": 1}, ISSUER)
CALL = ToolCall("c1", "city", {"a": 1}, STATE)
INTENT = ToolIntent(
    "tu_1",
    "c1",
    "city",
    {"a": 1},
    '{"a":  1}',
    IntentSource("p", "m", "old", 3),
    AssembledFrom(7, 1, 9),
)
CONTENT: tuple[Any, ...] = (
    Thinking("hm", STATE),
    RedactedThinking("secret", STATE),
    Text("Well", STATE),
    CALL,
    Opaque({"type": "search"}, STATE),
    Text(""),
)


def record(
    error: Exception | None = None, intent: ToolIntent | None = INTENT
) -> RecordedAssembler:
    out = RecordedAssembler(request_id="req", model="m1", provider="acme")
    out.begin("msg_then")
    for block in CONTENT:
        if isinstance(block, ToolCall):
            out.call(block, '{"a":  1}', intent, is_whole=intent is None)
        else:
            out.block(block)
    out.end("tool_calls", Usage(3, 4), [LossWarning("c", "p", "d")], error)  # type: ignore[arg-type]
    return out


def test_recorded_message_is_converted_back_to_events() -> None:
    events = record().take()
    check_events(events)
    response = fold(events)
    assert response.message.content == CONTENT
    assert (response.finish_reason, response.usage, response.provider) == (
        "tool_calls",
        Usage(3, 4),
        "acme",
    )
    assert response.warnings == (LossWarning("c", "p", "d"),)
    assert {event.message_id for event in events} == {"msg_then"}
    [over] = [event for event in events if isinstance(event, ToolUseEnd)]
    assert over.intent == replace(INTENT, source=replace(INTENT.source, request_id="req"))


def test_error_of_a_recorded_message_carries_the_partial_reply() -> None:
    error = StreamInterruptedError("lost")
    out = record(error)
    assert out.error is error
    assert error.response is not None
    assert error.response.message.content == CONTENT


def test_intent_is_created_for_a_complete_call_recorded_without_one() -> None:
    [over] = [event for event in record(intent=None).take() if isinstance(event, ToolUseEnd)]
    assert over.intent is not None
    assert (over.intent.input, over.intent.raw_input_text) == ({"a": 1}, '{"a":  1}')


def test_recorded_truncated_call_has_no_intent() -> None:
    out = RecordedAssembler(request_id="req", model="m1", provider="acme")
    out.begin(None)
    out.call(ToolCall("c1", "city", None), "", None, is_whole=False)
    out.end("length", Usage(), (), None)
    events = out.take()
    check_events(events)
    [over] = [event for event in events if isinstance(event, ToolUseEnd)]
    assert (over.problem, over.final_input, over.intent) == ("interrupted", {}, None)
    assert events[0].message_id.startswith("msg_")


@pytest.mark.parametrize("at", range(len(record().take())))
def test_a_recorded_message_can_be_cancelled_after_each_event(at: int) -> None:
    out = record()
    events = out.take()
    closing = out.cut(events[at:])
    seen: list[Event] = [*events[:at], *closing]
    check_events(seen)
    response = fold(seen)
    assert response.finish_reason == "cancelled"
    assert all(
        block.continuity is None or not block.continuity.replayable
        for block in response.message.content
    )


def test_follower_provides_usage_and_warnings_after_the_last_event() -> None:
    kept, warning = Raw([b"{}"], bytes.decode), LossWarning("c", "p", "d")
    follower = Follower()
    follower.follow(MessageStart("msg", "req", "m1", "acme"))
    follower.follow(
        MessageComplete("msg", "req", "stop", (), Usage(1, 2), warnings=(warning,), kept=kept)
    )
    assert (follower.reported, follower.kept, follower.warnings) == (Usage(1, 2), kept, (warning,))
    assert (follower.provider, follower.model) == ("acme", "m1")
    assert follower.cut() == []


def test_argument_fragments_without_a_call_are_ignored() -> None:
    follower = Follower()
    follower.follow(MessageStart("msg", "req", "m1"))
    follower.follow(TextDelta("msg", "req", 0, "a"))
    follower.follow(ToolUseInputDelta("msg", "req", 0, "c1", "{}"))
    [complete] = follower.cut()
    assert isinstance(complete, MessageComplete)
    assert complete.final_content == (Text("a"),)


def test_raw_reply_can_be_read_while_its_bytes_arrive() -> None:
    pieces = [b"a"]
    raw = Raw(pieces, bytes.decode)
    assert raw.peek() == "a"
    pieces.append(b"b")
    assert raw.peek() == raw.value == raw.peek() == "ab"


def test_intent_can_be_made_from_a_call_that_its_provider_rejected() -> None:
    start = ToolUseStart("m", "req", 2, "call_1", "fly")
    end = ToolUseEnd(
        "m", "req", 2, "call_1", {"to": "Oslo"}, problem="unknown_tool", detail="no such tool"
    )
    intent = make_intent(start, '{"to": "Oslo"}', end, "acme", "m1")
    assert (intent.tool_name, intent.input, intent.raw_input_text) == (
        "fly",
        {"to": "Oslo"},
        '{"to": "Oslo"}',
    )
    assert intent.provider_call_id == "call_1"
    assert intent.source == IntentSource("acme", "m1", "req", 2)
    assert intent.assembled_from == AssembledFrom(1, 0, 0)
    assert make_intent(start, "", end, "acme", "m1").assembled_from == AssembledFrom(0, 0, 0)


def test_rebuilt_message_of_a_paused_turn_is_marked_as_paused() -> None:
    for paused in (True, False):
        out = RecordedAssembler(request_id="req", model="m1", provider="acme")
        out.begin("msg_1")
        out.block(Text("Searching."))
        out.end("stop", Usage(), (), None, paused=paused)
        assert fold(out.take()).is_paused is paused
