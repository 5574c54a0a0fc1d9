"""Test the conversion of a stream to the events of an agent runtime."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given

from dragoman.errors import ProviderError, RateLimitError, StreamInterruptedError
from dragoman.events import (
    Assembler,
    Event,
    IntentSource,
    ModelEvent,
    ModelFinished,
    ModelReasoningDelta,
    ModelStarted,
    ModelTextDelta,
    ProviderErrorEvent,
    ToolIntentDelta,
    ToolIntentProposed,
    ToolUseStart,
    UnknownEvent,
    Usage,
    to_model_events,
)
from dragoman.messages import Thinking
from tests import strategies as some


def reply() -> list[Event]:
    """Return a reply with text, a signed thought, and a call whose arguments arrive in two
    fragments.
    """
    out = Assembler(request_id="req", model="m1", provider="acme")
    out.start()
    out.thinking("hm")
    out.attach(Thinking, "sig")
    out.text("I will run the tests.")
    out.tool_start(0, "call_1", "bash")
    out.tool_input(0, '{"command": ')
    out.tool_input(0, '"npm test"}')
    out.usage(Usage(3, 4))
    out.finish("tool_calls")
    return out.take()


def stream(events: list[Event], error: Exception | None = None) -> Iterator[Event]:
    yield from events
    if error is not None:
        raise error


async def stream_async(
    events: list[Event], error: Exception | None = None
) -> AsyncIterator[Event]:
    for event in stream(events, error):
        yield event


async def both_ways(events: list[Event], error: Exception | None = None) -> list[ModelEvent]:
    """Return the events in the form for an agent runtime; assert that synchronous and asynchronous
    streams give the same events.
    """
    first = list(to_model_events(stream(events, error), "t1"))
    second = [event async for event in to_model_events(stream_async(events, error), "t1")]
    assert first == second
    return first


async def test_model_events_have_the_order_of_the_adapter_contract() -> None:
    events = await both_ways(reply())
    *rest, proposed, finished = events
    assert rest == [
        ModelStarted("acme", "m1", "req"),
        ModelReasoningDelta("hm"),
        ModelTextDelta("I will run the tests."),
        ToolIntentDelta("call_1", "bash", '{"command": '),
        ToolIntentDelta("call_1", "bash", '{"command": "npm test"}'),
    ]
    assert isinstance(proposed, ToolIntentProposed)
    assert proposed.intent.tool_name == "bash"
    assert proposed.intent.input == {"command": "npm test"}
    assert proposed.intent.provider_call_id == "call_1"
    assert proposed.intent.status == "proposed"
    assert proposed.intent.id[:3] == "tu_"
    assert proposed.turn_id == "t1"
    assert proposed.intent.source == IntentSource("acme", "m1", "req", 2)
    assert proposed.intent.assembled_from.event_count == 2
    assert finished == ModelFinished("tool_calls", Usage(3, 4))
    assert [event.type for event in events] == [
        "model.started",
        "model.reasoning_delta",
        "model.text_delta",
        "tool_intent.delta",
        "tool_intent.delta",
        "tool_intent.proposed",
        "model.finished",
    ]


def test_each_model_event_is_encoded_as_json_with_its_type() -> None:
    for event in to_model_events(stream(reply(), ProviderError("no"))):
        written = msgspec.json.encode(event)
        assert json.loads(written)["type"] == event.type
        assert msgspec.json.decode(written, type=ModelEvent) == event  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["fail", "cancel", "length"])
async def test_truncated_tool_call_is_not_proposed(ending: str) -> None:
    out = Assembler()
    out.start()
    out.tool_start(0, "call_1", "bash")
    out.tool_input(0, '{"command": ')
    if ending == "fail":
        out.fail(StreamInterruptedError("cut"))
    elif ending == "cancel":
        out.cancel()
    else:
        out.finish("length")
    events = await both_ways(out.take(), out.error)
    assert not [event for event in events if isinstance(event, ToolIntentProposed)]
    assert [event for event in events if isinstance(event, ToolIntentDelta)]
    assert [type(event) for event in events].count(ProviderErrorEvent) == (ending != "cancel")


async def test_error_is_the_last_event() -> None:
    error = RateLimitError("slow down", provider="acme", model="m1", request_id="req", status=429)
    *before, last = await both_ways(reply()[:4], error)
    found = [event.type for event in before]
    assert found == ["model.started", "model.reasoning_delta", "model.text_delta"]
    assert last == ProviderErrorEvent(
        kind="rate_limit",
        retryable=True,
        provider="acme",
        model="m1",
        request_id="req",
        message=str(error),
    )
    assert last.type == "provider.error"


async def test_error_that_is_not_transient_is_not_retryable() -> None:
    assert await both_ways([], ProviderError("no")) == [
        ProviderErrorEvent(
            kind="unknown",
            retryable=False,
            provider=None,
            model=None,
            request_id=None,
            message="no",
        )
    ]


async def test_exceptions_that_are_not_provider_errors_are_raised_unchanged() -> None:
    with pytest.raises(KeyError):
        list(to_model_events(stream([], KeyError("bug"))))
    with pytest.raises(KeyError):
        _ = [event async for event in to_model_events(stream_async([], KeyError("bug")))]


@given(some.verbs())
def test_each_intent_is_proposed_once(verbs: list[some.Verb]) -> None:
    out = Assembler()
    out.start()
    for verb, arguments in verbs:
        getattr(out, verb)(*arguments)
    out.finish("stop")
    events = out.take()
    projected = list(to_model_events(events))
    intents = [getattr(event, "intent", None) for event in events]
    assert [event.intent for event in projected if isinstance(event, ToolIntentProposed)] == [
        i for i in intents if i
    ]
    assert "".join(
        event.text for event in projected if isinstance(event, ModelTextDelta)
    ) == "".join(piece for verb, arguments in verbs for piece in arguments if verb == "text")
    assert all(event.text for event in projected if isinstance(event, ModelReasoningDelta))
    assert {type(event) for event in projected} <= set(get_args(ModelEvent))


async def test_each_tool_delta_has_the_id_and_arguments_of_its_own_call() -> None:
    out = Assembler()
    out.start()
    for key in (0, 1):
        out.tool_start(key, "same", f"tool{key}")
        out.tool_input(key, "{")
        out.tool_input(key, "}")
    out.finish("tool_calls")
    events = out.take()
    ids = [event.tool_use_id for event in events if isinstance(event, ToolUseStart)]
    deltas = [event for event in await both_ways(events) if isinstance(event, ToolIntentDelta)]
    assert deltas == [
        ToolIntentDelta("same", "tool0", "{"),
        ToolIntentDelta("same", "tool0", "{}"),
        ToolIntentDelta(ids[1], "tool1", "{"),
        ToolIntentDelta(ids[1], "tool1", "{}"),
    ]
    assert ids[1] != "same"


async def test_unknown_events_are_ignored() -> None:
    unknown: Any = UnknownEvent("citation.delta", {})
    heard = reply()
    assert await both_ways([unknown, *heard[:2], unknown, *heard[2:], unknown]) == await both_ways(
        heard
    )


def names_of(value: Any) -> set[str]:
    return {name for name in dir(value) if not name.startswith("_")}


def test_events_have_no_method_that_runs_a_tool() -> None:
    events = [*to_model_events(reply()), *reply()]
    assert not [
        name for event in events for name in names_of(event) if "exec" in name or "run" in name
    ]
