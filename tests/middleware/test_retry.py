"""Test Retry: which errors are retried, how often, after which delay, and what the caller
receives.
"""

import asyncio
import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman as d
from dragoman.middleware import ATTEMPT, RETRY_REASON
from dragoman.validate import build_request
from tests.listed import USAGE, Clock, Listed, broken, collect, reply, speak

from .conftest import ERRORS

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def retry(provider: Listed, clock: Clock, draw: float = 0.5, **settings: Any) -> d.Retry:
    return d.Retry(provider, **settings, clock=clock, sleep=clock.sleep, random=lambda: draw)


# --- number of attempts ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
async def test_only_transient_errors_are_retried(kind: type[d.ProviderError]) -> None:
    provider = Listed(kind("no"), "yes")
    clock = Clock()
    model = retry(provider, clock)
    if kind.transient:
        assert (await model.complete("hi")).text == "yes"
    else:
        with pytest.raises(kind):
            await model.complete("hi")
    assert len(provider.requests) == (2 if kind.transient else 1)


@given(
    st.lists(st.sampled_from(["ok", "transient", "fatal"]), min_size=8, max_size=8),
    st.integers(0, 6),
)
def test_retries_stop_at_the_first_success_permanent_error_or_limit(
    outcomes: list[str], max_retries: int
) -> None:
    made = {
        "ok": lambda _: "fine",
        "transient": lambda _: d.UnavailableError("t"),
        "fatal": lambda _: d.InvalidRequestError("f"),
    }
    provider = Listed(*[made[each] for each in outcomes])
    clock = Clock()
    told: list[int] = []
    tell = lambda _, index, __: told.append(index)
    model = retry(provider, clock, max_retries=max_retries, on_retry=tell)
    request = build_request("hi")
    _, error = asyncio.run(collect(model.events(request)))
    first = next((at for at, each in enumerate(outcomes) if each != "transient"), len(outcomes))
    attempts = min(first, max_retries) + 1
    assert len(provider.requests) == attempts
    assert len(clock.slept) == attempts - 1
    assert told == list(range(attempts - 1))
    assert (error is None) == (outcomes[attempts - 1] == "ok")
    notes = getattr(error, "__notes__", [])
    assert notes == ([f"gave up after {attempts} attempts"] if first >= attempts > 1 else [])
    said = [
        (each.metadata[ATTEMPT], each.metadata.get(RETRY_REASON)) for each in provider.requests
    ]
    assert said == [("0", None), *[(str(at), "transient") for at in range(1, attempts)]]
    assert request.metadata == {}
    assert {each.request_id for each in provider.requests} == {request.request_id}


# --- backoff and Retry-After -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "waits"),
    [
        (0.5, [1, 2, 4, 8, 16, 30, 30]),
        (0.0, [0.75, 1.5, 3, 6, 12, 22.5, 22.5]),
        (1.0, [1.25, 2.5, 5, 10, 20, 30, 30]),
    ],
)
async def test_backoff_doubles_with_jitter_up_to_thirty_seconds(
    draw: float, waits: list[float]
) -> None:
    provider = Listed(lambda _: d.UnavailableError("down"), repeat=True)
    clock = Clock()
    with pytest.raises(d.UnavailableError):
        await retry(provider, clock, draw, max_retries=7).complete("hi")
    assert clock.slept == pytest.approx(waits)


@pytest.mark.parametrize("kind", [d.RateLimitError, d.UnavailableError])
@pytest.mark.parametrize(
    ("retry_after", "slept"),
    [
        (3.0, [3.0]),
        (60.0, [60.0]),
        (0.25, [0.25]),
        (0.0, []),
        (-5.0, []),
        (math.nan, [1.0]),
        (None, [1.0]),
    ],
)
async def test_wait_between_attempts_is_exactly_the_retry_after(
    kind: type[d.ProviderError], retry_after: float | None, slept: list[float]
) -> None:
    provider = Listed(kind("slow", retry_after=retry_after), "ok")
    clock = Clock()
    assert (await retry(provider, clock).complete("hi")).text == "ok"
    assert clock.slept == slept


