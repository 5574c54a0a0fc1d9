"""Test RedisLimiter with a real Redis server: many processes share one count, and no slot is lost."""

# ruff: noqa: SLF001 - the keys in Redis, and the calls under way, are not public

import asyncio
import itertools
import logging
import math
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from dragoman.errors import CallCancelledError
from dragoman.middleware import (
    Limiter,
    LimiterUnavailableError,
    RateLimit,
    RedisAvailability,
    RedisLimiter,
    RedisStore,
    describe,
)
from dragoman.middleware.meters import name_keys
from tests.listed import Clock, Listed, reply
from tests.waiting import PATIENCE, arrival, poll, until

from .conftest import OwnRedis

# The clock of Redis is real. With these settings a bucket needs an hour to fill, so the seconds
# that a test takes do not change what it sees.
SLOW: dict[str, Any] = {"burst_seconds": 3600}

_names = itertools.count()
Make = Callable[..., RedisLimiter]


@pytest.fixture
async def make(redis_url: str) -> AsyncIterator[Make]:
    """Return a function that creates limiters with a Redis key of this test, and close the
    limiters afterwards.
    """
    made: list[RedisLimiter] = []
    key = f"test-{next(_names)}"

    def build(**settings: Any) -> RedisLimiter:
        limiter = RedisLimiter(redis_url, settings.pop("key", key), **settings)
        if settings.get("burst_seconds") == SLOW["burst_seconds"]:
            limiter._poll_seconds = math.inf  # the tests read how long Redis makes a call wait
        made.append(limiter)
        return limiter

    yield build
    for limiter in made:
        await limiter.close()


