"""Test embeddings and reranking through a gateway: vendor clients, keys, limits and records."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import cohere
import httpx
import msgspec
import ollama
import openai
import pytest

from dragoman import InvalidRequestError, RateLimitError, connect_embedder
from dragoman.gateway.access import Bounds
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.log import SqliteLog
from dragoman.prices import Match, PriceRow
from dragoman.registry import Registry
from dragoman.sim import ScriptedProvider, SimServer, SimulatedEmbedder, SimulatedReranker

from ..waiting import arrival, virtual_time
from .serving import serving

TEXTS = ["a red fox", "a blue whale"]


@contextlib.asynccontextmanager
async def gateway(
    *errors: Any, **settings: Any
) -> AsyncIterator[tuple[str, SimulatedEmbedder, SimulatedReranker]]:
    embedder = SimulatedEmbedder(*errors, dimensions=8)
    reranker = SimulatedReranker(*errors)
    models: Any = {"vectors": embedder, "ranks": reranker, "fast": ScriptedProvider("Hi.")}
    async with serving(create_app(models, **settings)) as url:
        yield url, embedder, reranker


async def test_openai_client_receives_embeddings_and_errors() -> None:
    expected = (await SimulatedEmbedder(dimensions=8).embed(TEXTS)).vectors.tolist()
    errors = RateLimitError("slow", retry_after=3), InvalidRequestError("no")
    async with (
        gateway(*errors) as (url, embedder, _),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        with pytest.raises(openai.RateLimitError) as caught:
            await client.embeddings.create(model="vectors", input="x")
        assert caught.value.response.headers["retry-after"] == "3"
        with pytest.raises(openai.BadRequestError, match="no"):
            await client.embeddings.create(model="vectors", input="x")
        packed = await client.embeddings.create(model="vectors", input=TEXTS)
        plain = await client.embeddings.create(
            model="vectors", input=TEXTS, encoding_format="float"
        )
        one = await client.embeddings.create(model="vectors", input="a red fox", dimensions=4)
        assert (
            [item.embedding for item in packed.data]
            == [item.embedding for item in plain.data]
            == expected
        )
        assert [item.index for item in packed.data] == [0, 1]
        assert packed.model == "vectors"
        assert packed.usage.prompt_tokens == 6
        assert len(one.data[0].embedding) == 4
        assert embedder.requests[-1].dimensions == 4
        assert "vectors" in [model.id async for model in client.models.list()]
        with pytest.raises(openai.BadRequestError, match="not the numbers of tokens"):
            await client.embeddings.create(model="vectors", input=[[1, 2, 3]])
        for name in ("nothing", "fast", "ranks"):
            with pytest.raises(openai.NotFoundError):
                await client.embeddings.create(model=name, input="x")
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(
                model="vectors", messages=[{"role": "user", "content": "x"}]
            )


async def test_cohere_client_receives_rankings_and_embeddings() -> None:
    async with (
        gateway() as (url, embedder, reranker),
        httpx.AsyncClient() as connections,
    ):
        client = cohere.AsyncClientV2(api_key="x", base_url=url, httpx_client=connections)
        ranking = await client.rerank(model="ranks", query="red fox", documents=TEXTS, top_n=1)
        assert [(each.index, each.relevance_score) for each in ranking.results] == [(0, 1.0)]
        assert ranking.meta is not None
        assert ranking.meta.billed_units is not None
        assert ranking.meta.billed_units.search_units == 1
        assert reranker.requests[-1].top_k == 1
        found = await client.embed(
            model="vectors",
            texts=TEXTS,
            input_type="search_query",
            embedding_types=["float"],
            output_dimension=4,
        )
        assert found.embeddings.float_ is not None
        assert [len(row) for row in found.embeddings.float_] == [4, 4]
        assert embedder.requests[-1].input_type == "query"
        with pytest.raises(cohere.NotFoundError):
            await client.rerank(model="nothing", query="q", documents=["d"])


async def test_ollama_client_receives_embeddings() -> None:
    async with gateway() as (url, _, _):
        client = ollama.AsyncClient(host=url)
        found = await client.embed(model="vectors", input=TEXTS)
        assert [len(row) for row in found.embeddings] == [8, 8]
        assert found.prompt_eval_count == 6
        old = await client.embeddings(model="vectors", prompt="a red fox")
        assert list(old.embedding) == list(found.embeddings[0])
        with pytest.raises(ollama.ResponseError):
            await client.embed(model="nothing", input="x")
        await client._client.aclose()  # noqa: SLF001 - the client has no close() of its own


async def test_gemini_embeddings_and_the_v1_rerank_route_work() -> None:
    async with gateway() as (url, embedder, _), aiohttp.ClientSession() as session:
        one = {
            "content": {"parts": [{"text": "a red fox"}]},
            "taskType": "RETRIEVAL_QUERY",
            "outputDimensionality": 4,
        }
        reply = await session.post(f"{url}/v1beta/models/vectors:embedContent", json=one)
        assert len((await reply.json())["embedding"]["values"]) == 4
        assert embedder.requests[-1].input_type == "query"
        both = {"requests": [{"model": "models/vectors", **one}, one]}
        reply = await session.post(f"{url}/v1beta/models/vectors:batchEmbedContents", json=both)
        assert len((await reply.json())["embeddings"]) == 2
        asked = {
            "model": "ranks",
            "query": "fox",
            "documents": ["cow", {"text": "fox"}],
            "return_documents": True,
        }
        for path in ("/v1/rerank", "/v2/rerank"):
            reply = await session.post(f"{url}{path}", json=asked)
            record = await reply.json()
            assert record["results"][0] == {
                "index": 1,
                "relevance_score": 1.0,
                "document": {"text": "fox"},
            }
        wrong = await session.post(f"{url}/v1/rerank", json={**asked, "speed": 9})
        assert wrong.status == 400
        assert "speed" in (await wrong.json())["message"]


async def test_embedding_calls_are_subject_to_keys_budgets_and_logging(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = KeyRing([
        Key("ann", hash_key("dg-ann"), budget_usd=Decimal("0.00001")),
        Key("bob", hash_key("dg-bob"), models=("fast",))
    ])  # fmt: skip
    caplog.set_level(logging.INFO, "dragoman.access")
    async with SqliteLog(tmp_path / "log.db") as log:
        async with (
            gateway(keys=keys, log=log) as (url, embedder, _),
            aiohttp.ClientSession() as session,
        ):
            embedder.priced_as = PriceRow(
                "p", Match(equals=("sim",)), input=Decimal(2), output=Decimal(0)
            )
            body = {"model": "vectors", "input": TEXTS}
            for key, status in (
                ("dg-ann", 200),
                ("dg-bob", 404),
                ("dg-eve", 401),
                ("dg-ann", 402),
            ):
                headers = {"authorization": f"Bearer {key}"}
                reply = await session.post(f"{url}/v1/embeddings", json=body, headers=headers)
                text = await reply.text()
                assert reply.status in (status, 429 if status == 402 else status), text
            assert (
                "dragoman_tokens_total"
                in await (
                    await session.get(f"{url}/metrics", headers={"authorization": "Bearer dg-bob"})
                ).text()
            )
        records = [record.payload for record in log.find("llm.call_completed", "llm.call_failed")]
    assert len(records) == 1
    done: Any = records[0]
    assert done.operation == "embed"
    assert done.input_count == 2
    assert done.dimensions == 8
    assert done.input_tokens == 6
    assert done.cost_usd == Decimal("0.000012")
    assert done.texts is None
    assert done.inbound.key == "ann"
    lines = [
        msgspec.json.decode(message) for message in caplog.messages if message.startswith("{")
    ]
    assert "llm.call_completed" in [line["type"] for line in lines]


async def test_gateway_serves_embedders_of_a_model_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SimServer(ScriptedProvider("Hi.")) as server:
        path = tmp_path / "models.yaml"
        path.write_text(
            f"adapters:\n  box: {{type: openai-compatible, base_url: '{server.url}/v1'}}\n"
            "models:\n  box:sim: {aliases: [vectors]}\n"
        )
        async with (
            serving(create_app(Registry.load(path))) as url,
            aiohttp.ClientSession() as session,
        ):
            reply = await session.post(
                f"{url}/v1/embeddings", json={"model": "vectors", "input": "a"}
            )
            assert len((await reply.json())["data"]) == 1
            reply = await session.post(
                f"{url}/v1/rerank", json={"model": "vectors", "query": "a", "documents": ["a"]}
            )
            assert (await reply.json())["results"][0]["index"] == 0


async def test_slow_embedding_ends_at_the_timeout_or_when_the_client_leaves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server accepts the request of the embedder and never replies."""
    caplog.set_level(logging.INFO, "dragoman.access")
    ended = asyncio.Event()

    async def never_reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass
        writer.close()
        ended.set()

    server = await asyncio.start_server(never_reply, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    embedder = connect_embedder("m", base_url=f"http://127.0.0.1:{port}/v1", retries=0)
    app = create_app({"vectors": embedder}, bounds=Bounds(reply_seconds=60))
    asked = {"model": "vectors", "input": "a red fox"}
    with virtual_time():
        async with server, serving(app) as url, aiohttp.ClientSession() as http:
            async with http.post(f"{url}/v1/embeddings", json=asked) as answer:
                assert answer.status == 504
                assert "longer than this gateway allows" in await answer.text()
            await arrival(ended.wait(), "the end of the first call")
            ended.clear()
            with pytest.raises(asyncio.TimeoutError):
                await http.post(
                    f"{url}/v1/embeddings", json=asked, timeout=aiohttp.ClientTimeout(30)
                )
            await arrival(ended.wait(), "the end of the second call")
    access = [each.message for each in caplog.records if each.name == "dragoman.access"]
    statuses = [json.loads(line)["inbound"]["status"] for line in access]
    assert statuses == [504, 499]