@pytest.mark.parametrize("retry_after", [60.001, 3600.0, math.inf])
async def test_error_whose_retry_after_exceeds_the_limit_is_raised_at_once(
    retry_after: float,
) -> None:
    provider = Listed(d.RateLimitError("slow", retry_after=retry_after))
    clock = Clock()
    with pytest.raises(d.RateLimitError) as caught:
        await retry(provider, clock).complete("hi")
    assert caught.value.retry_after == retry_after
    assert "asks for a wait" in caught.value.__notes__[0]
    assert clock.slept == []


async def test_custom_backoff_function_receives_the_attempt_number() -> None:
    provider = Listed(lambda _: d.UnavailableError("down"), repeat=True)
    clock = Clock()
    model = retry(provider, clock, max_retries=3, backoff=lambda index: 10.0 * index)
    with pytest.raises(d.UnavailableError):
        await model.complete("hi")
    assert clock.slept == [10.0, 20.0]  # a backoff of 0 does not sleep


@pytest.mark.parametrize("wait", [-1, math.nan, math.inf, 1e300, "1", None, True])
async def test_error_names_an_invalid_backoff(wait: Any) -> None:
    provider = Listed(d.UnavailableError("down"))
    clock = Clock()
    with pytest.raises(ValueError, match=r"backoff\(0\)") as caught:
        await retry(provider, clock, backoff=lambda _: wait).complete("hi")
    assert isinstance(caught.value.__context__, d.UnavailableError)


@pytest.mark.parametrize(
    ("deadline", "attempts", "slept"),
    [
        (0.5, 1, []),
        (1.0, 2, [1.0]),
        (2.9, 2, [1.0]),
        (3.0, 3, [1.0, 2.0]),
        (100, 4, [1.0, 2.0, 4.0]),
    ],
)
async def test_no_attempt_begins_after_the_deadline(
    deadline: float, attempts: int, slept: list[float]
) -> None:
    provider = Listed(lambda _: d.UnavailableError("down"), repeat=True)
    clock = Clock()
    with pytest.raises(d.UnavailableError):
        await retry(provider, clock, max_retries=3, deadline=deadline).complete("hi")
    assert len(provider.requests) == attempts
    assert clock.slept == slept


async def test_time_spent_in_attempts_counts_towards_the_deadline() -> None:
    clock = Clock()

    def slow(_: Any) -> d.ProviderError:
        clock.now += 50
        return d.UnavailableError("down")

    provider = Listed(slow, repeat=True)
    with pytest.raises(d.UnavailableError) as caught:
        await retry(provider, clock, max_retries=9, deadline=120).complete("hi")
    assert len(provider.requests) == 3
    assert "deadline of 120 s" in caught.value.__notes__[0]


# --- a stream is never retried after its first event -------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_stream_is_not_retried_after_its_first_event(stream: bool) -> None:
    provider = Listed(broken("half", d.StreamInterruptedError("cut")), "whole")
    clock = Clock()
    heard, error = await collect(retry(provider, clock).events(build_request("hi", stream=stream)))
    assert isinstance(error, d.StreamInterruptedError)
    assert len(provider.requests) == 1
    assert [event.type for event in heard] == ["message.start", "text.delta", "message.complete"]


async def test_retry_forwards_events_immediately() -> None:
    gate = asyncio.Event()
    provider = Listed(lambda asked: [*reply("hi")(asked)[:2], gate, *reply("hi")(asked)[2:]])
    source = retry(provider, Clock()).events(build_request("hi", stream=True))
    assert (await source.__anext__()).type == "message.start"
    assert (await source.__anext__()).type == "text.delta"
    await source.aclose()  # type: ignore[attr-defined]
    assert provider.running == 0


# --- callbacks of the caller -------------------------------------------------------------------


