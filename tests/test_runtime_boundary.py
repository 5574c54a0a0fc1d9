"""A provider only proposes tool calls and never executes them.

The first six tests are named after the six categories of tests in the article on provider
runtimes.
"""

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import dragoman as d
from dragoman.calls import TURN
from dragoman.events import ModelEvent, ToolIntentProposed
from dragoman.transport import FixtureTransport

Reply = tuple[int, dict[str, str], list[bytes]]
executions: list[Any] = []


def bash(command: str) -> str:
    """Run a command."""
    executions.append(command)
    return "ran"


TOOLS = [d.Tool.from_function(bash), d.Tool("ping")]


@pytest.fixture(autouse=True)
def no_executions() -> Iterator[None]:
    """Fail the test if the tool was executed."""
    executions.clear()
    yield
    assert executions == []


def provider(*replies: Reply) -> tuple[d.Provider, FixtureTransport]:
    transport = FixtureTransport(*replies)
    model = d.connect(
        "m1", base_url="http://127.0.0.1:9/v1", name="acme", api_key="k", transport=transport
    )
    return model, transport


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"model": "m1", "choices": [choice]}).encode() + b"\n\n"


def call_delta(call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    return {
        "tool_calls": [
            {"index": 0, "id": call_id, "function": {"name": name, "arguments": arguments}}
        ]
    }


def stream_of(*chunks: bytes) -> Reply:
    return 200, {"content-type": "text/event-stream"}, [*chunks, b"data: [DONE]\n\n"]


def body_of(message: dict[str, Any], finish: str) -> Reply:
    body = {"model": "m1", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    return 200, {"content-type": "application/json"}, [json.dumps(body).encode()]


WHOLE_CALL = stream_of(
    chunk(call_delta("call_1", "bash", '{"command": "npm test"}')), chunk({}, "tool_calls")
)
ANSWER = stream_of(chunk({"content": "Two tests fail."}), chunk({}, "stop"))


async def collect(model: d.Provider, messages: Any, **settings: Any) -> list[ModelEvent]:
    return [event async for event in d.to_model_events(model.stream(messages, TOOLS, **settings))]


async def test_normalizes_provider_tool_calls_into_intents() -> None:
    model, _ = provider(WHOLE_CALL)
    events = await collect(model, "fix the tests")
    [proposed] = [event for event in events if isinstance(event, ToolIntentProposed)]
    assert proposed.type == "tool_intent.proposed"
    assert proposed.intent.tool_name == "bash"
    assert proposed.intent.input == {"command": "npm test"}
    assert proposed.intent.provider_call_id == "call_1"
    assert proposed.intent.status == "proposed"
    assert proposed.intent.source.provider == "acme"
    assert proposed.intent.source.model == "m1"


async def test_proposed_intents_have_the_turn_of_their_request() -> None:
    model, _ = provider(WHOLE_CALL, WHOLE_CALL)
    for settings, turn in (({"metadata": {TURN: "t1"}}, "t1"), ({}, None)):
        events = await collect(model, "fix the tests", **settings)
        assert [event.turn_id for event in events if isinstance(event, ToolIntentProposed)] == [
            turn
        ]


async def test_does_not_execute_tools() -> None:
    model, transport = provider(WHOLE_CALL, body_of({"tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "bash",
                                                          "arguments": '{"command": "ls"}'}}
    ]}, "tool_calls"))  # fmt: skip
    await collect(model, "fix the tests")
    response = await model.complete("fix the tests", TOOLS)
    assert [call.name for call in response.tool_calls] == ["bash"]
    # One request for each call: the provider runs no agent loop.
    assert len(transport.requests) == 2
    assert executions == []
    for name in (
        "execute",
        "execute_tool",
        "run_loop",
        "continue_until_done",
        "approve_tool",
        "append_tool_result",
    ):
        assert not hasattr(model, name)


async def test_assembles_streamed_deltas_before_proposing_intent() -> None:
    model, _ = provider(
        stream_of(chunk(call_delta("call_1", "bash", '{"command": ')),
            chunk(call_delta(None, None, '"npm test"}')), chunk({}, "tool_calls")),
    )  # fmt: skip
    events = await collect(model, "fix the tests")
    assert [event.type for event in events] == [
        "model.started", "tool_intent.delta", "tool_intent.delta", "tool_intent.proposed",
        "model.finished",
    ]  # fmt: skip


async def test_maps_provider_errors_without_creating_tool_observations() -> None:
    refusal = json.dumps({"error": {"message": "slow down", "type": "rate_limit_error"}}).encode()
    model, _ = provider(
        (429, {"retry-after": "3"}, [refusal]), (429, {"retry-after": "3"}, [refusal])
    )
    events = await collect(model, "fix the tests")
    [error] = events
    assert error.type == "provider.error"
    assert error.kind == "rate_limit"
    assert error.retryable is True
    assert error.provider == "acme"
    assert error.model == "m1"
    assert not [event for event in events if event.type.startswith("tool")]
    with pytest.raises(d.RateLimitError) as caught:
        await model.complete("fix the tests", TOOLS)
    assert caught.value.retry_after == 3


