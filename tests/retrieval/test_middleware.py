"""Test middleware around embedders and rerankers."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.calls import CallCompleted, CallFailed, CallStarted, RoutingSwitched
from dragoman.middleware import CACHE, CassetteMiss, Middleware
from dragoman.prices import Match, PriceRow


class Plain(d.Embedder):
    """Raise the given errors first; then embed each text as a vector that contains its length."""

    batch_size = 2

    def __init__(self, *errors: Exception | None, name: str = "plain", model: str = "m") -> None:
        self.name = name
        self.model = model
        self.errors = list(errors)
        self.requests: list[d.EmbedRequest] = []
        self.closed = False

    async def answer(self, request: d.EmbedRequest) -> d.Embeddings:
        self.requests.append(request)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        rows = [[float(len(text)), 1.0] for text in request.texts]
        return d.Embeddings(
            vectors=d.Vectors.of(rows),
            model="m-1",
            usage=d.Usage(input_tokens=len(rows)),
            response_id="id",
            provider=self.name,
        )

    async def close(self) -> None:
        self.closed = True


class Ranks(d.Reranker):
    name = "ranks"
    model = "r"

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.requests: list[d.RerankRequest] = []

    async def answer(self, request: d.RerankRequest) -> d.Ranking:
        self.requests.append(request)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        results = tuple([d.Ranked(at, float(-at)) for at in range(len(request.documents))])
        return d.Ranking(
            results=results[: request.top_k], usage=d.Usage(search_units=1), model="r"
        )


async def _no_sleep(seconds: float) -> None:
    slept.append(seconds)


slept: list[float] = []


# --- the retry middleware around embedders -----------------------------------------------------


async def test_retry_repeats_only_the_failed_request_of_a_split_call() -> None:
    slept.clear()
    inner = Plain(None, d.OverloadedError("busy"), None)
    embedder: Any = d.Retry(inner, sleep=_no_sleep, random=lambda: 0.5)
    assert isinstance(embedder, d.Embedder)
    found = await embedder.embed(["a", "bb", "ccc"])
    assert [row[0] for row in found.vectors] == [1, 2, 3]
    assert [list(request.texts) for request in inner.requests] == [["a", "bb"], ["ccc"], ["ccc"]]
    assert [request.metadata["dragoman.attempt"] for request in inner.requests] == ["0", "0", "1"]
    assert slept == [1.0]
    assert found.usage == d.Usage(input_tokens=3)


async def test_error_after_exhausted_retries_carries_the_earlier_results() -> None:
    inner = Plain(None, *[d.OverloadedError("busy") for _ in range(3)])
    embedder: Any = d.Retry(inner, sleep=_no_sleep)
    with pytest.raises(d.OverloadedError) as caught:
        await embedder.embed(["a", "b", "c"])
    assert caught.value.retry_count == 2
    assert len(caught.value.response.vectors) == 2
    assert "gave up after 3 attempts" in caught.value.__notes__


# --- the fallback middleware around embedders --------------------------------------------------


async def test_fallback_uses_another_server_of_the_same_model() -> None:
    seen: list[Any] = []
    first = Plain(d.RateLimitError("slow"), name="a")
    second = Plain(name="b")
    embedder: Any = d.Fallback([first, second], on_event=seen.append)
    found = await embedder.embed(["a", "b", "c"])
    assert len(found.vectors) == 3
    assert len(first.requests) == 2
    assert len(second.requests) == 1
    assert [type(event) for event in seen] == [RoutingSwitched]
    assert d.describe(embedder) == "Fallback(name='fallback')\n  1. Plain a:m\n  2. Plain b:m"
    await embedder.close()
    assert first.closed
    assert second.closed


async def test_fallback_calls_the_cheapest_server_of_a_model() -> None:
    dear = Plain(name="a")
    cheap = Plain(name="b")
    for model, price in ((dear, 2), (cheap, 1)):
        model.priced_as = PriceRow(
            "p", Match(equals=("m",)), input=Decimal(price), output=Decimal(0)
        )
    await d.Fallback([dear, cheap], strategy="cheapest").embed(["a"])
    assert len(dear.requests) == 0
    assert len(cheap.requests) == 1


def test_fallback_rejects_servers_of_different_embedding_models() -> None:
    for candidates, message in [
        (
            [Plain(), Plain(name="b", model="other")],
            "'other' and candidates\\[0\\] 'm'; vectors and scores",
        ),
        ([Plain(), Plain()], "which is in the list before it"),
        ([Plain(model="r"), Ranks()], "does not embed"),
    ]:
        listed: Any = candidates
        with pytest.raises(ValueError, match=message):
            d.Fallback(listed)


# --- the rate limit middleware around embedders ------------------------------------------------


async def test_a_rate_limit_counts_the_requests_that_are_sent() -> None:
    now = [0.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    inner = Plain()
    embedder: Any = d.RateLimit(inner, requests_per_minute=2, clock=lambda: now[0], sleep=sleep)
    await embedder.embed(["a"] * 7)  # seven texts in batches of two are four requests
    assert len(inner.requests) == 4
    assert now[0] == pytest.approx(60.0)


@pytest.mark.parametrize(("reports", "waits"), [(True, False), (False, True)])
async def test_estimated_tokens_count_unless_others_are_reported(
    reports: bool, waits: bool
) -> None:
    now = [0.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    class Counting(Plain):
        async def answer(self, request: d.EmbedRequest) -> d.Embeddings:
            found = await super().answer(request)
            return found if reports else replace(found, usage=d.Usage())

    embedder = d.RateLimit(Counting(), tokens_per_minute=10, clock=lambda: now[0], sleep=sleep)
    await embedder.embed(["one two three four five six seven eight nine ten eleven"])
    await embedder.embed(["one"])
    assert (now[0] > 0) is waits


# --- the observe middleware around embedders ---------------------------------------------------


async def test_every_request_is_reported_as_one_event() -> None:
    seen: list[Any] = []
    inner = Plain(None, d.OverloadedError("busy"))
    inner.priced_as = PriceRow("p", Match(equals=("m",)), input=Decimal(2), output=Decimal(0))
    embedder: Any = d.Observe(inner, seen.append)
    with pytest.raises(d.OverloadedError):
        await embedder.embed(
            ["a", "b", "c"], input_type="query", dimensions=2, request_id="r", session_id="s"
        )
    await embedder.close()
    assert [type(event) for event in seen] == [CallStarted, CallCompleted, CallStarted, CallFailed]
    done = seen[1]
    failed = seen[3]
    assert done.operation == failed.operation == "embed"
    assert done.settings == {"input_type": "query", "dimensions": 2}
    assert done.input_count == 2
    assert failed.input_count == 1
    assert done.dimensions == 2
    assert done.response_model == "m-1"
    assert done.response_id == "id"
    assert done.input_tokens == 2
    assert done.output_tokens is None
    assert done.cost_usd == Decimal("0.000004")
    facts = (failed.error_class, failed.category, failed.input_tokens)
    assert facts == ("rate_limit", "provider_unavailable", None)
    assert done.request_id == "r"
    assert done.session_id == "s"
    assert done.texts is None


async def test_content_is_reported_only_on_request() -> None:
    seen: list[Any] = []
    reranker: Any = d.Observe(Ranks(), seen.append, include_content=True)
    await reranker.rerank("q", ["a", "b"], top_k=1, return_documents=False)
    await reranker.flush()
    done = seen[-1]
    assert done.operation == "rerank"
    assert done.query == "q"
    assert done.documents == ("a", "b")
    assert done.document_count == 2
    assert done.top_k == 1
    assert done.result_count == 1
    assert done.search_units == 1
    assert done.settings == {"return_documents": False}


async def test_a_cancelled_request_is_reported() -> None:
    class Stuck(Plain):
        async def answer(self, request: d.EmbedRequest) -> d.Embeddings:
            await asyncio.Event().wait()
            raise AssertionError

    seen: list[Any] = []
    embedder: Any = d.Observe(Stuck(), seen.append)
    call = asyncio.ensure_future(embedder.embed(["a"]))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await embedder.close()
    assert seen[-1].error_class == "cancelled"


# --- the cassette middleware around embedders and rerankers ------------------------------------


async def test_cassette_replays_embeddings(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    inner = Plain(None, d.RateLimitError("slow", status=429, retry_after=3.0))
    recording: Any = d.Record(inner, path)
    first = await recording.embed(["a", "bb"], extras={"api_key": "sk-secretsecret1"})
    with pytest.raises(d.RateLimitError):
        await recording.embed(["ccc"])
    assert "secretsecret" not in path.read_text()
    silent = Plain()
    playing: Any = d.Record(silent, path)
    again = await playing.embed(["a", "bb"], extras={"api_key": "sk-another"})
    assert again.vectors == first.vectors
    assert again.usage == first.usage
    assert again.model == first.model
    with pytest.raises(d.RateLimitError) as caught:
        await playing.embed(["ccc"])
    assert caught.value.retry_after == 3.0
    assert caught.value.status == 429
    with pytest.raises(CassetteMiss, match="not on the cassette"):
        await playing.embed(["d"])
    with pytest.raises(CassetteMiss, match="once more"):
        await playing.embed(["ccc"])
    assert silent.requests == []


async def test_cassette_replays_rankings(tmp_path: Path) -> None:
    recording: Any = d.Record(Ranks(), tmp_path / "t", "record")
    first = await recording.rerank("q", ["a", "b"], top_k=1)
    playing: Any = d.Record(Ranks(), tmp_path / "t", "replay")
    assert (await playing.rerank("q", ["a", "b"], top_k=1)).results == first.results
    off: Any = d.Record(Ranks(), tmp_path / "none", "off")
    await off.rerank("q", ["a"])
    assert not (tmp_path / "none").exists()


# --- the cache middleware around embedders and rerankers ---------------------------------------


async def test_cache_sends_only_missing_texts(tmp_path: Path) -> None:
    inner = Plain()
    inner.batch_size = 10
    embedder: Any = d.Cache(inner, tmp_path / "cache.db")
    await embedder.embed(["a", "bb"])
    found = await embedder.embed(["ccc", "a", "dddd", "bb"])
    assert [row[0] for row in found.vectors] == [3, 1, 4, 2]
    assert list(inner.requests[1].texts) == ["ccc", "dddd"]
    assert found.usage == d.Usage(input_tokens=2)
    whole = await embedder.embed(["bb", "dddd"])
    assert whole.usage.from_cache is True
    assert whole.usage.input_tokens == 0
    assert len(inner.requests) == 2
    await embedder.embed(["a"], metadata={CACHE: "off"})
    await embedder.embed(["a"], metadata={CACHE: "refresh"})
    await embedder.embed(["a"], dimensions=2)  # another setting has its own cache entry
    assert len(inner.requests) == 5
    await embedder.close()
    assert inner.closed


async def test_cached_rankings_are_returned_without_a_request(tmp_path: Path) -> None:
    inner = Ranks()
    reranker: Any = d.Cache(inner, tmp_path / "cache.db")
    first = await reranker.rerank("q", ["a", "b"])
    again = await reranker.rerank("q", ["a", "b"])
    assert again.results == first.results
    assert again.usage.search_units == 0
    assert again.usage.from_cache is True
    assert len(inner.requests) == 1
    await reranker.close()


# --- layers around models of another operation -------------------------------------------------


async def test_layer_rejects_calls_that_its_model_does_not_support() -> None:
    ranks = d.Retry(Ranks())
    embeds = d.Retry(Plain())
    with pytest.raises(d.UnsupportedFeatureError, match="does not embed"):
        await ranks.embed(["a"])
    with pytest.raises(d.UnsupportedFeatureError, match="does not rerank"):
        await embeds.rerank("q", ["a"])
    with pytest.raises(d.UnsupportedFeatureError, match="does not chat"):
        await embeds.complete("Hi")
    assert type(embeds) is d.Retry


def test_settings_of_chats_are_rejected_around_an_embedder() -> None:
    with pytest.raises(ValueError, match="settings of chats"):
        d.Retry(Plain(), reask=lambda error: "again")
    with pytest.raises(TypeError, match="must be a Provider, not Plain"):
        Custom(Plain())


class Custom(Middleware):
    def events(self, request: Any) -> Any:
        return self.inner.events(request)


# --- description of middleware around an embedder ----------------------------------------------


async def test_middleware_around_an_embedder_describes_itself_and_forwards_everything() -> None:
    inner = Plain()
    stack: Any = d.Retry(d.RateLimit(d.Observe(inner), requests_per_minute=60))
    assert d.describe(stack).splitlines() == [
        "Retry(max_retries=2)",
        "RateLimit(requests_per_minute=60)",
        "Observe(subscribers=[], queue_size=1000, include_content=False)",
        "Plain plain:m",
    ]
    assert stack.name == "plain"
    assert stack.model == "m"
    assert stack.batch_size == 2
    await stack.ready()
    await stack.close()
    assert inner.closed
