"""Test the cache: an identical second call is answered at no cost if the first one succeeded."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from dragoman import Cache, Retry, cost
from dragoman.errors import RateLimitError, StreamInterruptedError, StructuredOutputError
from dragoman.events import check_events
from dragoman.messages import Tool
from dragoman.middleware import CACHE, Observe, RedisStore, SqliteStore, Store, describe
from tests.listed import Clock, Listed, broken, collect, reply
from tests.waiting import poll

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Kept(Store):
    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}

    async def get(self, key: str) -> bytes | None:
        return self.entries.get(key)

    async def put(self, key: str, value: bytes) -> None:
        self.entries[key] = value


async def test_cached_reply_equals_the_original_and_costs_nothing() -> None:
    inner = Listed("Rhine", "Oder")
    inner.priced_as = "openai:gpt-5"
    model = Cache(inner, Kept())
    first = await model.complete("Name a river.", temperature=0)
    again = await model.complete("Name a river.", temperature=0.0, request_id="r2")
    assert first.text == "Rhine"
    assert first.cached is False
    assert again.text == "Rhine"
    assert again.cached is True
    assert len(inner.requests) == 1
    assert again.request_id == "r2"
    assert cost(first).total != 0
    assert again.usage.input_tokens == 0
    assert again.usage.output_tokens == 0
    assert cost(again).total == Decimal(0)
    assert (await model.complete("Name another river.")).text == "Oder"


async def test_a_stream_and_a_complete_reply_share_a_cache_entry() -> None:
    inner = Listed("Rhine")
    model = Cache(inner, Kept())
    await model.complete("Hi")
    events, _ = await collect(model.stream("Hi"))
    check_events(events)
    assert "".join(getattr(event, "text", "") for event in events) == "Rhine"
    assert events[-1].usage.from_cache
    assert len(inner.requests) == 1


async def test_structured_replies_and_tool_calls_are_cached() -> None:
    inner = Listed('{"n": 3}')
    model = Cache(inner, Kept())
    for _ in range(2):
        assert (await model.complete("Hi", response_schema=SCHEMA)).parsed == {"n": 3}
    assert len(inner.requests) == 1


NEVER_STORED: dict[str, Any] = {
    "refused": RateLimitError("later"),
    "broken off": broken("half", StreamInterruptedError("cut")),
    "not of the schema": reply('{"n": "x"}'),
    "finished with an error": reply("half", finish="error"),
}


@pytest.mark.parametrize("name", NEVER_STORED)
async def test_failed_calls_are_never_cached(name: str) -> None:
    store = Kept()
    model = Cache(Listed(NEVER_STORED[name]), store)
    try:
        await model.complete("Hi", response_schema=SCHEMA)
    except (RateLimitError, StreamInterruptedError, StructuredOutputError):
        pass
    assert store.entries == {}


async def test_a_cancelled_reply_is_never_cached() -> None:
    store = Kept()
    model = Cache(Listed("one two three"), store)
    stream = model.stream("Hi")
    await anext(stream)
    await stream.cancel()
    await collect(stream)
    assert stream.response.finish_reason == "cancelled"
    assert store.entries == {}


async def test_call_can_bypass_or_refresh_the_cache() -> None:
    inner = Listed("one", "two", "three")
    model = Cache(inner, Kept())
    assert (await model.complete("Hi")).text == "one"
    assert (await model.complete("Hi", metadata={CACHE: "off"})).text == "two"
    assert (await model.complete("Hi")).text == "one"
    assert (await model.complete("Hi", metadata={CACHE: "refresh"})).text == "three"
    assert (await model.complete("Hi")).text == "three"
    with pytest.raises(ValueError, match="must be on, off or refresh"):
        await model.complete("Hi", metadata={CACHE: "no"})


async def test_identical_calls_at_the_same_time_are_sent_once() -> None:
    inner = Listed("Rhine", repeat=True)
    model = Cache(inner, Kept())
    replies = await asyncio.gather(*[model.complete("Hi") for _ in range(20)])
    assert len(inner.requests) == 1
    assert sorted(reply.cached for reply in replies) == [False] + [True] * 19


async def test_waiting_identical_call_is_sent_if_the_first_one_fails() -> None:
    inner = Listed(RateLimitError("later"), "Rhine", repeat=True)
    model = Cache(inner, Kept())
    replies = await asyncio.gather(
        *[model.complete("Hi") for _ in range(3)], return_exceptions=True
    )
    assert [type(each).__name__ for each in replies].count("RateLimitError") == 1
    assert len(inner.requests) == 2


async def test_different_providers_and_settings_do_not_share_a_cache_entry() -> None:
    store = Kept()
    assert (await Cache(Listed("a", name="x"), store).complete("Hi")).text == "a"
    assert (await Cache(Listed("b", name="y"), store).complete("Hi")).text == "b"
    assert (await Cache(Listed("c", name="x"), store).complete("Hi", max_tokens=5)).text == "c"
    assert (
        await Cache(Listed("d", name="x"), store).complete("Hi", tools=[Tool("t")])
    ).text == "d"
    assert len(store.entries) == 4


class Broken(Store):
    async def get(self, key: str) -> bytes | None:
        raise OSError("no disk")

    async def put(self, key: str, value: bytes) -> None:
        raise OSError("no disk")


@pytest.mark.parametrize("garbage", [b"", b"{}", b"[1]", b'[{"type": "later"}]', b"[]"])
async def test_failing_cache_store_does_not_fail_the_call(garbage: bytes) -> None:
    assert (await Cache(Listed("a"), Broken()).complete("Hi")).text == "a"
    store = Kept()
    await Cache(Listed("a"), store).complete("Hi")
    store.entries = dict.fromkeys(store.entries, garbage)
    assert (await Cache(Listed("b"), store).complete("Hi")).text == "b"


async def test_cached_reply_is_returned_without_calling_inner_layers() -> None:
    seen: list[Any] = []
    model = Cache(Retry(Observe(Listed("a"), seen.append)), Kept())
    await model.complete("Hi")
    await model.inner.inner.flush()
    assert len(seen) == 2
    await model.complete("Hi")
    await model.inner.inner.flush()
    assert len(seen) == 2
    assert describe(model).splitlines()[0] == "Cache(store=Kept)"


# --- cache stores ------------------------------------------------------------------------------

Open = Callable[..., Store]


@pytest.fixture(params=["sqlite", "redis"])
async def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    opened: list[Store] = []
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    if url:
        async with Redis.from_url(url) as client:
            await client.flushdb()

    def make(**settings: Any) -> Store:
        opened.append(
            RedisStore(url, **settings) if url else SqliteStore(tmp_path / "cache.db", **settings)
        )
        return opened[-1]

    yield make
    for store in opened:
        await store.close()


async def test_cache_store_shares_entries_with_other_instances(open_one: Open) -> None:
    store = open_one()
    other = open_one()
    assert await store.get("a") is None
    await store.put("a", b"\x00one")
    await store.put("a", b"\x00two")
    assert await other.get("a") == b"\x00two"


async def test_a_cache_store_evicts_the_least_recently_used_entry(open_one: Open) -> None:
    store = open_one(max_bytes=10)
    for key in "abcd":
        await store.put(key, b"1234")
    assert [await store.get(key) for key in "abcd"] == [None, None, b"1234", b"1234"]
    await store.put("d", b"123456")
    assert await store.get("c") == b"1234"
    await store.put("big", b"1" * 11)
    assert await store.get("big") is None
    await store.put("e", b"1234567890")
    assert [await store.get(key) for key in "cde"] == [None, None, b"1234567890"]


async def test_a_cache_entry_expires(open_one: Open) -> None:
    store = open_one(ttl=0.05)
    await store.put("a", b"1")
    await poll(lambda: store.get("a"), lambda found: found is None, "the entry to expire")
    await store.put("b", b"1")
    assert await store.get("a") is None


async def test_space_of_expired_cache_entries_is_reclaimed_in_sqlite(tmp_path: Path) -> None:
    clock = Clock()
    store = SqliteStore(tmp_path / "deep" / "cache.db", ttl=10, max_bytes=8, clock=clock)
    await store.put("a", b"1234")
    clock.now += 9
    assert await store.get("a") == b"1234"
    clock.now += 1
    assert await store.get("a") is None
    with sqlite3.connect(store.path) as database:
        assert database.execute("SELECT bytes FROM total").fetchone() == (0,)
    assert store.path.stat().st_mode & 0o077 == 0
    await store.close()


@pytest.mark.parametrize(
    "settings", [{"ttl": 0}, {"max_bytes": 0}, {"max_bytes": 1.5}, {"ttl": True}]
)
def test_error_names_an_invalid_limit(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        SqliteStore("x.db", **settings)


async def test_path_is_accepted_as_a_cache_store(tmp_path: Path) -> None:
    for text, is_cached in (("a", False), ("b", True)):
        model = Cache(Listed(text), tmp_path / "cache.db")
        response = await model.complete("Hi")
        assert response.text == "a"
        assert response.cached == is_cached
        await model.close()
