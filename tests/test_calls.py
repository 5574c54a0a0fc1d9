"""For each field of a call record, at least one call writes the field."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

import dragoman
from dragoman import Session, Usage
from dragoman.calls import IS_WORKER, CallCompleted, CallFailed, CallStarted, RoutingSwitched
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.log import SqliteLog
from dragoman.middleware import Fallback, Observe, Retry
from dragoman.transport import FixtureTransport

from .gateway.serving import serving
from .listed import Clock, Listed, speak

HEADERS = {
    "content-type": "application/json",
    "x-request-id": "req",
    "x-ratelimit-remaining-requests": "9",
}
FULL = Usage(
    10, 5, 1, 1, 1, None, True, Decimal("0.1"), billed_input_tokens=9, billed_output_tokens=4
)


def completed(**facts: Any) -> Any:
    return speak(lambda out: (out.thinking("hm"), out.text("Done.")), usage=FULL, **facts)


async def collect(folder: Path) -> list[Any]:
    """Make calls of every kind; return their records from an observer and from a log."""
    seen: list[Any] = []
    busy = dragoman.RateLimitError("no", status=429, headers=HEADERS)
    clock = Clock()
    priced: dict[str, Any] = {"name": "anthropic", "model": "claude-sonnet-4-6"}
    late = [
        *completed(finish="stop")(dragoman.Request((), model="m")),
        dragoman.StreamInterruptedError("cut"),
    ]
    inner = Observe(
        Listed(busy, busy, completed(), late, **priced), seen.append, include_content=True
    )
    call = speak(
        lambda out: (out.tool_start(0, "c", "add"), out.tool_input(0, "{}")), finish="tool_calls"
    )
    first = Retry(inner, sleep=clock.sleep, clock=clock, max_retries=1)
    second = Observe(Listed(completed(), call), seen.append)
    provider = Fallback([first, second])
    third = Observe(Listed(busy, completed(), late), seen.append)
    retried = Retry(third, sleep=clock.sleep, clock=clock)
    body = b'{"model":"m","choices":[{"message":{"content":"Hi."},"finish_reason":"stop"}]}'
    wired = dragoman.connect(
        "m", base_url="http://127.0.0.1:9/v1", transport=FixtureTransport((200, HEADERS, [body]))
    )
    async with SqliteLog(folder / "log.db") as log:
        for model in (provider, provider, wired, retried):
            session = Session(model, (), None, log, metadata={"team": "red"})
            await session.run("Go.")
        with pytest.raises(dragoman.StreamInterruptedError):
            await inner.complete("Hi.", config={"temperature": 0.5}, metadata={IS_WORKER: "true"})
        with pytest.raises(dragoman.StreamInterruptedError):
            await third.complete("Hi.")
        await second.complete("Hi.", [dragoman.Tool("add")])
        records = [record.payload for record in log.find("llm.call_started", "llm.call_completed",
                                                         "llm.call_failed",
                                                         "routing.switched")]  # fmt: skip
        records += await collect_from_gateway(log)
    for observer in (inner, second, third):
        await observer.close()
    await collect_from_retrieval(seen)
    return seen + records


async def collect_from_retrieval(seen: list[Any]) -> None:
    """Embed and rank with an observer; return the records of calls that succeed, that fail, and
    that fail after they were billed.
    """

    class Billing(dragoman.Reranker):
        async def answer(self, request: dragoman.RerankRequest) -> dragoman.Ranking:
            answered = dragoman.Ranking(results=(), usage=dragoman.Usage(search_units=1))
            raise dragoman.UnsupportedFeatureError("no", response=answered)

    vectors = b'{"id":"e","data":[{"index":0,"embedding":[1]}],"usage":{"prompt_tokens":1}}'
    ranking = b'{"id":"r","results":[{"index":0,"relevance_score":1}],"meta":{"billed_units":{"search_units":1}}}'
    embedding = FixtureTransport((200, HEADERS, [vectors]), (500, HEADERS, [b""]))
    ranker = FixtureTransport((200, HEADERS, [ranking]), (429, HEADERS, [b""]))
    base_url = "http://127.0.0.1:9/v1"
    embedder: Any = dragoman.connect_embedder(
        "m", base_url=base_url, transport=embedding, batch_size=1
    )
    reranker: Any = dragoman.connect_reranker(
        "m", base_url=base_url, transport=ranker, wire="cohere"
    )
    embedder = Observe(embedder, seen.append, include_content=True)
    reranker = Observe(reranker, seen.append, include_content=True)
    with pytest.raises(dragoman.UnavailableError):
        await embedder.embed(["a", "b"], input_type="query")
    await reranker.rerank("q", ["a"], top_k=1)
    with pytest.raises(dragoman.RateLimitError):
        await reranker.rerank("q", ["a"], top_k=1)
    billing: Any = Billing()
    billing = Observe(billing, seen.append)
    with pytest.raises(dragoman.UnsupportedFeatureError):
        await billing.rerank("q", ["a"])
    for model in (embedder, reranker, billing):
        await model.close()


async def collect_from_gateway(log: SqliteLog) -> list[Any]:
    """Call models through a gateway that writes to the log; return the records of these calls."""
    key = Key("ann", hash_key("dg-ann"))
    answering, failing = Listed(completed()), Listed(dragoman.OverloadedError("no"))
    app = create_app({"fast": answering, "slow": failing}, keys=KeyRing([key]), log=log)
    async with (
        serving(app) as url,
        aiohttp.ClientSession(headers={"authorization": "Bearer dg-ann"}) as session,
    ):
        for name in ("fast", "slow"):
            body = {"model": name, "messages": [{"role": "user", "content": "Hi."}]}
            await (await session.post(f"{url}/v1/chat/completions", json=body)).read()
    return [
        record.payload
        for record in log.find("llm.call_completed", "llm.call_failed")
        if record.turn != "t1"
    ]


async def test_every_field_of_a_call_record_is_written_by_some_call(tmp_path: Path) -> None:
    written: dict[type, set[str]] = {}
    for record in await collect(tmp_path):
        names = set(msgspec.json.decode(msgspec.json.encode(record)))
        written.setdefault(type(record), set()).update(names)
    for kind in (CallStarted, CallCompleted, CallFailed, RoutingSwitched):
        assert set(kind.__struct_encode_fields__) - written[kind] == set(), kind
