"""Test strategies: the shares of weighted candidates, and how much balancing by load or latency
improves on round-robin.
"""

import asyncio
import heapq
import random
from collections import Counter
from decimal import Decimal
from statistics import mean, quantiles
from typing import Any

import pytest

from dragoman.calls import RoutingChosen
from dragoman.errors import UnavailableError
from dragoman.middleware import Availability, Fallback, NotConfigured, Thresholds, describe
from dragoman.middleware.strategy import Strategy, make_strategy
from dragoman.prices import Match, PriceRow
from dragoman.validate import build_request
from tests.listed import Clock, Listed, reply
from tests.session.playing import call, look, propose

REQUEST = build_request("hi", model="m")


def named(*names: str, **settings: Any) -> list[Listed]:
    return [Listed("hi", name=name, repeat=True, **settings) for name in names]


@pytest.mark.parametrize("weights", [[3, 1], [1, 1, 1], [70, 20, 9, 1], [0.5, 0.25, 0.25]])
def test_weighted_strategy_distributes_calls_by_weight(weights: list[float]) -> None:
    strategy = make_strategy("weighted", len(weights), weights)
    served = Counter([strategy.order([], range(len(weights)), REQUEST)[0] for _ in range(10_000)])
    for number, weight in enumerate(weights):
        assert served[number] == pytest.approx(10_000 * weight / sum(weights), rel=0.02)


async def test_calls_of_an_unavailable_candidate_go_to_the_others() -> None:
    a, b, c = named("a", "b", "c")
    model = Fallback([a, b, c], strategy="weighted", weights=[2, 1, 1], clock=Clock())
    for _ in range(400):
        await model.complete("hi")
    assert [len(each.requests) for each in (a, b, c)] == [200, 100, 100]
    a.answers = [UnavailableError("down")]
    for _ in range(400):
        await model.complete("hi")
    asked = len(a.requests) - 200
    # After five failures the candidate is unavailable, and the others receive its calls by weight.
    assert asked == 5
    assert abs(len(b.requests) - len(c.requests)) <= 2 * asked
    assert "strategy='weighted', weights=[2, 1, 1]" in describe(model)