async def test_custom_classifier_decides_which_errors_are_retried() -> None:
    def calling(text: str) -> Any:
        say = lambda out: (out.tool_start(0, "c1", "add"), out.tool_input(0, text))
        return speak(say, finish="tool_calls")

    provider = Listed(calling("{nonsense"), calling('{"n": 1}'))
    clock = Clock()
    is_malformed = lambda error: isinstance(error, d.MalformedToolCallError)
    model = retry(provider, clock, classifier=is_malformed)
    assert (await model.complete("hi", [d.Tool("add", "", parameters=SCHEMA)])).tool_calls[
        0
    ].arguments == {"n": 1}
    provider.answers = [d.UnavailableError("down"), "never asked"]
    with pytest.raises(d.UnavailableError):
        await model.complete("hi")


async def test_retry_classifier_is_not_called_for_a_cancelled_call() -> None:
    provider = Listed(d.CallCancelledError("stop"))
    clock = Clock()
    asked: list[d.ProviderError] = []
    model = retry(provider, clock, classifier=lambda error: asked.append(error) or True)
    with pytest.raises(d.CallCancelledError):
        await model.complete("hi")
    assert asked == []


async def test_failing_on_retry_callback_does_not_fail_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[tuple[str, int, float]] = []

    def watch(error: d.ProviderError, attempt: int, wait: float) -> None:
        told.append((type(error).__name__, attempt, wait))
        raise RuntimeError("an observer's own fault")

    errors = d.UnavailableError("1"), d.RateLimitError("2", retry_after=7)
    provider = Listed(*errors, "ok")
    clock = Clock()
    with caplog.at_level(logging.WARNING, "dragoman"):
        assert (await retry(provider, clock, on_retry=watch).complete("hi")).text == "ok"
    assert told == [("UnavailableError", 0, 1.0), ("RateLimitError", 1, 7)]
    assert caplog.text.count("on_retry failed") == 2