async def wait_of(limiter: RedisLimiter, tokens: int = 0) -> float:
    """Return how many seconds another call would have to wait for the limiter, without waiting."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        raise TimeoutError

    limiter._sleep = sleep
    try:
        await limiter.acquire(tokens)
    except TimeoutError:
        return waits[0]
    return 0.0


async def test_rate_limit_counts_the_requests_of_all_processes(make: Make) -> None:
    one, two = [make(requests_per_minute=0.05, **SLOW) for _ in range(2)]
    for limiter in (one, two, one):
        assert await wait_of(limiter) == 0
    assert await wait_of(two) == pytest.approx(1200, abs=PATIENCE)


async def test_limits_with_different_redis_keys_are_separate(make: Make) -> None:
    assert await wait_of(make(requests_per_minute=1)) == 0
    assert await wait_of(make(requests_per_minute=1, key="another")) == 0


@pytest.mark.parametrize(
    ("spent", "wait"), [(None, 3600), (600, 3600), (100, 600), (0, 0), (1200, 7200)]
)
async def test_estimated_tokens_are_corrected_by_the_reported_usage(
    make: Make, spent: int | None, wait: float
) -> None:
    one, two = [make(tokens_per_minute=10, **SLOW) for _ in range(2)]
    lease = await one.acquire(600)
    await one.settle(lease, spent)
    assert await wait_of(two, 600) == pytest.approx(wait, abs=PATIENCE)


async def test_limiter_asks_redis_again_while_it_waits_for_tokens(make: Make) -> None:
    limiter = make(tokens_per_minute=600, poll_seconds=0.5)
    await limiter.settle(await limiter.acquire(600), 1200)
    # the limiter polls, because another process may release tokens earlier
    assert await wait_of(limiter, 600) == 0.5


async def test_call_larger_than_the_bucket_is_admitted_if_the_bucket_is_full(make: Make) -> None:
    limiter = make(tokens_per_minute=10, **SLOW)
    assert await wait_of(limiter, 1000) == 0
    assert await wait_of(limiter, 1) == pytest.approx(2406, abs=PATIENCE)


async def test_concurrency_slots_are_shared_between_processes_and_released(make: Make) -> None:
    one = make(max_concurrency=2)
    two = make(max_concurrency=2)
    first = await one.acquire()
    second = await two.acquire()
    assert await wait_of(one) == 0.25
    await two.settle(second, None)
    assert await wait_of(one) == 0
    await one.settle(first, None)


async def test_concurrency_slots_of_a_dead_process_are_reclaimed(make: Make) -> None:
    limiter = make(max_concurrency=1, lease_seconds=0.05, poll_seconds=0.02)
    await limiter.acquire()
    # The first lease is never settled, so it must expire.
    await arrival(limiter.acquire(), "the lease to expire")


async def test_waiting_calls_of_one_process_are_admitted_in_order(make: Make) -> None:
    limiter = make(max_concurrency=1, poll_seconds=0.005)
    order: list[int] = []

    async def call(number: int) -> None:
        lease = await limiter.acquire()
        order.append(number)
        await limiter.settle(lease, None)

    await asyncio.gather(*[call(number) for number in range(20)])
    assert order == list(range(20))


async def test_number_of_concurrent_calls_never_exceeds_the_limit(
    make: Make, redis_url: str
) -> None:
    limiters = [make(max_concurrency=3, poll_seconds=0.002) for _ in range(4)]
    running = most = 0
    # The first calls wait until all slots are taken, so the test does not depend on speed.
    full = asyncio.Event()

    async def call(limiter: RedisLimiter) -> None:
        nonlocal running, most
        lease = await limiter.acquire()
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        running -= 1
        await limiter.settle(lease, None)

    await arrival(
        asyncio.gather(*[call(limiter) for limiter in limiters for _ in range(25)]), "all calls"
    )
    assert most == 3
    keys = name_keys(limiters[0]._key)
    async with Redis.from_url(redis_url) as redis:
        assert await redis.zcard(keys[1]) == 0


@pytest.mark.parametrize("moment", range(8))
async def test_slots_and_tokens_are_freed_whenever_a_call_is_cancelled(
    make: Make, moment: int
) -> None:
    limiter = make(requests_per_minute=5, tokens_per_minute=5, max_concurrency=1, **SLOW)
    limiter._poll_seconds = 0.005
    call = asyncio.ensure_future(limiter.acquire(300))
    for _ in range(moment):
        await asyncio.sleep(0)
    call.cancel()
    try:
        lease = await call
    except asyncio.CancelledError:
        pass
    else:
        await limiter.settle(lease, 0)
    lease = await arrival(limiter.acquire(300), "the slot and the tokens")
    assert limiter.running == 1
    await limiter.settle(lease, 0)


async def test_slot_that_redis_granted_is_freed_if_its_call_was_cancelled(make: Make) -> None:
    limiter = make(tokens_per_minute=5, max_concurrency=1, **SLOW)
    limiter._poll_seconds = 0.005
    asked = asyncio.Event()
    go_on = asyncio.Event()
    really = limiter._meter._reserving

    async def slowly(*arguments: Any) -> Any:
        # Redis has granted the slot, but the caller does not know it yet.
        answer = await really(*arguments)
        asked.set()
        await go_on.wait()
        return answer

    limiter._meter._reserving = slowly
    call = asyncio.ensure_future(limiter.acquire(300))
    await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    limiter._meter._reserving = really
    go_on.set()
    await arrival(limiter.acquire(300), "the slot and the tokens")


async def test_waiting_call_that_is_cancelled_takes_no_slot_in_redis(
    make: Make, redis_url: str
) -> None:
    limiter = make(max_concurrency=1, tokens_per_minute=100)
    await limiter.acquire()
    call = asyncio.ensure_future(limiter.acquire())
    while not limiter._meter.server._tasks:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    # The command to Redis is still running, and close() waits for its result.
    assert limiter._meter.server._tasks
    await limiter.close()
    assert not limiter._meter.server._tasks
    async with Redis.from_url(redis_url) as redis:
        assert await redis.zcard(name_keys(limiter._key)[1]) == 1


async def test_slot_is_freed_even_if_its_release_is_cancelled(make: Make) -> None:
    limiter = make(max_concurrency=1, poll_seconds=0.005)
    lease = await limiter.acquire()
    settling = asyncio.ensure_future(limiter.settle(lease, None))
    await asyncio.sleep(0)
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    await arrival(limiter.acquire(), "the slot")


async def test_redis_limiter_works_together_with_a_local_limiter(make: Make) -> None:
    shared = make(max_concurrency=1, poll_seconds=0.005)
    gate = asyncio.Event()
    models = [
        RateLimit(
            Listed(lambda request: [gate, *reply("x")(request)], "y"),
            limiter=[shared, Limiter(1000)],
        )
        for _ in range(2)
    ]
    first = asyncio.ensure_future(models[0].complete("hi"))
    await until(lambda: models[0].inner.requests, "the first call")  # type: ignore[attr-defined]
    second = asyncio.ensure_future(models[1].complete("hi", request_id="r"))
    await until(lambda: shared.waiting, "the second call to wait")
    await models[1].cancel("r")
    with pytest.raises(CallCancelledError):
        await second
    gate.set()
    await first
    assert (await models[0].complete("hi")).text == "y"
    assert models[1].inner.requests == []  # type: ignore[attr-defined]


async def test_many_processes_share_one_token_bucket(redis_url: str) -> None:
    script = """
        import asyncio, sys
        from dragoman.middleware import RedisLimiter

        async def refused(_):
            raise TimeoutError

        async def main():
            passed = 0
            # A bucket of 20 that gains one in three minutes.
            limits = {"requests_per_minute": 1 / 3, "burst_seconds": 3600}
            async with RedisLimiter(sys.argv[1], "many", **limits, sleep=refused) as limiter:
                for _ in range(30):
                    try:
                        await limiter.settle(await limiter.acquire(), None)
                    except TimeoutError:
                        break
                    passed += 1
            print(passed)

        asyncio.run(main())
    """
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", textwrap.dedent(script), redis_url,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    passed = [int((await process.communicate())[0]) for process in processes]
    assert sum(passed) == 20


async def test_unused_redis_keys_expire(make: Make, redis_url: str) -> None:
    limiter = make(requests_per_minute=60, max_concurrency=5, lease_seconds=10)
    await limiter.acquire()
    async with Redis.from_url(redis_url) as redis:
        levels, leases = [await redis.ttl(key) for key in name_keys(limiter._key)]
    assert 0 < levels <= 62
    assert 0 < leases <= 71


async def test_error_names_redis_if_it_is_unavailable() -> None:
    limiter = RedisLimiter("redis://:hunter2@127.0.0.1:1/0", "k", max_concurrency=1)
    inner = Listed("never asked")
    with pytest.raises(LimiterUnavailableError) as caught:
        await RateLimit(inner, limiter=limiter).complete("hi")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in describe(RateLimit(inner, limiter=limiter)) + repr(limiter)
    assert inner.requests == []
    assert limiter.waiting == 0
    await limiter.close()


async def test_all_waiting_calls_fail_after_one_timeout_if_redis_hangs(
    own_redis: OwnRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Redis hangs, all waiting callers fail after one timeout, and no slot is lost."""
    asked = 0
    async with RedisLimiter(own_redis.url, "k", max_concurrency=3) as limiter:
        provider = RateLimit(Listed("ok", repeat=True), limiter=limiter)
        really = limiter._meter._reserving

        async def count(*arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            return await really(*arguments)

        await provider.complete("hi")
        monkeypatch.setattr(limiter._meter, "_reserving", count)
        monkeypatch.setattr(limiter._meter.server, "seconds", 0.4)
        own_redis.pause()
        found = await asyncio.gather(
            *[provider.complete("hi") for _ in range(20)], return_exceptions=True
        )
        monkeypatch.undo()
        assert {type(error) for error in found} == {LimiterUnavailableError}
        assert asked == 1
        assert limiter.waiting == limiter.running == 0
        own_redis.resume()
        async with Redis.from_url(own_redis.url) as redis:
            await poll(
                lambda: redis.zcard(name_keys(limiter._key)[1]),
                lambda held: held == 0,
                "free slots",
            )
        assert [
            reply.text
            for reply in await asyncio.gather(*[provider.complete("hi") for _ in range(6)])
        ] == ["ok"] * 6


async def test_call_succeeds_even_if_its_slot_cannot_be_released_in_redis(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = make(max_concurrency=1)

    async def fail(*_: Any) -> None:
        raise ConnectionError("gone")

    limiter._meter._settling = fail  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING, "dragoman"):
        assert (await RateLimit(Listed("ok"), limiter=limiter).complete("hi")).text == "ok"
    assert "Redis is unavailable for RedisLimiter: ConnectionError" in caplog.text


async def test_redis_client_passed_by_the_caller_is_not_closed(redis_url: str) -> None:
    async with Redis.from_url(redis_url) as client:
        async with RedisLimiter(client, "mine", max_concurrency=1) as limiter:
            await limiter.settle(await limiter.acquire(), None)
        assert await client.ping()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"key": ""}, "key"),
        ({"key": 3}, "key"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"poll_seconds": -1}, "poll_seconds"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": None}, "give one of"),
    ],
)
def test_error_names_an_invalid_setting(settings: dict[str, Any], field: str) -> None:
    given = {"key": "k", "max_concurrency": 1, **settings}
    with pytest.raises(ValueError, match=field):
        RedisLimiter("redis://127.0.0.1:1/0", **given)


@pytest.mark.parametrize(
    "url", ["redis://:PASS/word@h:1/0", "redis://u:PASS#word@h:1", "redis://h/0?db=PASS"]
)
@pytest.mark.parametrize(
    "make", [lambda url: RedisLimiter(url, "k", 1), RedisAvailability, RedisStore]
)
def test_error_does_not_quote_an_invalid_redis_url(
    make: Callable[[str], object], url: str
) -> None:
    with pytest.raises(ValueError, match="percent-encoded") as caught:
        make(url)
    assert caught.value.__context__ is None
    assert "PASS" not in str(caught.value)


def test_error_for_a_missing_extra_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ImportError, match=r"dragoman\[redis\]"):
        RedisLimiter("redis://127.0.0.1:1/0", "k", max_concurrency=1)


async def test_limiter_uses_only_the_clock_of_redis(make: Make) -> None:
    limiter = make(requests_per_minute=1 / 60, clock=Clock(1e12), **SLOW)
    assert await wait_of(limiter) == 0
    assert await wait_of(limiter) == pytest.approx(3600, abs=PATIENCE)