async def test_keeps_provider_request_scoped() -> None:
    model, transport = provider(WHOLE_CALL, ANSWER)
    first = await collect(model, "the first question")
    second = await collect(model, "the second question")
    alone, _ = provider(ANSWER)
    assert shape(second) == shape(await collect(alone, "the second question"))
    assert shape(first) != shape(second)
    assert b"first" in transport.requests[0].body
    assert b"first" not in transport.requests[1].body
    assert "question" not in repr(reachable(model, transport))


async def test_sends_projected_observations_as_messages_without_executing() -> None:
    model, transport = provider(ANSWER)
    messages = [
        d.User("fix the tests"),
        d.Assistant(tool_calls=[d.ToolCall("call_1", "bash", {"command": "npm test"})]),
        d.ToolResult("call_1", "npm test failed with exit code 1"),
    ]
    await collect(model, messages)
    [request] = transport.requests
    sent = json.loads(request.body)
    assert sent["messages"][-1] == {
        "role": "tool", "tool_call_id": "call_1", "content": "npm test failed with exit code 1",
    }  # fmt: skip
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["bash", "ping"]
    assert executions == []


def shape(events: list[ModelEvent]) -> list[Any]:
    """Return the type and the text of each event; ids differ in each run."""
    return [
        (event.type, getattr(event, "text", None), getattr(event, "raw_input_text", None))
        for event in events
    ]


def reachable(model: d.Provider, transport: FixtureTransport) -> list[Any]:
    """Return every object that a provider references, except the test's transport."""
    seen: dict[int, Any] = {id(transport): None}
    waiting: list[Any] = [vars(model)]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
        elif type(value).__module__.startswith("dragoman"):
            waiting += vars(value).values() if hasattr(value, "__dict__") else []
            # messages and requests are structs, which have no ``__dict__``
            waiting += [getattr(value, name) for name in getattr(value, "__struct_fields__", ())]
            slots = [each.__dict__.get("__slots__", ()) for each in type(value).__mro__]
            names = [
                name for each in slots for name in ([each] if isinstance(each, str) else each)
            ]
            waiting += [getattr(value, name) for name in names if hasattr(value, name)]
    return [value for value in seen.values() if isinstance(value, str | bytes)]


PLANTS: list[Any] = [
    [d.User("a question")],
    {"said": ["a question"]},
    d.Request([d.User("a question")]),
    (d.Assistant([d.Text("a question")]),),
]


@pytest.mark.parametrize("plant", PLANTS)
async def test_search_for_retained_conversations_finds_planted_ones(plant: Any) -> None:
    model, transport = provider(ANSWER)
    assert "question" not in repr(reachable(model, transport))
    model.history = plant  # type: ignore[attr-defined]
    assert "question" in repr(reachable(model, transport))


CUTS = [
    stream_of(chunk(call_delta("call_1", "bash", '{"command": '))),
    stream_of(chunk(call_delta("call_1", "bash", '{"command": ')), chunk({}, "length")),
    stream_of(chunk(call_delta("call_1", "bash", '{"command": "rm -rf /'))),
    stream_of(chunk(call_delta("call_1", "ping", '{"host": "loc')), chunk({}, "tool_calls")),
    stream_of(chunk(call_delta("call_1", "reboot", "{}")), chunk({}, "tool_calls")),
    stream_of(chunk(call_delta("call_1", "bash", "{}")), chunk({}, "tool_calls")),
]


@pytest.mark.parametrize("reply", CUTS)
async def test_incomplete_tool_call_is_never_proposed(reply: Reply) -> None:
    model, _ = provider(reply)
    events = await collect(model, "fix the tests")
    assert not [event for event in events if event.type == "tool_intent.proposed"]
    assert events[-1].type == "provider.error"


@pytest.mark.parametrize("cancelled_after", [1, 2, 3])
async def test_cancelled_tool_call_is_never_proposed(cancelled_after: int) -> None:
    model, _ = provider(WHOLE_CALL)
    events: list[d.Event] = []
    async with model.stream("fix the tests", TOOLS) as stream:
        async for event in stream:
            events.append(event)
            if len(events) == cancelled_after:
                assert await stream.cancel()
    d.check_events(events)
    assert not [event for event in events if isinstance(event, d.ToolUseEnd) and event.intent]
    assert stream.response.finish_reason == "cancelled"


async def test_error_with_a_partial_response_can_be_pickled() -> None:
    model, _ = provider((200, {}, [chunk({"content": "half"})]))
    with pytest.raises(d.ProviderError) as caught:
        async for _ in model.stream("fix the tests"):
            pass
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value)
    assert str(copy) == str(caught.value)
    assert copy.response.text == "half"
    assert copy.response.raw == caught.value.response.raw
