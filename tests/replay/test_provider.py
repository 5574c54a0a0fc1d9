"""Test the provider that replays a log: it repeats the run, or reports the first difference."""

import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import dragoman as d
from dragoman import log as logs
from dragoman.events import FinishReason
from dragoman.log.record import draft_record
from dragoman.replay import ReplayMismatch

from ..listed import collect
from ..story import EDIT, GOAL, REMOVE, STORY, TEST, tell
from ..strategies import assistants

TOOLS = [
    d.Tool("bash", "", parameters={"type": "object"}),
    d.Tool("edit_file", "", parameters={"type": "object"}),
]
MESSAGES: list[d.Message] = [
    payload.message
    for payload in STORY
    if isinstance(payload, logs.MessageRecorded) and payload.in_context
]


def started(request_id: str, attempt: int = 0) -> logs.CallStarted:
    return logs.CallStarted(model="m", provider="p", request_id=request_id, attempt=attempt)


def failed(error_class: Any, message: str, **facts: Any) -> logs.CallFailed:
    return logs.CallFailed(
        model="m", provider="p", error_class=error_class, error_message_redacted=message, **facts
    )


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with logs.SqliteLog(tmp_path / "log.db") as log:
        yield log


async def ask(provider: d.ReplayProvider, count: int, tools: Sequence[d.Tool] = TOOLS) -> Any:
    return await provider.complete(MESSAGES[:count], tools)


async def test_repeated_run_receives_the_recorded_replies(log: logs.EventLog) -> None:
    tell(log)
    provider = d.ReplayProvider(log, "fix")
    assert provider.name == "anthropic"
    assert provider.model == "claude-sonnet-4-6"
    assert provider.remaining == 4
    for count, calls in (
        (1, [("bash", TEST)]),
        (3, [("bash", REMOVE)]),
        (5, [("edit_file", EDIT)]),
        (7, []),
    ):
        reply = await ask(provider, count)
        assert reply.message == MESSAGES[count]
        assert [(call.name, call.arguments) for call in reply.tool_calls] == calls
        assert reply.provider == "anthropic"
    assert reply.usage == d.Usage(1600, 20, cached_input_tokens=1500)
    assert reply.finish_reason == "stop"
    assert provider.remaining == 0


async def test_replayed_stream_is_valid_and_intents_keep_their_ids(log: logs.EventLog) -> None:
    tell(log)
    stream = d.ReplayProvider(log, "fix").stream(MESSAGES[:1], TOOLS, request_id="again")
    events = [event async for event in stream]
    d.check_events(events)
    [proposed] = [event.intent for event in events if isinstance(event, d.ToolUseEnd)]
    assert proposed is not None
    assert proposed.id == "tu_1"
    assert proposed.source.request_id == "again"
    assert proposed.input == TEST
    assert {event.request_id for event in events} == {"again"}
    assert [event.partial_json for event in events if isinstance(event, d.ToolUseInputDelta)] == [
        proposed.raw_input_text
    ]


@pytest.mark.parametrize(
    ("messages", "tools", "words"),
    [
        ([d.User("Something else")], TOOLS, "messages[0].content"),
        ([d.User(GOAL), d.User("more")], TOOLS, "messages[1]: nothing and "),
        ([d.User(GOAL)], TOOLS[:1], 'tools[1]: "edit_file" and nothing'),
        ([d.User(GOAL[:-1] + "!")], TOOLS, "messages[0].content"),
    ],
)
async def test_error_names_the_first_difference_from_the_recorded_request(
    log: logs.EventLog, messages: list[d.Message], tools: list[d.Tool], words: str
) -> None:
    tell(log)
    provider = d.ReplayProvider(log, "fix")
    with pytest.raises(ReplayMismatch) as caught:
        await provider.complete(messages, tools)
    assert str(caught.value).startswith("session 'fix', call 1: the first difference")
    assert words in str(caught.value)
    assert caught.value.difference is not None
    assert provider.remaining == 4, "a mismatch uses nothing up"
    assert (await ask(provider, 1)).message == MESSAGES[1]


async def test_replay_rejects_a_request_with_another_tool_result(log: logs.EventLog) -> None:
    tell(log)
    provider = d.ReplayProvider(log, "fix")
    await ask(provider, 1)
    changed = [*MESSAGES[:2], d.ToolResult("call_1", "expected 4, received 6\n", is_error=True)]
    with pytest.raises(ReplayMismatch) as caught:
        await provider.complete(changed, TOOLS)
    assert caught.value.call == 2
    assert caught.value.difference is not None
    assert caught.value.difference.path == "messages[2].content"


async def test_replay_rejects_a_call_that_was_not_recorded(log: logs.EventLog) -> None:
    log.append_sync("one", logs.MessageRecorded(message=d.User("Hi")))
    log.append_sync(
        "one",
        logs.MessageRecorded(message=d.Assistant("Hello"), request_id="r1", finish_reason="stop"),
    )
    provider = d.ReplayProvider(log, "one")
    assert (await provider.complete("Hi")).text == "Hello"
    with pytest.raises(ReplayMismatch, match="the log holds 1 call and this is one more"):
        await provider.complete([d.User("Hi"), d.Assistant("Hello"), d.User("Again")])


