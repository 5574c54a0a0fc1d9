"""Test Observe: the events of an attempt contain no secrets, and subscribers never block a call."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pytest

import dragoman as d
from dragoman.events import Response, Usage
from dragoman.messages import Assistant, Request, RuntimeConfig, Tool
from dragoman.middleware import (
    IS_WORKER,
    CallCompleted,
    CallFailed,
    CallStarted,
    EventsDropped,
    redact,
)
from dragoman.validate import build_request
from tests.listed import Clock, Listed, broken, collect, reply, speak
from tests.rows import read_table
from tests.waiting import PATIENCE

TOOL = Tool("add", "", parameters={"type": "object", "properties": {}})


def call_add(out: Any) -> None:
    out.tool_start(0, "c", "add")
    out.tool_input(0, "{}")


async def watch(
    provider: Any, request: Request | None = None, **settings: Any
) -> tuple[list[Any], Exception | None]:
    """Return the events that an observer reports for one call, and the error that ended the call."""
    told: list[Any] = []
    model = d.Observe(provider, told.append, **settings)
    _, error = await collect(model.events(request or build_request("hi", model="m")))
    await model.close()
    return told, error


# --- contents of reported events ---------------------------------------------------------------


async def test_successful_call_is_reported() -> None:
    usage = Usage(
        20,
        7,
        cached_input_tokens=12,
        cache_creation_input_tokens=3,
        reasoning_tokens=2,
        total_tokens=27,
    )
    say = lambda out: (out.thinking("hm"), out.text("see"), call_add(out))
    thought = speak(say, usage=usage, finish="tool_calls")
    config = RuntimeConfig(temperature=0.5, extras={"private": "detail"})
    request = msgspec.structs.replace(
        build_request("hello there", [TOOL], config, model="m", stream=True), session_id="s1"
    )
    told, error = await watch(Listed(thought), request, now=lambda: 1700000000.0)
    assert error is None
    started, completed = told
    common = {
        "model": "m", "provider": "listed", "request_id": request.request_id, "at": 1700000000.0,
        "attempt": 0, "session_id": "s1", "stream": True,
        "config": RuntimeConfig(temperature=0.5),
    }  # fmt: skip
    estimate = Listed().estimate_input_tokens(request.messages, request.tools)
    assert started == CallStarted(**common, estimated_input_tokens=estimate)
    assert completed == CallCompleted(
        **common, stop_reason="tool_use", finish_reason="tool_calls", response_model="m",
        latency_ms=completed.latency_ms, first_event_ms=completed.first_event_ms,
        input_tokens=20, output_tokens=7, cached_input_tokens=12, cache_creation_input_tokens=3,
        reasoning_tokens=2, produced_tool_calls=1, produced_thinking_blocks=1,
        cost_unknown=completed.cost_unknown, priced_as="listed:m", tool_outcomes={"sound": 1},
    )  # fmt: skip
    assert 0 <= completed.first_event_ms <= completed.latency_ms


@pytest.mark.parametrize(
    ("answer", "stop_reason"),
    [
        (reply("x"), "end_turn"),
        (reply("x", stop_sequence="END"), "stop_sequence"),
        (reply("x", finish="length"), "max_tokens"),
        (reply("x", finish="content_filter"), "content_filter"),
        (speak(call_add, finish="tool_calls"), "tool_use"),
    ],
)
async def test_every_finish_reason_is_reported_as_a_stop_reason(
    answer: Any, stop_reason: str
) -> None:
    told, _ = await watch(Listed(answer), build_request("hi", [TOOL]))
    assert told[-1].stop_reason == stop_reason


@pytest.mark.parametrize(
    ("answer", "error_class", "status"),
    [
        (d.RateLimitError("slow", status=429), "rate_limit", 429),
        (d.AuthenticationError("no", status=401), "auth", 401),
        (d.NetworkError("gone"), "network", None),
        (d.UnavailableError("down", status=500), "server_error", 500),
        (d.StructuredOutputError("odd"), "other", None),
        (ZeroDivisionError("a bug"), "other", None),
        (broken("half", d.StreamInterruptedError("cut")), "network", None),
    ],
)
async def test_failed_call_is_reported(answer: Any, error_class: str, status: int | None) -> None:
    told, raised = await watch(Listed(answer))
    assert raised is not None
    assert raised is answer or not isinstance(answer, Exception)
    failed = told[1]
    assert isinstance(failed, CallFailed)
    assert failed.error_class == error_class
    assert failed.status == status
    assert failed.retry_count == 0
    assert failed.error_message_redacted
    assert len(told) == 2


async def test_tokens_of_an_error_without_events_are_reported() -> None:
    partial = Response(Assistant("Hi"), "error", usage=Usage(7, 3), model="m-2026")
    (_, failed), _ = await watch(Listed(d.UnavailableError("no", response=partial)))
    assert failed.input_tokens == 7
    assert failed.response_model == "m-2026"


async def test_tokens_of_an_invalid_reply_are_reported() -> None:
    schema = {"type": "object", "required": ["n"]}
    told, error = await watch(
        Listed(reply("no json", usage=Usage(9, 4))), build_request("hi", response_schema=schema)
    )
    assert isinstance(error, d.StructuredOutputError)
    assert told[-1].type == "llm.call_failed"
    assert told[-1].input_tokens == 9
    assert told[-1].output_tokens == 4


@pytest.mark.parametrize(
    ("finish", "error_class"), [("error", "other"), ("cancelled", "cancelled")]
)
async def test_reply_with_the_finish_reason_error_is_reported(
    finish: str, error_class: str
) -> None:
    told, error = await watch(Listed(reply("half", finish=finish)))
    assert error is None
    assert told[1].type == "llm.call_failed"
    assert told[1].error_class == error_class


@pytest.mark.parametrize("mode", ["complete", "stream", "close"])
async def test_cancelled_call_is_reported(mode: str) -> None:
    told: list[Any] = []
    gate = asyncio.Event()
    inner = Listed(lambda request: [*reply("hello")(request)[:2], gate])
    model = d.Observe(inner, told.append)
    if mode == "complete":
        call = asyncio.ensure_future(model.complete("hi", request_id="r"))
        while not inner.requests:
            await asyncio.sleep(0)
        await model.cancel("r")
        with pytest.raises(d.CallCancelledError):
            await call
    elif mode == "stream":
        stream = model.stream("hi")
        await stream.__anext__()
        reading = asyncio.ensure_future(collect(stream))
        await asyncio.sleep(0)
        await stream.cancel()
        await reading
    else:
        source = model.events(build_request("hi", stream=True))
        await source.__anext__()
        await source.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    await model.close()
    assert [event.type for event in told] == ["llm.call_started", "llm.call_failed"]
    assert told[1].error_class == "cancelled"
    assert told[1].error_message_redacted == "the call was cancelled"


async def test_call_is_reported_as_completed_if_the_reader_stops_at_the_last_event() -> None:
    told: list[Any] = []
    model = d.Observe(Listed("hello"), told.append)
    source = model.events(build_request("hi"))
    async for event in source:
        if event.type == "message.complete":
            break
    await source.aclose()  # type: ignore[attr-defined]
    await model.close()
    assert told[-1].type == "llm.call_completed"


async def test_latency_and_time_to_first_event_are_measured() -> None:
    clock = Clock()

    def slow(request: Request) -> Iterator[Any]:
        events = reply("hi")(request)
        clock.now += 0.2
        yield events[0]
        clock.now += 0.3
        yield from events[1:]

    told, _ = await watch(Listed(slow), clock=clock)
    assert told[1].first_event_ms == 200
    assert told[1].latency_ms == 500


async def test_each_attempt_is_reported_with_its_number() -> None:
    told: list[Any] = []
    clock = Clock()
    observed = d.Observe(Listed(d.RateLimitError("1"), d.UnavailableError("2"), "ok"), told.append)
    model = d.Retry(observed, clock=clock, sleep=clock.sleep)
    reply_ = await model.complete("hi")
    await model.close()
    ends = ["llm.call_failed", "llm.call_failed", "llm.call_completed"]
    assert [event.type for event in told[1::2]] == ends
    assert {event.type for event in told[::2]} == {"llm.call_started"}
    assert [event.attempt for event in told] == [0, 0, 1, 1, 2, 2]
    assert [event.retry_count for event in told if event.type == "llm.call_failed"] == [0, 1]
    assert [event.retry_reason for event in told[::2]] == [None, "transient", "transient"]
    assert {event.request_id for event in told} == {reply_.request_id}


async def test_observer_outside_a_fallback_names_the_answering_candidate() -> None:
    a = Listed(d.UnavailableError("down"), name="a")
    b = Listed("ok", name="listed")
    told, _ = await watch(d.Fallback([a, b]))
    assert [event.provider for event in told] == ["fallback", "a", "listed", "listed"]


async def test_calls_made_by_a_worker_are_marked_in_their_events() -> None:
    request = msgspec.structs.replace(
        build_request("hi"), metadata={IS_WORKER: "true", "dragoman.attempt": "odd"}
    )
    told, _ = await watch(Listed("x"), request)
    assert told[0].is_worker
    assert told[0].attempt == 0


class Bill(msgspec.Struct):
    total: Decimal
    pricing_version: str


async def test_price_is_looked_up_by_provider_and_model() -> None:
    asked: list[Any] = []

    def price(usage: Usage, model: str) -> Bill:
        asked.append((usage, model))
        return Bill(Decimal("0.25"), "v7")

    told, _ = await watch(Listed(reply("x", usage=Usage(1, 2))), price=price)
    assert asked == [(Usage(1, 2), "listed:m")]
    assert told[1].cost_usd == Decimal("0.25")
    assert told[1].pricing_version == "v7"


@pytest.mark.parametrize("price", [lambda *_: None, lambda *_: 1 / 0])
async def test_unknown_price_and_token_counts_are_reported_as_none(price: Any) -> None:
    told, _ = await watch(Listed(reply("x", usage=Usage())), price=price)
    assert told[1].input_tokens is None
    assert told[1].output_tokens is None
    assert told[1].cost_usd is None


async def test_call_is_reported_even_if_the_token_estimate_fails() -> None:
    class Innumerate(Listed):
        def estimate_input_tokens(self, *_: Any) -> int:
            raise ValueError("cannot count")

    told, _ = await watch(Innumerate("x"))
    assert told[0].type == "llm.call_started"
    assert told[0].estimated_input_tokens is None


async def test_content_is_reported_only_on_request() -> None:
    request = build_request("a private question", model="m")
    told, _ = await watch(Listed("a private answer"), request)
    for event in told:
        assert b"private" not in msgspec.json.encode(event)
    told, _ = await watch(Listed("a private answer"), request, include_content=True)
    assert told[0].request is request
    assert told[1].content[0].text == "a private answer"


def test_call_events_are_encoded_with_the_names_of_the_adapter_contract() -> None:
    started = CallStarted(model="m", provider="p", request_id="r", estimated_input_tokens=3)
    assert msgspec.to_builtins(started) == {
        "type": "llm.call_started", "model": "m", "provider": "p", "request_id": "r",
        "estimated_input_tokens": 3,
    }  # fmt: skip
    contract = {
        CallCompleted: (
            "model provider input_tokens output_tokens cached_input_tokens "
            "cache_creation_input_tokens cost_usd pricing_version latency_ms stop_reason "
            "produced_tool_calls produced_thinking_blocks"
        ),
        CallFailed: "model provider error_class error_message_redacted retry_count latency_ms",
        CallStarted: "model provider estimated_input_tokens request_id is_worker",
    }
    for kind, names in contract.items():
        assert set(names.split()) <= set(kind.__struct_fields__)


# --- redaction of secrets ----------------------------------------------------------------------

SECRETS = read_table("redaction_removes_secrets_and_personal_data")


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_redaction_removes_secrets_and_personal_data(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redact(text)


@pytest.mark.parametrize("text", read_table("redaction_keeps_text_that_is_not_secret"))
def test_redaction_keeps_text_that_is_not_secret(text: str) -> None:
    assert redact(text) == text


async def test_events_contain_no_secret() -> None:
    text = "the key sk-proj-abcdefghijklmnop1234 of jane.doe@example.org"
    answered = d.UnavailableError("x", provider_message=text)
    for error in (d.ProviderError(text), answered, ValueError(text)):
        told, _ = await watch(Listed(error))
        assert "sk-proj" not in repr(told)
        assert "jane" not in repr(told)


# --- listeners that receive the events ---------------------------------------------------------


async def test_subscribers_may_be_coroutine_functions_and_objects() -> None:
    told: dict[str, list[str]] = {"coroutine": [], "object": [], "lambda": [], "plain": []}
    threads: dict[str, int] = {}

    def note(who: str, event: Any) -> None:
        threads[who] = threading.get_ident()
        told[who].append(event.type)

    async def coroutine(event: Any) -> None:
        await asyncio.sleep(0)
        note("coroutine", event)

    class Listener:
        async def __call__(self, event: Any) -> None:
            note("object", event)

    async def later(event: Any) -> None:
        note("lambda", event)

    others = [lambda event: later(event), lambda event: note("plain", event)]
    model = d.Observe(Listed("x"), coroutine, Listener(), *others)
    await model.complete("hi")
    await model.flush()
    assert told == {who: ["llm.call_started", "llm.call_completed"] for who in told}
    here = threading.get_ident()
    assert {who for who, thread in threads.items() if thread != here} == {"plain"}
    await model.close()


async def test_subscribers_run_in_the_context_of_the_call() -> None:
    where: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")
    seen: list[str] = []

    async def coroutine(_: Any) -> None:
        seen.append(where.get())

    model = d.Observe(Listed("x", "y"), lambda _: seen.append(where.get()), coroutine)
    for place in ("here", "there"):
        where.set(place)
        await model.complete("hi")
        where.set("gone")
        await model.flush()
        assert seen == [place] * 4
        seen.clear()
    await model.close()


@pytest.mark.parametrize("kind", ["plain", "coroutine", "cancelled", "deaf"])
async def test_failing_subscriber_is_reported_once_and_does_not_affect_calls(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []

    def plain(_: Any) -> None:
        raise RuntimeError("a listener's own fault")

    async def coroutine(_: Any) -> None:
        raise RuntimeError("a listener's own fault")

    async def cancelled(_: Any) -> None:
        raise asyncio.CancelledError

    async def deaf() -> None:
        """Fail on every event, because the function accepts no argument."""

    failing: Any = {"plain": plain, "coroutine": coroutine, "cancelled": cancelled, "deaf": deaf}
    model = d.Observe(Listed("a", "b", "c"), failing[kind], told.append)
    with caplog.at_level(logging.WARNING, "dragoman"):
        for text in "abc":
            assert (await model.complete("hi")).text == text
        await model.close()
    assert len(told) == 6
    assert caplog.text.count("an observer failed") == 1


async def test_awaitable_returned_by_a_subscriber_is_awaited() -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    told: list[Any] = []
    model = d.Observe(Listed("x"), lambda _: done, told.append)
    await model.complete("hi")
    closing = asyncio.ensure_future(model.close())
    await asyncio.sleep(0)
    assert not closing.done()
    done.set_result(None)
    await closing
    assert len(told) == 2


async def test_failure_to_build_one_event_does_not_affect_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Any] = []
    model = d.Observe(Listed("x", "y"), told.append)
    odd = msgspec.structs.replace(build_request("hi"), metadata=None)
    with caplog.at_level(logging.WARNING, "dragoman"):
        assert (await collect(model.events(odd)))[1] is None
        await model.complete("hi")
        await model.close()
    assert caplog.text.count("could not be put together") == 2
    assert len(told) == 2


async def test_slow_synchronous_subscriber_does_not_slow_a_call() -> None:
    go_on = threading.Event()
    told: list[Any] = []

    def slow(event: Any) -> None:
        assert go_on.wait(PATIENCE), "the calls to end"
        told.append(event)

    model = d.Observe(Listed("x", repeat=True), slow, queue_size=10_000)
    for _ in range(100):
        assert (await model.complete("hi")).text == "x"
    assert told == []
    go_on.set()
    await model.flush()
    assert len(told) == 200
    await model.close()


async def test_events_dropped_by_a_full_queue_are_counted_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = asyncio.Event()
    told: list[Any] = []

    async def slow(event: Any) -> None:
        await gate.wait()
        told.append(event)

    model = d.Observe(Listed("x", repeat=True), slow, queue_size=10)
    with caplog.at_level(logging.WARNING, "dragoman"):
        for _ in range(100):
            await model.complete("hi")
        gate.set()
        await model.flush()
    dropped = sum(event.count for event in told if isinstance(event, EventsDropped))
    assert dropped == model.dropped > 0
    assert len([event for event in told if not isinstance(event, EventsDropped)]) + dropped == 200
    assert caplog.text.count("events are dropped") == 1
    assert len(told) <= 2 * 10 + 100
    await model.close()
    assert model.dropped == dropped


@pytest.mark.parametrize("subscribers", [(), (lambda _: None,)])
async def test_observer_runs_no_task_while_there_are_no_events(subscribers: Any) -> None:
    inner = Listed("x")
    model = d.Observe(inner, *subscribers)
    await model.flush()
    assert (await model.complete("hi")).text == "x"
    await model.flush()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await model.flush()
    await model.close()
    assert inner.closed == 1


async def test_closing_does_not_wait_for_a_hanging_subscriber(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dragoman.middleware.observe.FLUSH_SECONDS", 0.01)

    async def stuck(_: Any) -> None:
        await asyncio.Event().wait()

    model = d.Observe(Listed("x", repeat=True), stuck)
    for _ in range(3):
        await model.complete("hi")
    with caplog.at_level(logging.WARNING, "dragoman"):
        await model.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert 4 <= model.dropped <= 6
    assert "were not delivered" in caplog.text


def test_observer_is_usable_again_after_close_and_in_another_event_loop() -> None:
    told: list[Any] = []
    model = d.Observe(Listed("x", repeat=True), told.append)

    async def call() -> None:
        await model.complete("hi")
        await model.flush()
        await model.complete("hi")
        await model.close()

    for _ in range(2):
        asyncio.run(call())
    assert len(told) == 8


async def test_no_event_is_lost_if_closing_the_inner_provider_fails() -> None:
    class Stuck(Listed):
        async def close(self) -> None:
            raise RuntimeError("stuck")

    told: list[Any] = []
    model = d.Observe(Stuck("x"), told.append)
    await model.complete("hi")
    with pytest.raises(RuntimeError, match="stuck"):
        await model.close()
    assert len(told) == 2


@pytest.mark.parametrize(
    ("subscribers", "settings", "field"),
    [
        ((print,), {"queue_size": 0}, "queue_size"),
        ((print,), {"queue_size": 1.5}, "queue_size"),
        ((print,), {"queue_size": float("nan")}, "queue_size"),
        ((print, "a listener"), {}, r"subscribers\[1\]"),
    ],
)
def test_error_names_an_invalid_setting(
    subscribers: Any, settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValueError, match=field):
        d.Observe(Listed(), *subscribers, **settings)


def test_description_of_an_observer_names_its_subscribers() -> None:
    def listener(_: object) -> None: ...

    described = d.describe(d.Observe(Listed(), listener))
    assert described.splitlines()[0].endswith("listener], queue_size=1000, include_content=False)")


async def test_attempts_of_a_retry_inside_are_reported_and_in_the_response() -> None:
    def answer(text: str, *error: d.ProviderError) -> Any:
        return lambda request: [
            *speak(lambda out: out.text(text), usage=d.Usage(100, 10))(request), *error
        ]  # fmt: skip

    wrong = d.StructuredOutputError("no", output_content="nope")
    seen: list[Any] = []
    answers = answer("nope", wrong), answer('{"n": 1}')
    inner = Listed(*answers, name="anthropic", model="claude-sonnet-4-6")
    model = d.Observe(d.Retry(inner, reask=lambda error: "Again."), seen.append)
    reply = await model.complete("x", response_schema={"type": "object"})
    await model.close()
    assert [each.type for each in seen] == [
        "llm.call_started", "llm.call_failed", "llm.call_started", "llm.call_completed",
    ]  # fmt: skip
    ends = [each for each in seen if isinstance(each, CallCompleted | CallFailed)]
    assert [each.input_tokens for each in ends] == [100, 100]
    assert reply.usage.input_tokens == 100
    assert reply.total_usage == d.Usage(200, 20)
    paid = [each.cost_usd for each in reply.failed] + [d.cost(reply).total]
    assert paid == [each.cost_usd for each in ends] != [None, None]
