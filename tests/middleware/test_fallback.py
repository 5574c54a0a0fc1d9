"""Test Fallback: which candidates are called or skipped and why, and that none is tried after the
first event.
"""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

import dragoman as d
from dragoman.capabilities import UNKNOWN, Fact
from dragoman.middleware import (
    Availability,
    NotConfigured,
    ProviderRecovered,
    ProviderUnavailable,
    RoutingSwitched,
)
from dragoman.validate import build_request
from tests.listed import Clock, Listed, broken, collect, reply

from .conftest import ERRORS

LEADS_ON = (
    d.AuthenticationError, d.ContextOverflowError, d.InvalidModelError, d.QuotaExceededError,
    d.UnsupportedContentError, d.UnsupportedFeatureError,
)  # fmt: skip


def pair(
    first: Any, second: Any = "from b", **settings: Any
) -> tuple[Listed, Listed, d.Fallback, list[Any]]:
    a = first if isinstance(first, Listed) else Listed(first, name="a", model="big")
    b = second if isinstance(second, Listed) else Listed(second, name="b", model="small")
    told: list[Any] = []
    return a, b, d.Fallback([a, b], on_event=told.append, clock=Clock(), **settings), told


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("stream", [False, True])
async def test_only_certain_errors_lead_to_the_next_candidate(
    kind: type[d.ProviderError], stream: bool
) -> None:
    a, b, model, told = pair(kind("no"))
    request = build_request("hi", stream=stream, model="big")
    heard, error = await collect(model.events(request))
    switches = [event for event in told if isinstance(event, RoutingSwitched)]
    if kind.transient or issubclass(kind, LEADS_ON):
        assert error is None
        d.check_events(heard)
        reason = kind.kind if kind.kind != "unknown" else kind.error_class
        assert switches == [
            RoutingSwitched(
                from_="a:big",
                to="b:small",
                reason=reason,
                error_class=kind.error_class,
                request_id=request.request_id,
            )
        ]
    else:
        assert type(error) is kind
        assert switches == []
    assert [each.model for each in a.requests] == ["big"]
    assert [each.model for each in b.requests] == ["small"] * len(switches)


@pytest.mark.parametrize("stream", [False, True])
async def test_no_other_candidate_is_tried_after_the_first_event(stream: bool) -> None:
    a, b, model, told = pair(broken("half of a", d.StreamInterruptedError("cut")))
    heard, error = await collect(model.events(build_request("hi", stream=stream)))
    assert isinstance(error, d.StreamInterruptedError)
    assert error.response is not None
    assert error.response.text == "half of a"
    assert [event.type for event in heard] == ["message.start", "text.delta", "message.complete"]
    assert len(a.requests) == 1
    assert len(b.requests) == 0
    assert told == []


async def test_error_lists_the_failures_of_all_candidates() -> None:
    a = Listed(d.RateLimitError("slow", provider="a", model="m"), name="a")
    b = Listed(d.AuthenticationError("key", provider="b", model="m"), name="b")
    c = Listed(d.UnavailableError("down", provider="c", model="m"), name="c")
    with pytest.raises(d.UnavailableError) as caught:
        await d.Fallback([a, b, c]).complete("hi")
    assert caught.value.provider == "c"
    first, second = caught.value.__notes__
    assert first.startswith("before that, a:m: rate_limit: a/m: slow")
    assert second.startswith("before that, b:m: auth: b/m: key")


async def test_error_that_ends_the_fallback_lists_earlier_failures() -> None:
    _, _, model, _ = pair(d.UnavailableError("down"), d.InvalidRequestError("bad"))
    with pytest.raises(d.InvalidRequestError) as caught:
        await model.complete("hi")
    assert "before that, a:big: server_error" in caught.value.__notes__[0]


# --- candidates that are skipped before any call -----------------------------------------------

TOOL = d.Tool("t", "", parameters={"type": "object", "properties": {}})
IMAGE = [d.User([d.Image(d.Url("https://example.org/x.png"))])]


