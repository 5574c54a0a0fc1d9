"""Test opening embedders and rerankers by name: the catalogue, models.yaml, keys and prices."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dragoman as d
from dragoman.registry import ConfigError
from dragoman.transport import FixtureTransport

KEYS = ("OPENAI_API_KEY", "COHERE_API_KEY", "VOYAGE_API_KEY", "JINA_API_KEY", "GEMINI_API_KEY")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(tmp_path / "models.yaml"))
    (tmp_path / "models.yaml").write_text("")
    for name in KEYS:
        monkeypatch.setenv(name, f"key-of-{name}")


def _vectors() -> tuple[int, dict[str, str], list[bytes]]:
    record = {
        "data": [{"index": 0, "embedding": [1.0, 2.0]}],
        "usage": {"prompt_tokens": 1000, "total_tokens": 1000},
        "embeddings": [[1.0, 2.0]],
    }
    return 200, {}, [msgspec.json.encode(record)]


NAMES = [
    ("openai:text-embedding-3-small", "https://api.openai.com/v1/embeddings"),
    ("ollama:nomic-embed-text", "http://127.0.0.1:11434/api/embed"),
    ("voyage:voyage-3.5", "https://api.voyageai.com/v1/embeddings"),
    ("jina:jina-embeddings-v3", "https://api.jina.ai/v1/embeddings"),
    ("llamacpp:anything", "http://127.0.0.1:8080/v1/embeddings"),
    ("vllm:bge", "http://127.0.0.1:8000/v1/embeddings"),
]


@pytest.mark.parametrize(("name", "url"), NAMES)
async def test_embedder_is_opened_by_name(name: str, url: str) -> None:
    transport = FixtureTransport(_vectors())
    found = await d.connect_embedder(name, transport=transport).embed(["a"])
    assert transport.requests[0].url == url
    assert found.vectors.tolist() == [[1.0, 2.0]]
    assert found.provider == name.partition(":")[0]


async def test_base64_vectors_are_requested_from_vendors_known_to_support_them() -> None:
    transport = FixtureTransport(_vectors(), _vectors())
    await d.connect_embedder("openai:text-embedding-3-small", transport=transport).embed(["a"])
    assert msgspec.json.decode(transport.requests[0].body)["encoding_format"] == "base64"
    await d.connect_embedder("together:some-model", transport=transport, api_key="k").embed(["a"])
    assert "encoding_format" not in msgspec.json.decode(transport.requests[1].body)


RERANKERS = [
    ("cohere:rerank-v3.5", "https://api.cohere.com/v2/rerank"),
    ("voyage:rerank-2.5", "https://api.voyageai.com/v1/rerank"),
    ("jina:jina-reranker-v3", "https://api.jina.ai/v1/rerank"),
    ("llamacpp:bge-reranker", "http://127.0.0.1:8080/v1/rerank"),
    ("tei:bge-reranker", "http://127.0.0.1:8080/rerank"),
]


@pytest.mark.parametrize(("name", "url"), RERANKERS)
async def test_reranker_is_opened_by_name(name: str, url: str) -> None:
    results = [{"index": 0, "relevance_score": 1.0, "score": 1.0}]
    body: Any = results if name.startswith("tei") else {"results": results, "data": results}
    transport = FixtureTransport((200, {}, [msgspec.json.encode(body)]))
    found = await d.connect_reranker(name, transport=transport).rerank("q", ["a"])
    assert transport.requests[0].url == url
    assert found.results[0].index == 0


def test_vendor_without_embeddings_is_rejected() -> None:
    with pytest.raises(d.InvalidModelError, match="no model of anthropic embeds"):
        d.connect_embedder("anthropic:claude-sonnet-4-6", api_key="k")
    with pytest.raises(d.InvalidModelError, match="no model of google ranks"):
        d.connect_reranker("google:gemini-embedding-001")


def test_vendor_without_chat_models_is_rejected_for_chat() -> None:
    with pytest.raises(d.InvalidModelError, match="is not a chat model") as caught:
        d.connect("voyage:voyage-3.5")
    assert "connect_embedder" in str(caught.value)


def test_error_names_the_variable_of_a_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COHERE_API_KEY")
    with pytest.raises(d.AuthenticationError, match="COHERE_API_KEY"):
        d.connect_reranker("cohere:rerank-v3.5")


def test_error_for_an_unknown_name_explains_valid_names() -> None:
    with pytest.raises(d.InvalidModelError, match="vendor:model"):
        d.connect_embedder("nonsense")


FILE = """
adapters:
  box:
    type: openai-compatible
    base_url: http://10.0.0.5:7997
    max_retries: 3
    embed: {wire: tei, quirks: {prompt_names: {query: search}}}
    rerank: {wire: jina, base_url: http://10.0.0.6:9000/v1}
models:
  box:bge-small: {aliases: [vectors], capabilities: {max_batch_size: 8}, priced_as: free}
"""


async def test_models_yaml_configures_wires_and_limits(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(FILE)
    registry = d.Registry.load(tmp_path / "models.yaml")
    transport = FixtureTransport((200, {}, [b"[[1.0]]"]))
    embedder = registry.open_embedder("vectors", transport=transport)
    assert embedder.batch_size == 8
    assert (await embedder.embed(["a"], input_type="query")).warnings == ()
    assert transport.requests[0].url == "http://10.0.0.5:7997/embed"
    assert d.describe(embedder).splitlines() == [
        "Retry(max_retries=3)",
        "HttpEmbedder box:bge-small",
    ]
    assert d.describe(registry.open_reranker("vectors", retries=0)) == "HttpReranker box:bge-small"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("embed: {wire: anthropic}", "adapters.box.embed.wire: must be one of"),
        ("rerank: {wire: tei, quirks: {nonsense: 1}}", "adapters.box.rerank: quirks"),
        ("embed: {speed: 9}", "adapters.box.embed.speed: unknown key"),
    ],
)
def test_error_locates_a_mistake_in_models_yaml(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(
        f"adapters:\n  box:\n    type: openai-compatible\n    base_url: http://h\n    {text}\n"
    )
    with pytest.raises(ConfigError) as caught:
        d.Registry.load(path)
    assert "models.yaml:5: " in str(caught.value)
    assert message in str(caught.value)


# --- the cost of embedding and reranking -------------------------------------------------------


async def test_embedding_cost_is_computed() -> None:
    transport = FixtureTransport(_vectors())
    found = await d.connect_embedder("openai:text-embedding-3-small", transport=transport).embed(
        ["a"]
    )
    assert d.cost(found).total == Decimal("0.00002")
    assert found.cost == d.cost(found)


async def test_reranking_is_priced_by_the_number_of_searches() -> None:
    body = {
        "results": [{"index": 0, "relevance_score": 1}],
        "meta": {"billed_units": {"search_units": 3}},
    }
    transport = FixtureTransport((200, {}, [msgspec.json.encode(body)]))
    found = await d.connect_reranker("cohere:rerank-v3.5", transport=transport).rerank("q", ["a"])
    bill = d.cost(found)
    assert bill.total == Decimal("0.006")
    assert bill.parts == {"search": Decimal("0.006")}


def test_reranking_has_no_cost_if_the_number_of_searches_is_unknown() -> None:
    bill = d.cost(d.Usage(input_tokens=5), "cohere:rerank-v3.5")
    assert not bill
    assert "search_units" in bill.reason


def test_price_per_search_of_a_custom_price_table_is_used(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("rows:\n  - {provider: x, match: {equals: [r]}, search: '1.5'}\n")
    assert d.cost(d.Usage(search_units=2), "x:r", table=d.PriceTable.load(path)).total == Decimal(
        "0.003"
    )
    path.write_text("rows:\n  - {provider: x, match: {equals: [r]}, search: '-1'}\n")
    with pytest.raises(ValueError, match="search"):
        d.PriceTable.load(path)
