"""Test that every attempt of a call has a record in the session."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

import dragoman
from dragoman import Session
from dragoman.calls import TURN, RoutingSwitched
from dragoman.events import Event, MessageStart
from dragoman.log import SqliteLog
from dragoman.messages import Request
from dragoman.middleware import Fallback, NotConfigured, Observe, Retry, StrategyName
from dragoman.provider import Provider

from ..listed import Clock, Listed
from .playing import ALL, anthropic_reply, of, over_wire, play, types

BUSY = dragoman.OverloadedError
CALLS = (
    "llm.call_started", "llm.call_failed", "routing.switched", "message.recorded",
    "llm.call_completed",
)  # fmt: skip


def retry(provider: Provider, **given: Any) -> Retry:
    clock = Clock()
    return Retry(provider, sleep=clock.sleep, clock=clock, **given)


class Named(Listed):
    """Act as a provider whose start event contains the provider's name."""

    async def events(self, request: Request) -> AsyncIterator[Event]:
        async for event in super().events(request):
            yield replace(event, provider=self.name) if isinstance(event, MessageStart) else event


async def test_every_attempt_of_a_retried_call_is_recorded(log: SqliteLog) -> None:
    sent = {"request-id": "req_1", "retry-after": "3", "cookie": "x"}
    limited = BUSY("busy", status=529, retry_after=3, headers=sent)
    answers = [limited, BUSY("busy", status=529), "Done.", *[BUSY("busy")] * 3]
    session = Session(retry(Listed(*answers)), (), ALL, log)
    await session.run("Go.")
    with pytest.raises(BUSY) as caught:
        await session.run("Again.")
    assert caught.value.retry_count == 2
    records = [record for record in log.read(session.id) if record.type in CALLS]
    assert types(records)[1:8] == [
        *["llm.call_started", "llm.call_failed"] * 2, "llm.call_started",
        "message.recorded", "llm.call_completed",
    ]  # fmt: skip
    assert [each.attempt for each in of(records, "llm.call_started")] == [0, 1, 2] * 2
    first, second, *_ = failed = of(records, "llm.call_failed")
    assert first.status == 529
    assert first.error_class == "rate_limit"
    assert first.wait_seconds == 3.0
    assert first.provider_request_id == "req_1"
    assert first.rate_limits == {"retry-after": "3"}
    assert second.wait_seconds > 0
    attempts = [(each.retry_count, each.attempt) for each in failed]
    assert attempts == [(0, 0), (1, 1), (0, 0), (1, 1), (2, 2)]
    assert [each.attempt for each in of(records, "llm.call_completed")] == [2]


async def test_a_fallback_whose_first_candidate_answers_records_no_switch(log: SqliteLog) -> None:
    records = await play(log, Fallback([Named("Done.", name="a"), Named(name="b")]))
    assert "routing.switched" not in types(records)
    assert of(records, "llm.call_completed")[0].provider == "a"


async def test_a_fallback_switch_is_recorded_before_the_reply(log: SqliteLog) -> None:
    first = retry(Named(BUSY("busy"), BUSY("busy"), name="a"), max_retries=1)
    found = await play(log, Fallback([first, Named("Done.", name="b", model="n")]))
    records = [record for record in found if record.type in CALLS]
    assert types(records)[1:] == [
        *["llm.call_started", "llm.call_failed"] * 2, "routing.switched",
        "llm.call_started", "message.recorded", "llm.call_completed",
    ]  # fmt: skip
    assert [each.provider for each in of(records, "llm.call_failed")] == ["a", "a"]
    request_id = of(records, "llm.call_started")[0].request_id
    switch = RoutingSwitched(
        from_="a:m", to="b:n", reason="overloaded", error_class="rate_limit", request_id=request_id
    )
    assert of(records, "routing.switched") == [switch]
    assert [each.model for each in of(records, "llm.call_started")] == ["m|n", "m", "n"]
    said = of(records, "message.recorded")[1]
    assert said.provider == "b"
    assert said.routing.passed_over == {"a:m": "overloaded"}


