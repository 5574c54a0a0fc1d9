"""Test that the usage of a key is counted across all workers and hosts, with every store and
during failures.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from dragoman.errors import OverloadedError, QuotaExceededError, RateLimitError
from dragoman.gateway import ledger_writer as ledger_module
from dragoman.gateway import limits as limits_module
from dragoman.gateway.keys import Key
from dragoman.gateway.ledger import Ledger
from dragoman.gateway.ledger_writer import CallLease, LedgerWriter
from dragoman.gateway.limits import Policy, RedisLimits
from dragoman.middleware import meters as meters_module
from dragoman.middleware import redis as redis_module

from ..listed import Clock
from ..waiting import PATIENCE, poll, until
from .conftest import OwnDatabase, OwnRedis

Open = Callable[[], LedgerWriter]
# Unique key names, because all tests share one Redis.
_names = (f"key{number}" for number in itertools.count(1))


@pytest.fixture
def clock() -> Clock:
    return Clock(600.0)


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
async def open_ledger(
    request: pytest.FixtureRequest, clock: Clock, tmp_path: Path
) -> AsyncIterator[Open]:
    """Return a function that opens the ledger as another process would. An in-memory ledger cannot
    be shared, so the function always returns the same one.
    """
    opened: list[LedgerWriter] = []
    places: dict[str, Any] = {"sqlite": tmp_path / "used.db", "redis": tmp_path / "used.db"}
    if request.param == "postgres":
        places["postgres"] = request.getfixturevalue("postgres_url")
    url = request.getfixturevalue("redis_url") if request.param == "redis" else None

    def opener() -> LedgerWriter:
        if opened and request.param == "memory":
            return opened[0]
        ledger = Ledger(places.get(request.param), clock=clock)
        opened.append(LedgerWriter(ledger, None if url is None else RedisLimits(url, clock=clock)))
        return opened[-1]

    yield opener
    for each in opened:
        await each.close()
        each.ledger.close()


async def settle(
    ledger: LedgerWriter, lease: CallLease | None, key: Key, tokens: int = 0, usd: str = "0"
) -> None:
    ledger.settle(lease, key, tokens, Decimal(usd))
    # Closing waits until the usage is written; the next call opens the ledger again.
    await ledger.close()


# --- limits that several processes share, the same tests for each store ------------------------


async def test_rate_limits_use_a_sliding_window_shared_by_processes(
    open_ledger: Open, clock: Clock
) -> None:
    key = Key(next(_names), "h", requests_per_minute=2, tokens_per_minute=100)
    one = open_ledger()
    two = open_ledger()
    wide = Key(next(_names), "h", requests_per_minute=10)
    for each in (one, two):
        await each.admit(key, 60)
        await each.admit(wide, 60)
    assert two.describe_limits(key)["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(RateLimitError, match="requests a minute") as caught:
        await one.admit(key, 60)
    assert caught.value.retry_after == 60
    clock.now = 690  # half of the previous minute still counts towards the limit
    await two.admit(wide, 60)
    assert two.describe_limits(wide)["x-ratelimit-remaining-requests"] == "8"
    lease = await two.admit(key, 60)
    with pytest.raises(RateLimitError) as caught:
        await two.admit(key, 60)
    assert caught.value.retry_after == 0.1
    clock.now = 800
    await settle(one, lease, key, 150)
    with pytest.raises(RateLimitError, match="tokens a minute"):
        await two.admit(key, 60)
    clock.now = 1000
    await two.admit(key, 60)


async def test_concurrency_slots_are_shared_by_processes_and_expire(
    open_ledger: Open, clock: Clock
) -> None:
    key = Key(next(_names), "h", max_concurrency=2)
    one = open_ledger()
    two = open_ledger()
    first = await one.admit(key, 60)
    await two.admit(key, 60)
    with pytest.raises(RateLimitError, match="2 calls at a time"):
        await two.admit(key, 60)
    await settle(one, first, key)
    await two.admit(key, 60)
    with pytest.raises(RateLimitError):
        await one.admit(key, 60)
    clock.now += 61  # both leases have expired, as if their process had died
    await one.admit(key, 60)


@pytest.mark.parametrize("budget", ["budget_usd", "budget_usd_month", "team_budget_usd_month"])
async def test_budgets_are_shared_by_processes(
    open_ledger: Open, clock: Clock, budget: str
) -> None:
    team: dict[str, Any] = {"team": "core"} if budget.startswith("team") else {}
    names = [next(_names) for _ in range(2)] if team else [next(_names)] * 2
    keys = [Key(name, "h", **{budget: Decimal("0.3")}, **team) for name in names]
    one = open_ledger()
    two = open_ledger()
    for _ in range(3):
        await settle(one, await one.admit(keys[0], 60), keys[0], usd="0.1")
    with pytest.raises(QuotaExceededError, match="exhausted"):
        await two.admit(keys[1], 60)
    clock.now += 31 * 86400
    if budget == "budget_usd":
        with pytest.raises(QuotaExceededError):
            await two.admit(keys[1], 60)
    else:
        await two.admit(keys[1], 60)
    assert two.ledger.spent(keys[0].accounts[-1]) == Decimal("0.3")


async def test_call_over_budget_is_not_counted_as_a_request(open_ledger: Open) -> None:
    name = next(_names)
    poor = Key(name, "h", budget_usd=Decimal(0), requests_per_minute=1, max_concurrency=1)
    ledger = open_ledger()
    for _ in range(3):
        with pytest.raises(QuotaExceededError):
            await ledger.admit(poor, 60)
        await ledger.close()
    await ledger.admit(
        Key(name, "h", budget_usd=Decimal(1), requests_per_minute=1, max_concurrency=1), 60
    )


@pytest.mark.usefixtures("quick")
async def test_concurrent_calls_are_admitted_exactly_up_to_the_limit(open_ledger: Open) -> None:
    key = Key(next(_names), "h", requests_per_minute=25, max_concurrency=30)
    ledgers = [open_ledger() for _ in range(3)]
    results = await asyncio.gather(
        *[ledgers[at % 3].admit(key, 60) for at in range(90)], return_exceptions=True
    )
    assert sum([isinstance(each, CallLease) for each in results]) == 25
    assert {type(each) for each in results} == {CallLease, RateLimitError}


# --- failures of the shared store --------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for answers as long as a busy machine needs, and repeat failed attempts soon."""
    monkeypatch.setattr("dragoman.database._SETTINGS", f"set lock_timeout = '{PATIENCE:g}s'")
    monkeypatch.setattr(ledger_module, "_BUSY_SECONDS", PATIENCE)
    monkeypatch.setattr(ledger_module, "_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(redis_module, "SECONDS", PATIENCE)
    monkeypatch.setattr(limits_module, "_PAUSE", 0.0)


async def admit_or_none(ledger: LedgerWriter, key: Key) -> CallLease | None:
    """Return the lease of a call that is admitted, or ``None`` for a call that is rejected."""
    with contextlib.suppress(RateLimitError, OverloadedError):
        return await ledger.admit(key, 600)
    return None


@pytest.mark.usefixtures("quick")
async def test_calls_with_a_budget_are_rejected_while_postgres_is_unavailable(
    own_postgres: OwnDatabase,
) -> None:
    key = Key("ann", "h", budget_usd=Decimal(1), max_concurrency=5)
    ledger = LedgerWriter(Ledger(own_postgres.url))
    leases = [await ledger.admit(key, 60) for _ in range(3)]
    own_postgres.cut()
    # A lost connection is opened again without failing a call.
    leases.append(await ledger.admit(key, 60))
    own_postgres.stop()
    with pytest.raises(OverloadedError, match="cannot count"):
        await ledger.admit(key, 60)
    for lease in leases:
        ledger.settle(lease, key, 100, Decimal("0.2"))
    own_postgres.start()
    last = await poll(
        lambda: admit_or_none(ledger, key), lambda lease: lease is not None, "PostgreSQL"
    )
    ledger.settle(last, key, 0, Decimal("0.2"))
    await ledger.close()
    # The costs of calls that ended while PostgreSQL was unavailable are included.
    assert ledger.ledger.spent("ann") == Decimal("1.0")
    with pytest.raises(QuotaExceededError):
        await ledger.admit(key, 60)
    await ledger.close()
    ledger.ledger.close()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("policy", get_args(Policy))
async def test_configured_failure_policy_applies_while_redis_is_unavailable(
    policy: Policy, own_redis: OwnRedis
) -> None:
    key = Key("ann", "h", requests_per_minute=3, max_concurrency=10)
    limits = RedisLimits(own_redis.url, on_failure=policy, spare=Ledger(), clock=lambda: 600.0)
    ledger = LedgerWriter(Ledger(), limits)
    held = await ledger.admit(key, 60)
    own_redis.stop()
    ledger.settle(held, key, 10)  # settling a call never raises, even if Redis is unavailable
    results = await asyncio.gather(
        *[ledger.admit(key, 60) for _ in range(8)], return_exceptions=True
    )
    admitted = [each for each in results if each is None or isinstance(each, CallLease)]
    rejected = {type(each) for each in results if isinstance(each, BaseException)}
    expected: dict[str, tuple[int, set[Any]]] = {
        "closed": (0, {OverloadedError}),
        "open": (8, set()),
        "local": (3, {RateLimitError}),
    }
    assert (len(admitted), rejected) == expected[policy]
    assert limits.failures == 8
    for each in admitted:
        ledger.settle(each, key, 10)
    own_redis.start()
    probe = Key("bob", "h", max_concurrency=1)
    await poll(lambda: admit_or_none(ledger, probe), lambda lease: lease is not None, "Redis")
    results = await asyncio.gather(
        *[ledger.admit(key, 60) for _ in range(5)], return_exceptions=True
    )
    # The restarted Redis is empty, so counting starts at zero.
    assert sum([isinstance(each, CallLease) for each in results]) == 3
    await ledger.close()


@pytest.mark.usefixtures("quick")
async def test_concurrency_slot_that_redis_grants_after_the_timeout_is_freed(
    own_redis: OwnRedis,
) -> None:
    key = Key("ann", "h", max_concurrency=1)
    limits = RedisLimits(own_redis.url)
    ledger = LedgerWriter(Ledger(), limits)
    ledger.settle(await ledger.admit(key, 600), key)
    await until(lambda: not limits._meter.server._tasks, "the first slot to be free")  # noqa: SLF001 - its tasks have no other sign
    limits._meter.server.seconds = 0.2  # noqa: SLF001 - a timeout that a user cannot set
    own_redis.pause()
    with pytest.raises(OverloadedError):
        await ledger.admit(key, 600)
    limits._meter.server.seconds = PATIENCE  # noqa: SLF001
    own_redis.resume()  # Redis now executes the commands it received while it was paused
    await poll(lambda: admit_or_none(ledger, key), lambda lease: lease is not None, "a free slot")
    await ledger.close()


async def test_no_command_is_sent_for_a_second_after_redis_failed(
    own_redis: OwnRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(meters_module, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(redis_module, "SECONDS", PATIENCE)
    key = Key("ann", "h", requests_per_minute=5)
    ledger = LedgerWriter(Ledger(), RedisLimits(own_redis.url))
    own_redis.stop()
    with pytest.raises(OverloadedError):
        await ledger.admit(key, 60)
    own_redis.start()
    clock.now += 0.9
    with pytest.raises(OverloadedError):
        await ledger.admit(key, 60)
    clock.now += 0.1
    await ledger.admit(key, 60)
    await ledger.close()


@pytest.mark.usefixtures("quick")
async def test_slot_is_freed_if_a_call_is_cancelled_before_redis_replies(redis_url: str) -> None:
    key = Key(next(_names), "h", requests_per_minute=1, max_concurrency=1)
    ledger = LedgerWriter(Ledger(), RedisLimits(redis_url, clock=lambda: 600.0))
    # This call opens the connection to Redis.
    await ledger.admit(Key(next(_names), "h", max_concurrency=1), 60)
    call = asyncio.ensure_future(ledger.admit(key, 60))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await ledger.close()
    assert await ledger.admit(key, 60) is not None
    await ledger.close()