BASE = d.RuntimeConfig(temperature=0.0, max_tokens=10, seed=7, extras={"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("overrides", "temperatures", "max_tokens", "extras"),
    [
        (None, [0.0] * 4, [10] * 4, [{"a": 1, "b": 2}] * 4),
        ([{"temperature": 0.5}], [0.0, 0.5, 0.5, 0.5], [10] * 4, [{"a": 1, "b": 2}] * 4),
        ([d.RuntimeConfig(temperature=0.3, max_tokens=20), {"temperature": 0.9}],
         [0.0, 0.3, 0.9, 0.9], [10, 20, 10, 10], [{"a": 1, "b": 2}] * 4),
        ([{"extras": {"b": 3, "c": 4, "a": None}}], [0.0] * 4, [10] * 4,
         [{"a": 1, "b": 2}, *[{"a": 1, "b": 3, "c": 4}] * 3]),
    ],
)  # fmt: skip
async def test_per_attempt_overrides_do_not_change_the_first_attempt(
    overrides: Any, temperatures: list[float], max_tokens: list[int], extras: list[dict[str, Any]]
) -> None:
    provider = Listed(*[d.UnavailableError("down") for _ in range(3)], "ok")
    clock = Clock()
    config = d.RuntimeConfig(temperature=0.0, max_tokens=10, seed=7, extras={"a": 1, "b": 2})
    await retry(provider, clock, max_retries=3, per_attempt_override=overrides).complete(
        "hi", config=config
    )
    assert [each.config.temperature for each in provider.requests] == temperatures
    assert [each.config.max_tokens for each in provider.requests] == max_tokens
    assert [each.config.extras for each in provider.requests] == extras
    assert {each.config.seed for each in provider.requests} == {7}
    assert config == BASE


# --- reask: correcting a rejected answer -------------------------------------------------------


def reasons(provider: Listed) -> list[str | None]:
    return [each.metadata.get(RETRY_REASON) for each in provider.requests]


async def test_reask_sends_the_rejected_answer_and_the_callers_correction() -> None:
    provider = Listed(reply("not json"), reply('{"n": "x"}'), reply('{"n": 3}'))
    clock = Clock()
    asked: list[str] = []

    def build(error: d.StructuredOutputError) -> str:
        asked.append(error.output_content)
        return f"wrong, number {len(asked)}"

    messages = (d.User("a number"),)
    model = retry(provider, clock, reask=build)
    answer = await model.complete(messages, response_schema=SCHEMA)
    assert answer.parsed == {"n": 3}
    assert [tuple(each.messages) for each in provider.requests] == [
        messages,
        (*messages, d.Assistant("not json"), d.User("wrong, number 1")),
        (*messages, d.Assistant("not json"), d.User("wrong, number 1"), d.Assistant('{"n": "x"}'),
         d.User("wrong, number 2")),
    ]  # fmt: skip
    assert reasons(provider) == [None, "reask", "reask"]
    assert clock.slept == []
    assert messages == (d.User("a number"),)


async def test_corrections_count_as_retries_and_none_is_built_after_the_last_attempt() -> None:
    provider = Listed(*[reply("not json")] * 3)
    clock = Clock()
    built: list[object] = []
    model = retry(provider, clock, reask=lambda error: built.append(error) or "again")
    with pytest.raises(d.StructuredOutputError) as caught:
        await model.complete("hi", response_schema=SCHEMA)
    assert len(provider.requests) == 3
    assert len(built) == 2
    assert caught.value.response is not None
    assert caught.value.response.text == "not json"


async def test_transient_failure_adds_no_correction_to_the_messages() -> None:
    answers = (reply("bad"), d.UnavailableError("down"), reply('{"n": 1}'))
    provider = Listed(*answers)
    clock = Clock()
    model = retry(provider, clock, reask=lambda _: "again")
    answer = await model.complete("hi", response_schema=SCHEMA)
    assert answer.parsed == {"n": 1}
    assert [len(each.messages) for each in provider.requests] == [1, 3, 3]
    assert reasons(provider) == [None, "reask", "transient"]


async def test_events_of_rejected_answers_do_not_reach_the_caller() -> None:
    provider = Listed(reply("bad"), reply('{"n": 1}'))
    clock = Clock()
    model = retry(provider, clock, reask=lambda _: "again")
    heard, error = await collect(model.events(build_request("hi", response_schema=SCHEMA)))
    assert error is None
    d.check_events(heard)
    assert heard[-1].parsed == {"n": 1}  # type: ignore[union-attr]


async def test_events_of_the_last_rejected_answer_precede_its_error() -> None:
    provider = Listed(reply("bad 1"), reply("bad 2"))
    clock = Clock()
    model = retry(provider, clock, max_retries=1, reask=lambda _: "again")
    heard, error = await collect(model.events(build_request("hi", response_schema=SCHEMA)))
    assert isinstance(error, d.StructuredOutputError)
    d.check_events(heard)
    assert heard[-1].final_content[0].text == "bad 2"  # type: ignore[union-attr]


async def test_invalid_answer_is_not_corrected_after_the_first_event_of_a_stream() -> None:
    provider = Listed(reply("bad"), reply('{"n": 1}'))
    clock = Clock()
    model = retry(provider, clock, reask=lambda _: "again")
    heard, error = await collect(
        model.events(build_request("hi", response_schema=SCHEMA, stream=True))
    )
    assert isinstance(error, d.StructuredOutputError)
    assert len(provider.requests) == 1
    d.check_events(heard)


async def test_correction_of_an_empty_answer_adds_no_assistant_message() -> None:
    provider = Listed(speak(usage=USAGE), reply('{"n": 1}'))
    clock = Clock()
    model = retry(provider, clock, reask=lambda _: "say something")
    await model.complete("hi", response_schema=SCHEMA)
    assert tuple(provider.requests[1].messages) == (d.User("hi"), d.User("say something"))


@pytest.mark.parametrize("text", ["", None, 3])
async def test_error_names_a_reask_function_that_returns_no_text(text: Any) -> None:
    provider = Listed(reply("bad"))
    clock = Clock()
    with pytest.raises(ValueError, match="reask"):
        await retry(provider, clock, reask=lambda _: text).complete("hi", response_schema=SCHEMA)


async def test_reask_and_per_attempt_overrides_work_together() -> None:
    provider = Listed(reply("bad"), reply('{"n": 1}'))
    clock = Clock()
    model = retry(
        provider, clock, reask=lambda _: "again", per_attempt_override=[{"temperature": 0.9}]
    )
    await model.complete("hi", response_schema=SCHEMA, config={"temperature": 0.1})
    sent = [(len(each.messages), each.config.temperature) for each in provider.requests]
    assert sent == [(1, 0.1), (3, 0.9)]


# --- cancelling a call between attempts --------------------------------------------------------


@pytest.fixture
async def waiting() -> tuple[d.Retry, Listed, asyncio.Event]:
    """Return a retry that waits for ever, its provider, and the event that it waits."""
    provider = Listed(d.UnavailableError("down"), "never asked")
    waits = asyncio.Event()

    async def sleep(_: float) -> None:
        waits.set()
        await asyncio.Event().wait()

    return d.Retry(provider, sleep=sleep), provider, waits


async def test_cancelling_ends_the_wait_between_attempts(waiting: Any) -> None:
    model, provider, waits = waiting
    call = asyncio.ensure_future(model.complete("hi", request_id="r1"))
    await waits.wait()
    assert await model.cancel("r1")
    with pytest.raises(d.CallCancelledError):
        await call
    assert len(provider.requests) == 1
    assert not await model.cancel("r1")


async def test_stream_cancelled_between_attempts_is_closed(waiting: Any) -> None:
    model, _, waits = waiting
    stream = model.stream("hi")
    reading = asyncio.ensure_future(collect(stream))
    await waits.wait()
    assert await stream.cancel()
    heard, _ = await reading
    d.check_events(heard)
    assert heard[-1].finish_reason == "cancelled"


# --- settings of the retry middleware ----------------------------------------------------------


OVERRIDE = "per_attempt_override"


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("max_retries", [-1, 1.5, True, 101, None], "max_retries"),
        ("deadline", [0, -1, math.nan, math.inf, "5", 1e300, 10**400], "deadline"),
        ("backoff", [3], "backoff"),
        ("classifier", ["transient"], "classifier"),
        ("on_retry", [object()], "on_retry"),
        ("reask", ["again"], "reask"),
        (OVERRIDE, [{"temperature": 1}], OVERRIDE),
        (OVERRIDE, [[{"temprature": 1}]], OVERRIDE + r"\[0\].*temprature"),
        (OVERRIDE, [[{}, {"seed": "x"}]], OVERRIDE + r"\[1\].*seed"),
    ],
)
def test_error_names_an_invalid_setting(name: str, values: list[Any], field: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=field):
            d.Retry(Listed(), **{name: value})


async def test_on_retry_callback_must_not_be_a_coroutine_function() -> None:
    async def watch(*_: Any) -> None: ...

    with pytest.raises(ValueError, match="on_retry must be a plain function"):
        d.Retry(Listed(), on_retry=watch)


def test_nested_retries_are_rejected() -> None:
    inner = d.Retry(Listed())
    for wrapped in (inner, d.Fallback([inner, Listed(name="other")])):
        with pytest.raises(ValueError, match="remove the inner Retry"):
            d.Retry(wrapped)


def test_retry_requires_a_provider() -> None:
    with pytest.raises(TypeError, match="Retry: provider must be a Provider, not str"):
        d.Retry("openai:m")  # type: ignore[arg-type]


async def test_exceptions_that_are_not_provider_errors_are_not_retried() -> None:
    provider = Listed(ZeroDivisionError("bug"), "never asked")
    clock = Clock()
    with pytest.raises(ZeroDivisionError):
        await retry(provider, clock, classifier=lambda _: True).complete("hi")
    assert len(provider.requests) == 1