@pytest.mark.parametrize(
    ("lacks", "call", "reason"),
    [
        ({"supports_images": False}, {"messages": IMAGE}, "no_vision_support"),
        ({"max_context_tokens": 3}, {"messages": "a" * 400}, "exceeds_context_window"),
        ({"supports_tools": False}, {"messages": "hi", "tools": [TOOL]}, "no_tool_support"),
        ({"supports_system_prompt": False}, {"messages": [d.System("s"), d.User("u")]},
         "no_system_prompt_support"),
        ({"supports_structured_output": False},
         {"messages": "hi", "response_schema": {"type": "object"}},
         "no_structured_output_support"),
        ({"supports_streaming": False}, {"messages": "hi", "stream": True}, "unsupported_feature"),
    ],
)  # fmt: skip
async def test_candidate_that_lacks_a_capability_is_skipped(
    lacks: dict[str, Any], call: dict[str, Any], reason: str
) -> None:
    a = Listed(name="a", capabilities=lacks)
    b = Listed(reply("{}"), name="b")
    told: list[Any] = []
    heard, error = await collect(
        d.Fallback([a, b], on_event=told.append).events(build_request(**call))
    )
    assert error is None
    d.check_events(heard)
    assert a.requests == []
    assert [event.reason for event in told] == [reason]


async def test_several_reasons_to_skip_a_candidate_are_reported_in_a_fixed_order() -> None:
    lacks = {
        "supports_structured_output": False,
        "supports_system_prompt": False,
        "supports_tools": False,
        "max_context_tokens": 1,
        "supports_images": False,
    }
    schema = {"type": "object"}
    call = {"messages": [d.System("s"), *IMAGE], "tools": [TOOL], "response_schema": schema}
    order = []
    availability = Availability(clock=Clock())
    unconfigured: Any = NotConfigured("a", "m", "set A_KEY")
    while lacks:
        told: list[Any] = []
        candidate = unconfigured or Listed(name="a", capabilities=lacks)
        model = d.Fallback([candidate, Listed(reply("{}"), name="b")], availability, told.append)
        _, error = await collect(model.events(build_request(**call)))
        assert error is None
        order.append(told[0].reason)
        if unconfigured:
            unconfigured = None
            admission = availability.admit("a", "m")
            assert admission is not None
            admission.fail(d.AuthenticationError("no"))
        elif order[-1] == "provider_unavailable":
            availability = Availability(clock=Clock())
        else:
            lacks.popitem()
    assert order == [
        "not_configured", "provider_unavailable", "no_vision_support", "exceeds_context_window",
        "no_tool_support", "no_system_prompt_support", "no_structured_output_support",
    ]  # fmt: skip


async def test_candidate_with_unknown_capabilities_is_not_skipped() -> None:
    a, _, model, told = pair(reply("{}"))
    await model.complete([d.System("s"), *IMAGE], [TOOL], response_schema={"type": "object"})
    assert len(a.requests) == 1
    assert told == []


async def test_skip_reason_is_raised_when_all_candidates_are_skipped() -> None:
    a = Listed(name="a", capabilities={"supports_tools": False})
    b = Listed(name="b", capabilities={"max_context_tokens": 1})
    with pytest.raises(d.ContextOverflowError) as caught:
        await d.Fallback([a, b]).complete("a" * 100, [TOOL])
    assert caught.value.provider == "b"
    assert "no_tool_support" in caught.value.__notes__[0]


async def test_unconfigured_candidate_is_never_called_even_inside_other_layers() -> None:
    missing = NotConfigured("a", "m", "the variable A_KEY is not set")
    told: list[Any] = []
    model = d.Fallback([d.Retry(missing), Listed("ok", "ok", name="b")], on_event=told.append)
    for _ in range(2):
        assert (await model.complete("hi")).text == "ok"
    assert [event.reason for event in told] == ["not_configured"] * 2
    assert [event.error_class for event in told] == ["auth"] * 2
    for call in (missing.complete("hi"), d.Retry(missing).complete("hi"), missing.ready()):
        with pytest.raises(d.AuthenticationError, match="A_KEY is not set"):
            await call


# --- availability of candidates ----------------------------------------------------------------


def down_and_up() -> tuple[Listed, Listed]:
    down = Listed(d.UnavailableError("down"), name="a", repeat=True)
    return down, Listed("b", name="b", repeat=True)


async def test_failing_candidate_is_skipped_probed_and_used_again() -> None:
    clock = Clock()
    a, b = down_and_up()
    told: list[Any] = []
    model = d.Fallback([a, b], on_event=told.append, clock=clock)
    for _ in range(8):
        assert (await model.complete("hi")).text == "b"
    assert len(a.requests) == 5
    reasons = [event.reason for event in told if isinstance(event, RoutingSwitched)]
    assert reasons == ["server_error"] * 5 + ["provider_unavailable"] * 3
    clock.now += 300
    await model.complete("hi")
    assert len(a.requests) == 6
    clock.now += 300
    a.answers = ["a is back"]
    assert (await model.complete("hi")).text == "a is back"
    others = [type(event) for event in told if not isinstance(event, RoutingSwitched)]
    assert others == [ProviderUnavailable, ProviderRecovered]
    assert told[-1].downtime_seconds == 600


