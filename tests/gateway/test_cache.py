"""The cache of a gateway: replies that are repeated to the key that got them first."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from dragoman.calls import CallCompleted
from dragoman.gateway import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.ledger import Ledger
from dragoman.gateway.store import ResponseStore
from dragoman.log import MemoryLog
from dragoman.registry import Registry, read_file
from tests.server import Connection, Server, serve

from ..databases import own_redis as own_redis
from ..databases import redis_url as redis_url
from .serving import serving

PLACES = ["memory", "replies.db", "redis"]


@contextlib.asynccontextmanager
async def caching(
    folder: Path,
    store: str = "memory",
    more: str = "",
    ending: str = "stop",
    responses: ResponseStore | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Server, str]]:
    """Run a model whose replies are numbered, and a gateway with a cache."""
    numbers = iter(range(1, 1000))

    async def handle(connection: Connection) -> None:
        message = {"role": "assistant", "content": f"Reply {next(numbers)}"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        choice = {"index": 0, "message": message, "finish_reason": ending}
        made = {"id": "x", "model": "m", "choices": [choice], "usage": usage}
        connection.reply(200, json.dumps(made).encode())

    async with serve(handle) as upstream:
        config = folder / "models.yaml"
        config.write_text(
            f"cache: {{store: '{store}'{more}}}\n"
            f"adapters:\n  a: {{type: openai-compatible, base_url: {upstream.url}/v1}}\n"
            "models:\n  a:m: {aliases: [fast], priced_as: 'openai:gpt-4.1'}\n"
            "  a:n: {aliases: [other]}\n"
        )
        keys = KeyRing(
            [Key(name, hash_key(name), **settings.pop(name, {})) for name in ("ann", "bob")]
        )
        async with (
            Registry.load(config) as registry,
            serving(create_app(registry, keys=keys, store=responses, **settings)) as url,
        ):
            yield upstream, url


async def ask(
    url: str, key: str = "ann", model: str = "fast", text: str = "Hi", *, stream: bool = False,
    **headers: str,
) -> tuple[str | None, str]:  # fmt: skip
    """Return the header about the cache, and the text of a reply."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named["authorization"] = f"Bearer {key}"
    async with (
        aiohttp.ClientSession(url, headers=named) as client,
        client.post("/v1/chat/completions", json=body) as reply,
    ):
        assert reply.status == 200, await reply.text()
        data = await reply.text()
        if not stream:
            return reply.headers.get("x-dragoman-cache"), json.loads(data)["choices"][0][
                "message"
            ]["content"]
        chunks = [json.loads(line[6:]) for line in data.splitlines() if line.startswith("data: {")]
        parts = [
            each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"]
        ]
        return reply.headers.get("x-dragoman-cache"), "".join(parts)


@pytest.mark.parametrize("place", PLACES)
async def test_equal_request_of_a_key_gets_the_stored_reply(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue("redis_url") if place == "redis" else place
    async with caching(tmp_path, store) as (upstream, url):
        assert await ask(url) == ("miss", "Reply 1")
        assert await ask(url) == ("hit", "Reply 1")
        assert await ask(url, stream=True) == ("hit", "Reply 1")
        assert await ask(url, text="Ho") == ("miss", "Reply 2")
        assert await ask(url, model="other") == ("miss", "Reply 3")
        assert await ask(url, key="bob") == ("miss", "Reply 4")
        assert await ask(url, key="bob", stream=True) == ("hit", "Reply 4")
        assert len(upstream.requests) == 4
    assert (tmp_path / "replies.db").exists() == (place == "replies.db")


async def test_entries_are_shared_only_if_the_file_says_so(tmp_path: Path) -> None:
    async with caching(tmp_path, more=", shared: true") as (_, url):
        assert await ask(url) == ("miss", "Reply 1")
        assert await ask(url, key="bob") == ("hit", "Reply 1")


async def test_only_the_listed_models_are_cached(tmp_path: Path) -> None:
    async with caching(tmp_path, more=", models: [oth*]") as (_, url):
        assert await ask(url) == (None, "Reply 1")
        assert await ask(url) == (None, "Reply 2")
        assert await ask(url, model="other") == ("miss", "Reply 3")
        assert await ask(url, model="other") == ("hit", "Reply 3")


@pytest.mark.parametrize("ending", ["length", "content_filter"])
async def test_reply_that_was_cut_is_not_stored(ending: str, tmp_path: Path) -> None:
    async with caching(tmp_path, ending=ending) as (_, url):
        assert await ask(url) == ("miss", "Reply 1")
        assert await ask(url) == ("miss", "Reply 2")


async def test_client_leaves_the_cache_out_or_replaces_its_entry(tmp_path: Path) -> None:
    async with caching(tmp_path) as (_, url):
        assert await ask(url) == ("miss", "Reply 1")
        assert await ask(url, x_dragoman_cache="off") == ("miss", "Reply 2")
        assert await ask(url) == ("hit", "Reply 1")
        assert await ask(url, x_dragoman_cache="refresh") == ("miss", "Reply 3")
        assert await ask(url) == ("hit", "Reply 3")


async def test_hit_costs_nothing_and_is_recorded_as_such(tmp_path: Path) -> None:
    ledger = Ledger()
    log = MemoryLog()
    settings: dict[str, Any] = {"ann": {"budget_usd": Decimal(1)}, "ledger": ledger, "log": log}
    async with caching(tmp_path, **settings) as (_, url):
        await ask(url)
        spent = ledger.spent("ann")
        await ask(url)
        await ask(url, stream=True)
        assert ledger.spent("ann") == spent
    assert spent > 0
    (session,) = log.sessions()
    payloads = [each.payload for each in log.read(session.session)]
    records = [each for each in payloads if isinstance(each, CallCompleted)]
    assert [each.from_cache for each in records] == [False, True, True]
    assert [each.cost_usd for each in records] == [spent, 0, 0]
    assert [each.input_tokens for each in records] == [3, 0, 0]


async def test_identical_requests_at_the_same_time_are_sent_once(tmp_path: Path) -> None:
    async with caching(tmp_path) as (upstream, url):
        found = await asyncio.gather(*[ask(url) for _ in range(5)])
        assert {text for _, text in found} == {"Reply 1"}
        assert sorted([str(state) for state, _ in found]) == [*["hit"] * 4, "miss"]
        assert len(upstream.requests) == 1


async def test_repeated_responses_have_ids_of_their_own(tmp_path: Path) -> None:
    kept = ResponseStore(tmp_path / "kept.db")
    ids = []
    async with caching(tmp_path, "memory", ", shared: true", responses=kept) as (_, url):
        for key in ("ann", "bob"):
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
                made = await client.responses.create(model="fast", input="Hi")
                assert made.output_text == "Reply 1"
                again = await client.responses.retrieve(made.id)
                assert again.output_text == "Reply 1"
                ids.append(made.id)
    kept.close()
    assert len({*ids}) == 2


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("models: [a]", "cache.store: must be memory"),
        ("store: memory, ttl_seconds: 0", "cache.ttl_seconds: must be a positive number"),
        ("store: memory, max_mib: 0", "cache.max_mib: must be from 1"),
        ("store: memory, size: 1", "cache.size: unknown key"),
    ],
)
def test_mistake_in_the_file_is_reported(settings: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(f"cache: {{{settings}}}\n")
    (found,) = read_file(path).problems
    assert found.problem.startswith(problem)
