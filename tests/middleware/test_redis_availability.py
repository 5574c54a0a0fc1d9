"""Test RedisAvailability with a real Redis server: if a process finds a model unavailable, all
processes skip the model.
"""

# ruff: noqa: SLF001 - the time of the next read, and the reads under way, are not public

import itertools
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import AuthenticationError, UnavailableError
from dragoman.middleware import Fallback, RedisAvailability, Thresholds, walk
from dragoman.registry import Registry
from tests.listed import Clock, Listed
from tests.server import serve
from tests.test_groups import answer, fail, two

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
    """Wait until pending changes are written to Redis, and make the next call read the state from
    Redis.
    """
    for each in shared:
        while each._server._tasks:
            await next(iter(each._server._tasks))
        each._next = 0.0


@pytest.mark.parametrize(
    ("error", "failures"), [(UnavailableError("down"), 2), (AuthenticationError("key"), 1)]
)
async def test_availability_is_shared_between_processes_through_redis(
    make: Make, error: Exception, failures: int
) -> None:
    clock = Clock()
    here = make(clock=clock)
    there = make(clock=clock)
    a = Listed(error, name="a", repeat=True)
    b = Listed("b", name="b", repeat=True)
    one = Fallback([a, b], here, clock=clock)
    two = Fallback([a, b], there, clock=clock)
    for _ in range(failures):
        await one.complete("hi")
    await settle(here, there)
    assert (await two.complete("hi")).text == "b"
    assert len(a.requests) == failures
    assert not there.is_available("a", "m")
    # The clock of Redis cannot be advanced, so the local state is changed to make a probe due.
    clock.now += 400
    for state in (*here._providers.values(), *here._models.values()):
        state.failed = min(state.failed, clock.now - 400)
    here._next = clock.now + 100
    a.answers = ["a again"]
    assert (await one.complete("hi")).text == "a again"
    await settle(here, there)
    assert (await two.complete("hi")).text == "a again"
    assert there.is_available("a", "m")


async def test_fallback_keeps_working_while_redis_is_unavailable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost = RedisAvailability("redis://127.0.0.1:1/0", thresholds=Thresholds(failures=1))
    a = Listed(UnavailableError("down"), name="a", repeat=True)
    b = Listed("b", name="b", repeat=True)
    model = Fallback([a, b], lost)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert (await model.complete("hi")).text == "b"
        await lost.close()
    assert len(a.requests) == 1
    assert "availability is not shared" in caplog.text


async def test_configured_limits_and_availability_use_redis(
    tmp_path: Path, redis_url: str
) -> None:
    async with serve(fail) as bad, serve(answer) as good:
        more = f"availability: {{failures: 1}}\nredis: {redis_url}\n"
        group = "candidates: [a:m, {model: b:m, rate_limit: {requests_per_minute: 100}}]"
        file = tmp_path / "models.yaml"
        two(file, bad.url, good.url, more, group)
        for _ in range(2):  # two objects stand for two processes
            async with Registry.load(file) as registry:
                model = registry.open("both")
                assert (await model.complete("Hi")).text == "Hi"
                kinds = [
                    type(each).__name__
                    for part in walk(model)
                    for each in getattr(part, "limiters", ())
                ]
                assert kinds == ["RedisLimiter"]
    assert len(bad.requests) == 1
    assert len(good.requests) == 2