async def test_other_calls_use_the_next_candidate_while_one_is_probed() -> None:
    clock = Clock()
    gate = asyncio.Event()
    a = Listed(d.AuthenticationError("key"), name="a")
    b = Listed("b", name="b", repeat=True)
    model = d.Fallback([a, b], clock=clock)
    await model.complete("hi")
    clock.now += 300
    a.answers = [lambda request: [gate, *reply("a")(request)]]
    probe = asyncio.ensure_future(model.complete("hi"))
    while len(a.requests) < 2:
        await asyncio.sleep(0)
    assert (await model.complete("hi")).text == "b"
    gate.set()
    assert (await probe).text == "a"
    assert len(a.requests) == 2


async def test_cancelled_probe_allows_another_probe() -> None:
    clock = Clock()
    a = Listed(d.AuthenticationError("key"), name="a")
    b = Listed("b", name="b", repeat=True)
    model = d.Fallback([a, b], clock=clock)
    await model.complete("hi")
    clock.now += 300
    a.answers = [[asyncio.Event()], "a"]
    call = asyncio.ensure_future(model.complete("hi", request_id="r"))
    while len(a.answers) > 1:
        await asyncio.sleep(0)
    await model.cancel("r")
    with pytest.raises(d.CallCancelledError):
        await call
    assert (await model.complete("hi")).text == "a"


async def test_probe_is_repeated_if_the_candidate_lacked_a_capability() -> None:
    clock = Clock()
    a = Listed(d.AuthenticationError("key"), "a", name="a", capabilities={"supports_tools": False})
    model = d.Fallback([a, Listed("b", name="b", repeat=True)], clock=clock)
    await model.complete("hi")
    clock.now += 300
    assert (await model.complete("hi", [TOOL])).text == "b"
    assert (await model.complete("hi")).text == "a"


async def test_exhausted_retries_count_as_one_failure() -> None:
    clock = Clock()
    a, b = down_and_up()
    model = d.Fallback([d.Retry(a, clock=clock, sleep=clock.sleep), b], clock=clock)
    for _ in range(4):
        await model.complete("hi")
    assert len(a.requests) == 12
    assert model.availability.is_available("a", "m")


async def test_failures_after_the_first_event_make_a_candidate_unavailable() -> None:
    a = Listed(*[broken("x", d.UnavailableError("down")) for _ in range(5)], name="a")
    model = d.Fallback([a, Listed("b", name="b")], clock=Clock())
    for _ in range(5):
        await collect(model.events(build_request("hi")))
    assert not model.availability.is_available("a", "m")


async def test_error_has_retry_after_when_all_candidates_are_unavailable() -> None:
    a, b = [Listed(d.AuthenticationError("key"), name=name) for name in "ab"]
    clock = Clock()
    model = d.Fallback([a, b], clock=clock)
    with pytest.raises(d.AuthenticationError):
        await model.complete("hi")
    clock.now += 100
    with pytest.raises(d.UnavailableError, match="not asked for now, after auth_error") as caught:
        await model.complete("hi")
    assert caught.value.retry_after == 200
    assert len(a.requests) == 1
    assert len(b.requests) == 1


async def test_availability_can_be_shared_by_several_fallbacks() -> None:
    clock = Clock()
    told = []
    availability = Availability(told.append, clock=clock)
    one = Listed(d.AuthenticationError("key"), name="a")
    two = Listed(name="a")
    await d.Fallback([one, Listed("b", name="b")], availability).complete("hi")
    model = d.Fallback([two, Listed("b", name="b")], availability)
    assert (await model.complete("hi")).text == "b"
    assert two.requests == []
    assert [type(event) for event in told] == [ProviderUnavailable]


# --- routing events ----------------------------------------------------------------------------


def test_routing_events_are_encoded_with_the_names_of_the_adapter_contract() -> None:
    switched = RoutingSwitched(
        from_="a:m", to="b:m", reason="rate_limit", error_class="rate_limit", request_id="r1"
    )
    assert msgspec.json.decode(msgspec.json.encode(switched)) == {
        "type": "routing.switched", "from": "a:m", "to": "b:m", "reason": "rate_limit",
        "error_class": "rate_limit", "request_id": "r1",
    }  # fmt: skip
    down = ProviderUnavailable("p", "model_specific", "5_consecutive_failures", ("m",))
    assert set(msgspec.to_builtins(down)) == {
        "type", "provider", "scope", "models_affected", "trigger_reason",
    }  # fmt: skip
    up = ProviderRecovered("p", "model_specific", 1.0, ("m",))
    assert set(msgspec.to_builtins(up)) == {
        "type", "provider", "scope", "models_recovered", "downtime_seconds",
    }  # fmt: skip
    names = [each.type.removeprefix("routing.") for each in (switched, down, up)]
    assert names == ["switched", "provider_unavailable", "provider_recovered"]