async def test_least_busy_strategy_prefers_the_idle_candidate() -> None:
    gate = asyncio.Event()
    a = Listed([gate], name="a")
    b = Listed("b", name="b", repeat=True)
    model = Fallback([a, b], strategy="least_busy")
    stuck = asyncio.ensure_future(model.complete("hi"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(5):
        assert (await model.complete("hi")).text == "b"
    stuck.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stuck
    a.answers = ["a"]
    assert (await model.complete("hi")).text == "a"  # a cancelled call does not count as running


async def test_lowest_latency_strategy_prefers_the_fastest_and_retests_the_others() -> None:
    clock = Clock()
    slow, fast = named("slow", "fast")

    def taking(provider: Listed, seconds: float) -> None:
        def answer(request: Any) -> Any:
            clock.now += seconds
            return reply("hi")(request)

        provider.answers = [answer]

    taking(slow, 2.0)
    taking(fast, 0.1)
    model = Fallback([slow, fast], strategy="lowest_latency", half_life=30, clock=clock)
    for _ in range(50):
        await model.complete("hi")
    assert len(slow.requests) == 1
    taking(slow, 0.01)
    for _ in range(3000):
        await model.complete("hi")
    # The upstream that was slow before is fast now, and the strategy has measured this.
    assert len(slow.requests) > len(fast.requests)


async def test_cheapest_strategy_compares_the_price_of_each_request() -> None:
    short, long, unknown = named("short", "long", "unknown")

    def row(name: str, paid: str, paid_out: str) -> PriceRow:
        return PriceRow(name, Match(equals=("m",)), input=Decimal(paid), output=Decimal(paid_out))

    short.priced_as = row("short", "10", "1")
    long.priced_as = row("long", "1", "10")
    model = Fallback([unknown, short, long], strategy="cheapest")
    await model.complete("hi", max_tokens=1000)
    assert [len(each.requests) for each in (short, long, unknown)] == [1, 0, 0]
    await model.complete("hello " * 5000, max_tokens=10)
    assert [len(each.requests) for each in (short, long, unknown)] == [1, 1, 0]
    short.answers = long.answers = [UnavailableError("down")]
    await model.complete("hi", max_tokens=10)
    assert len(unknown.requests) == 1


async def test_most_reliable_strategy_prefers_the_fewest_faulty_tool_calls() -> None:
    request = {"tools": [look], "check_calls": False}
    good, bad, mute = [Listed(repeat=True, name=name) for name in ("good", "bad", "mute")]
    good.answers = [propose(call("look", word="sea"))]
    bad.answers = [propose(call("look", word="sea"), call("look", call_id="call_2", word=3))]
    mute.answers = ["no calls"]
    model = Fallback([mute, bad, good], strategy="most_reliable", min_sample=5)
    for _ in range(15):
        await model.complete("hi", **request)
    # Each candidate gets the sample, even the one that never calls a tool.
    assert [len(each.requests) for each in (mute, bad, good)] == [5, 5, 5]
    for _ in range(20):
        async with model.stream("hi", **request) as stream:
            assert [event async for event in stream]
    assert [len(each.requests) for each in (mute, bad, good)] == [5, 5, 25]
    [chosen] = [each for each in stream.reply.history if isinstance(each, RoutingChosen)]
    assert chosen.chosen == "good:m"
    assert chosen.reason == (
        "most_reliable: 0 of its 24 tool calls were faulty, at most 13.8% with 95 % confidence"
    )
    good.answers = [propose(call("glance", word="sea"))]
    for _ in range(60):
        await model.complete("hi", **request)
    assert len(bad.requests) > 5  # the other one is better now
    await model.complete("hi")
    assert len(mute.requests) == 6  # without tools, the candidates are tried in order
    assert "strategy='most_reliable', min_sample=5" in describe(model)


async def test_every_strategy_tries_unavailable_candidates_last() -> None:
    a, b = named("a", "b")
    model = Fallback([NotConfigured("x", "m", "no key"), a, b], strategy="weighted")
    for _ in range(10):
        await model.complete("hi")
    assert len(a.requests) == 5
    assert len(b.requests) == 5


async def test_thresholds_of_the_circuit_breaker_are_configurable() -> None:
    clock = Clock()
    a = Listed(UnavailableError("down"), name="a", repeat=True)
    (b,) = named("b")
    availability = Availability(None, Thresholds(failures=2, quiet_seconds=10), clock=clock)
    model = Fallback([a, b], availability, clock=clock)
    for _ in range(5):
        await model.complete("hi")
    assert len(a.requests) == 2
    clock.now += 10
    await model.complete("hi")
    assert len(a.requests) == 3
    with pytest.raises(ValueError, match="availability: failures must be a whole number from 1"):
        Thresholds(failures=0)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"strategy": "random"}, "strategy must be one of fallback, weighted"),
        ({"strategy": "weighted", "weights": [1]}, "one number for each of the 2"),
        ({"strategy": "weighted", "weights": [1, -1]}, r"weights\[1\] must be a number"),
        ({"strategy": "lowest_latency", "half_life": 0}, "half_life must be"),
    ],
)
def test_invalid_settings_are_rejected(settings: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Fallback(named("a", "b"), **settings)


# --- a simulation of load balancing ------------------------------------------------------------

# Seconds that a call takes at each of three upstreams; the last is ten times slower.
SERVICE = (0.2, 0.2, 2.0)
SLOTS = 8  # calls that an upstream handles at the same time; further calls wait in its queue


def simulate(name: str, *, calls: int = 5000, rate: float = 40.0) -> list[float]:
    """Simulate calls that arrive at random, ``rate`` per second, and return their latencies."""
    draw = random.Random(7)
    now = [0.0]
    strategy: Strategy = make_strategy(name, len(SERVICE), clock=lambda: now[0])
    # The time at which each slot of each upstream becomes free.
    free = [[0.0] * SLOTS for _ in SERVICE]
    ends: list[tuple[float, int, float]] = []
    latencies = []
    for _ in range(calls):
        now[0] += draw.expovariate(rate)
        arrival = now[0]
        while ends and ends[0][0] <= arrival:
            now[0], number, took = heapq.heappop(ends)
            strategy.answered(number, took)
            strategy.ended(number, took, failed=False)
        now[0] = arrival
        number = strategy.order([], range(len(SERVICE)), REQUEST)[0]
        strategy.began(number)
        start = max(arrival, heapq.heappop(free[number]))
        end = start + draw.uniform(0.5, 1.5) * SERVICE[number]
        heapq.heappush(free[number], end)
        heapq.heappush(ends, (end, number, end - arrival))
        latencies.append(end - arrival)
    return latencies


@pytest.mark.parametrize(
    ("rate", "gain"), [(9.0, 1.8), (40.0, 20.0)], ids=["half load", "overload of the slow one"]
)
def test_load_balancing_beats_round_robin_if_one_upstream_is_slow(
    rate: float, gain: float
) -> None:
    found = {
        name: simulate(name, rate=rate) for name in ("weighted", "least_busy", "lowest_latency")
    }
    for name, latencies in found.items():
        print(
            f"{rate}/s {name}: mean {mean(latencies):.2f} s, p95 "
            f"{quantiles(latencies, n=20)[-1]:.2f} s"
        )
    worst = mean(found["weighted"])  # with equal weights, the weighted strategy is round-robin
    assert mean(found["least_busy"]) < worst / gain
    assert mean(found["lowest_latency"]) < worst / gain
    assert (
        quantiles(found["lowest_latency"], n=20)[-1]
        < quantiles(found["weighted"], n=20)[-1] / gain
    )