async def test_failures_are_replayed_unless_the_call_was_retried(log: logs.EventLog) -> None:
    log.append_sync("s", logs.SessionStarted(goal="Hi", model="m", provider="p"))
    log.append_sync("s", logs.MessageRecorded(message=d.User("Hi")))
    for attempt in range(2):
        log.append_sync("s", started("r1", attempt=attempt))
        facts = {"retry_count": attempt, "status": 429, "request_id": "r1"}
        log.append_sync("s", failed("rate_limit", "slow down", **facts))
    log.append_sync("s", started("r2"))
    log.append_sync("s", failed("network", "gone", request_id="r2"))
    log.append_sync("s", started("r2", attempt=1))
    log.append_sync(
        "s",
        logs.MessageRecorded(
            message=d.Assistant("Hello"),
            model="m",
            provider="p",
            request_id="r2",
            finish_reason="stop",
        ),
    )
    log.append_sync("s", started("r3"))  # the process died during this call
    provider = d.ReplayProvider(log, "s")
    with pytest.raises(d.RateLimitError) as caught:
        await provider.complete("Hi")
    assert caught.value.status == 429
    assert "slow down" in str(caught.value)
    events, error = await collect(provider.stream("Hi"))
    assert provider.remaining == 0
    assert isinstance(events[-1], d.MessageComplete)
    assert error is None or isinstance(error, d.ProviderError)


@pytest.mark.parametrize("ended", ["other", "cancelled"])
async def test_call_whose_task_was_cancelled_is_not_replayed_as_a_reply(
    log: logs.EventLog, ended: Any
) -> None:
    log.append_sync("s", logs.MessageRecorded(message=d.User("Hi")))
    log.append_sync("s", logs.TurnStarted(1))
    log.append_sync("s", started("r1"))
    log.append_sync(
        "s",
        logs.MessageRecorded(
            message=d.Assistant("Hel"),
            model="m",
            provider="p",
            request_id="r1",
            finish_reason="cancelled",
            in_context=False,
        ),
    )
    # The process was killed, and the process that resumes the session records the failure.
    if ended == "other":
        log.append_sync("s", logs.SessionResumed(after=3))
    log.append_sync("s", failed(ended, "its end was not recorded", request_id="r1"))
    log.append_sync("s", logs.TurnStarted(2))
    log.append_sync("s", started("r2"))
    log.append_sync(
        "s",
        logs.MessageRecorded(
            message=d.Assistant("Hello"),
            model="m",
            provider="p",
            request_id="r2",
            finish_reason="stop",
        ),
    )
    provider = d.ReplayProvider(log, "s")
    assert provider.remaining == 1
    assert (await provider.complete("Hi")).text == "Hello"


async def test_partial_reply_is_replayed_as_far_as_it_was_recorded(log: logs.EventLog) -> None:
    half = d.Assistant([d.Text("I will"), d.ToolCall("c", "bash", None)])
    log.append_sync("s", logs.MessageRecorded(message=d.User("Hi")))
    log.append_sync(
        "s",
        logs.MessageRecorded(
            message=half,
            model="m",
            provider="p",
            request_id="r1",
            finish_reason="error",
            in_context=False,
        ),
    )
    log.append_sync("s", failed("invalid_request", "cut", request_id="r1"))
    events, error = await collect(d.ReplayProvider(log, "s").stream("Hi", TOOLS))
    d.check_events(events)
    assert isinstance(error, d.InvalidRequestError)
    assert error.response is not None
    assert error.response.message == half
    [end] = [event for event in events if isinstance(event, d.ToolUseEnd)]
    assert end.intent is None
    assert end.problem == "interrupted"


def distinct(message: d.Assistant) -> bool:
    """Return whether all tool calls have different ids, as the assembler guarantees."""
    return len({call.id for call in message.tool_calls}) == len(message.tool_calls)


def writable(message: d.Assistant) -> bool:
    """Return whether the log accepts a message; the log rejects lone surrogates and NaN."""
    try:
        draft_record("s", logs.MessageRecorded(message=message))
    except logs.InvalidRecordError:
        return False
    return True


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=assistants.filter(lambda message: distinct(message) and writable(message)))
async def test_any_recorded_reply_is_replayed_unchanged(
    message: d.Assistant, log: logs.EventLog
) -> None:
    session = f"s{len(log.sessions())}"
    log.append_sync(session, logs.MessageRecorded(message=d.User("Hi")))
    # A reply with an unreadable tool call has the finish reason "error", never "tool_calls".
    reason: FinishReason = (
        "error" if any(call.arguments is None for call in message.tool_calls) else "tool_calls"
    )
    log.append_sync(
        session,
        logs.MessageRecorded(
            message=message, model="m", provider="p", request_id="r", finish_reason=reason
        ),
    )
    events, error = await collect(d.ReplayProvider(log, session).stream("Hi", TOOLS))
    assert error is None
    d.check_events(events)
    assert isinstance(events[-1], d.MessageComplete)
    assert events[-1].final_content == message.content


async def test_replaying_a_run_has_no_side_effects(
    log: logs.EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(log)

    def bomb(*_: Any, **__: Any) -> Any:
        raise AssertionError("replaying touched the outside world")

    monkeypatch.setattr(socket, "socket", bomb)
    monkeypatch.setattr(subprocess, "Popen", bomb)
    provider = d.ReplayProvider(log, "fix")
    for count in (1, 3, 5, 7):
        await ask(provider, count)