async def test_when_all_candidates_fail_each_failure_is_recorded_once(log: SqliteLog) -> None:
    group = Fallback([Named(BUSY("x"), name="a"), Named(BUSY("y"), name="b")])
    with pytest.raises(BUSY):
        await play(log, group, session_id="s1")
    failed = of(list(log.read("s1")), "llm.call_failed")
    assert [each.provider for each in failed] == ["a", "b"]


async def test_a_failed_attempt_is_billed_once_if_no_other_attempt_follows(log: SqliteLog) -> None:
    """Regression: the call's end repeated the tokens of the attempt before it."""
    late = dragoman.TimedOutError("late", which="read")
    small = Named(name="b", capabilities={"max_context_tokens": 1})
    session = Session(Fallback([Named(late, name="a"), small]), (), ALL, log)
    with pytest.raises(dragoman.ContextOverflowError):
        await session.run("Go.")
    waits = asyncio.Event()

    async def wait(seconds: float) -> None:
        waits.set()
        await asyncio.Event().wait()

    other = Session(Retry(Named(late), sleep=wait), (), ALL, log)
    running = asyncio.ensure_future(other.run("Go."))
    await waits.wait()
    await other.cancel()
    await running
    for name, billed in ((session.id, [True, False]), (other.id, [True])):
        failed = of(list(log.read(name)), "llm.call_failed")
        assert [each.input_tokens is not None for each in failed] == billed
        assert len(of(list(log.read(name)), "llm.call_started")) == len(failed)


@pytest.mark.parametrize(
    ("first", "strategy", "routes"),
    [
        (Named(name="a", capabilities={"max_context_tokens": 1}), "fallback",
         ["routing.switched"]),
        (NotConfigured("a", "m", "set A"), "fallback", ["routing.switched"]),
        (Named(BUSY("x"), name="a"), "fallback",
         ["llm.call_failed", "routing.switched", "llm.call_started"]),
        (Named(name="a"), "weighted", ["routing.chosen"]),
    ],
)  # fmt: skip
async def test_each_start_of_a_call_to_a_group_has_one_end(
    log: SqliteLog, first: Provider, strategy: StrategyName, routes: list[str]
) -> None:
    group = Fallback(
        [first, Named("Yes.", name="b", model="mb")], strategy=strategy,
        weights=[1, 5] if strategy == "weighted" else None,
    )  # fmt: skip
    records = await play(log, group)
    kinds = [kind for kind in types(records) if kind.startswith(("llm.", "routing."))]
    assert kinds == ["llm.call_started", *routes, "llm.call_completed"]
    [_, said] = of(records, "message.recorded")
    assert said.routing.mode == "rule"
    assert said.routing.asked == f"fallback:{first.model}"
    assert said.routing.chosen == "b:mb"
    assert said.routing.reason.startswith(strategy)


async def test_requests_and_observers_receive_session_turn_and_metadata(log: SqliteLog) -> None:
    observed: list[Any] = []
    model = Named("Done.")
    provider = Observe(model, observed.append)
    session = Session(provider, (), ALL, log, metadata={"team": "red", "size": 3})
    await session.run("Go.")
    await provider.close()
    [request] = model.requests
    assert request.session_id == session.id
    assert request.metadata == {"team": "red", TURN: "t1"}
    assert {(event.session_id, event.turn_id) for event in observed} == {(session.id, "t1")}


async def test_request_id_and_rate_limits_of_a_successful_call_are_recorded(
    log: SqliteLog,
) -> None:
    limits = {"anthropic-ratelimit-requests-remaining": "9"}
    model = over_wire((200, {"request-id": "req_7", **limits}, anthropic_reply("Hi.")))
    records = await play(log, model, config={"max_tokens": 9})
    [completed] = of(records, "llm.call_completed")
    assert completed.provider_request_id == "req_7"
    assert completed.response_model == "m-2026"
    assert completed.rate_limits == limits
