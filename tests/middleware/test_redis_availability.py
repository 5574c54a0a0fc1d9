"""RedisAvailability, against a real Redis server: what one process finds, the others skip."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dragoman.errors import AuthenticationError, UnavailableError
from dragoman.middleware import Fallback, RedisAvailability, Thresholds
from tests.listed import Clock, Listed

_names = itertools.count()
Make = Callable[..., RedisAvailability]


@pytest.fixture
async def make(redis_url: str) -> AsyncIterator[Make]:
    made: list[RedisAvailability] = []
    key = f"availability-{next(_names)}"

    def build(**settings: Any) -> RedisAvailability:
        one = RedisAvailability(redis_url, key, thresholds=Thresholds(failures=2), **settings)
        made.append(one)
        return one

    yield build
    for one in made:
        await one.close()


async def settle(*shared: RedisAvailability) -> None:
    """Wait until what was found is written, and let the next call read."""
    for each in shared:
        while each._tasks:
            await next(iter(each._tasks))
        each._next = 0.0


@pytest.mark.parametrize(("error", "failures"), [(UnavailableError("down"), 2), (AuthenticationError("key"), 1)])
async def test_what_one_finds_all_skip_and_recovery_is_shared(make: Make, error: Exception, failures: int) -> None:
    clock = Clock()
    here, there = make(clock=clock), make(clock=clock)
    a, b = Listed(error, name="a", repeat=True), Listed("b", name="b", repeat=True)
    one, two = Fallback([a, b], here, clock=clock), Fallback([a, b], there, clock=clock)
    for _ in range(failures):
        await one.complete("hi")
    await settle(here, there)
    assert (await two.complete("hi")).text == "b"
    assert len(a.requests) == failures
    assert not there.is_available("a", "m")
    clock.now += 400  # Redis counts its own seconds, so only the local memory says that a probe is due
    for state in (*here._providers.values(), *here._models.values()):
        state.failed = min(state.failed, clock.now - 400)
    here._next = clock.now + 100
    a.answers = ["a again"]
    assert (await one.complete("hi")).text == "a again"
    await settle(here, there)
    assert (await two.complete("hi")).text == "a again"
    assert there.is_available("a", "m")


async def test_without_redis_each_process_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    lost = RedisAvailability("redis://127.0.0.1:1/0", thresholds=Thresholds(failures=1))
    a, b = Listed(UnavailableError("down"), name="a", repeat=True), Listed("b", name="b", repeat=True)
    model = Fallback([a, b], lost)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert (await model.complete("hi")).text == "b"
        await lost.close()
    assert len(a.requests) == 1
    assert "availability is not shared" in caplog.text