async def test_failing_event_listener_does_not_affect_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def listen(_: object) -> None:
        raise RuntimeError("a listener's own fault")

    a = Listed(d.AuthenticationError("no"), name="a")
    b = Listed("b", name="b")
    model = d.Fallback([a, b], on_event=listen)
    with caplog.at_level(logging.WARNING, "dragoman"):
        assert (await model.complete("hi")).text == "b"
    assert caplog.text.count("on_event failed") == 2  # of the switch and of the outage
    assert not model.availability.is_available("a", "m")


# --- validity, readiness and closing of candidates ---------------------------------------------


@pytest.mark.parametrize(
    ("candidates", "match"),
    [
        ([], "candidates is empty"),
        (Listed(), "list of providers"),
        (["openai:m"], r"candidates\[0\] must be a Provider, not str"),
        ([Listed(), Listed()], r"candidates\[1\] is listed:m, which is in the list before it"),
        ([Listed(), d.Retry(Listed())], r"candidates\[1\]"),
    ],
)
def test_error_names_invalid_candidates(candidates: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        d.Fallback(candidates)


async def test_fallback_is_ready_if_one_candidate_is_ready() -> None:
    a = Listed(d.NetworkError("gone"), name="a")
    b = Listed("fine", name="b")
    await d.Fallback([a, b]).ready()
    with pytest.raises(d.NetworkError, match="gone too") as caught:
        await d.Fallback([a, Listed(d.NetworkError("gone too"), name="c")]).ready()
    assert "before that, a:m: network" in caught.value.__notes__[0]


async def test_all_candidates_are_closed_even_if_one_fails() -> None:
    class Stuck(Listed):
        async def close(self) -> None:
            raise RuntimeError("stuck")

    b = Listed(name="b")
    with pytest.raises(RuntimeError, match="stuck"):
        await d.Fallback([Stuck(name="a"), b]).close()
    assert b.closed == 1


def test_swap_plan_and_token_estimate_use_the_first_candidate() -> None:
    a, _, model, _ = pair("x")
    assert model.plan("hello").target == a.plan("hello").target
    assert model.estimate_input_tokens("hello") == a.estimate_input_tokens("hello")
    assert d.describe(model) == "Fallback(name='fallback')\n  1. Listed a:big\n  2. Listed b:small"


# --- the limits of a group ---------------------------------------------------------------------


def limited(name: str, window: int | None, output: int | None = None) -> Listed:
    known = {"max_context_tokens": window, "max_output_tokens": output}
    return Listed("Yes.", name=name, repeat=True, capabilities=known)


def test_limits_of_a_group_are_the_least_of_its_candidates() -> None:
    known = d.Fallback([limited("a", 16_000, 500), limited("b", 9_000, 900)]).capabilities
    assert known.max_context_tokens == Fact(9_000, "declared", by="b:m")
    assert known.max_output_tokens == Fact(500, "declared", by="a:m")
    known = d.Fallback([limited("a", None), limited("b", 9_000, 900)]).capabilities
    assert known.max_context_tokens.by == "b:m"
    assert known.max_output_tokens == UNKNOWN
    assert d.Fallback([limited("a", None)]).capabilities == d.Capabilities()


@pytest.mark.parametrize("wrap", [lambda group: group, d.Retry, lambda group: d.Fallback([group])])
async def test_group_accepts_a_request_that_fits_only_its_largest_window(wrap: Any) -> None:
    small = limited("a", 1_000)
    large = limited("b", 100_000)
    await wrap(d.Fallback([small, large])).complete("word " * 20_000)
    assert len(small.requests) == 0
    assert len(large.requests) == 1


def test_swap_plan_of_a_group_is_that_of_the_first_candidate_that_accepts() -> None:
    small = limited("a", 1_000)
    large = limited("b", 100_000)
    long = [d.User("word " * 20_000)]
    assert d.Fallback([small, large]).plan(long).target == "b:m"
    assert d.Fallback([small, large]).plan("short").target == "a:m"
    assert d.Fallback([small, limited("c", 500)]).plan(long).target == "a:m"
