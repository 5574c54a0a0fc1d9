"""Test every retrieval wire on a real socket: client, simulated server, command and synchronous
functions.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dragoman
from dragoman import InvalidRequestError, OverloadedError, RateLimitError
from dragoman.cli import main
from dragoman.retrieval import EMBED_CODECS, RERANK_CODECS
from dragoman.sim import ScriptedProvider, SimServer, SimulatedEmbedder, SimulatedReranker

TEXTS = ["a red fox", "a blue whale", "the red house", ""]
QUIRKS: dict[str, Any] = {
    "openai": {"encoding_format": "base64"},
    "voyage": {"encoding_format": "base64"},
    "jina": {"embedding_type": "base64"},
    "cohere": {"embedding_type": "base64"},
}


@pytest.fixture(scope="module")
def server() -> Any:
    with SimServer(ScriptedProvider("Hi.")) as running:
        yield running


@pytest.mark.parametrize("wire", sorted(EMBED_CODECS))
@pytest.mark.parametrize("packed", [False, True])
async def test_embed_works_over_a_socket(server: SimServer, wire: str, packed: bool) -> None:
    expected = await SimulatedEmbedder().embed(TEXTS)
    quirks = QUIRKS.get(wire) if packed else None
    async with server.connect_embedder(wire, quirks=quirks, batch_size=3) as embedder:
        found = await embedder.embed(TEXTS)
        assert found.vectors == expected.vectors
        short = await embedder.embed(["a red fox"], dimensions=8)
        assert short.dimensions == 8
        assert short.warnings == ()
    assert found.usage.input_tokens == expected.usage.input_tokens


@pytest.mark.parametrize("wire", sorted({*EMBED_CODECS, *RERANK_CODECS}))
async def test_models_of_every_wire_are_ready(server: SimServer, wire: str) -> None:
    if wire in EMBED_CODECS:
        async with server.connect_embedder(wire) as embedder:
            await embedder.ready()
    if wire in RERANK_CODECS:
        async with server.connect_reranker(wire) as reranker:
            await reranker.ready()


@pytest.mark.parametrize("wire", ["cohere", "gemini", "jina", "voyage"])
async def test_input_types_reach_the_server(server: SimServer, wire: str) -> None:
    async with server.connect_embedder(wire) as embedder:
        for kind in ("query", "document"):
            await embedder.embed(["x"], input_type=kind)
            seen: Any = server.embedder
            assert seen.requests[-1].input_type == kind


@pytest.mark.parametrize("wire", sorted(RERANK_CODECS))
async def test_rerank_works_over_a_socket(server: SimServer, wire: str) -> None:
    async with server.connect_reranker(wire) as reranker:
        found = await reranker.rerank("red fox", TEXTS[:3], top_k=2, return_documents=True)
    assert [(each.index, each.relevance_score) for each in found.results] == [(0, 1.0), (2, 0.5)]
    if wire != "cohere":
        assert [each.document for each in found.results] == ["a red fox", "the red house"]
    assert found.usage.search_units == (1 if wire == "cohere" else None)


@pytest.mark.parametrize("wire", sorted(EMBED_CODECS))
async def test_simulated_error_arrives_as_an_error_of_the_same_class(wire: str) -> None:
    errors = (
        RateLimitError("slow", retry_after=2),
        OverloadedError("the model is overloaded"),
        InvalidRequestError("no"),
    )
    with SimServer(ScriptedProvider("Hi."), embedder=SimulatedEmbedder(*errors)) as server:
        async with server.connect_embedder(wire) as embedder:
            for error in errors:
                with pytest.raises(type(error)):
                    await embedder.embed(["x"])
            assert len((await embedder.embed(["x"])).vectors) == 1


async def test_simulated_embeddings_of_similar_texts_are_near_each_other() -> None:
    found = await SimulatedEmbedder().embed(["a red fox", "the red fox", "blue whales swim"])
    first, second, third = [row.tolist() for row in found.vectors]
    assert _dot(first, second) > _dot(first, third)
    assert _dot(first, first) == pytest.approx(1.0, abs=1e-6)


def _dot(one: list[float], other: list[float]) -> float:
    return sum([a * b for a, b in zip(one, other, strict=True)])


async def test_a_simulated_reranker_returns_documents() -> None:
    ranking = await SimulatedReranker().rerank("fox", ["fox", "cow"], return_documents=True)
    assert [each.document for each in ranking.results] == ["fox", "cow"]


# --- synchronous embedders and rerankers -------------------------------------------------------


def test_synchronous_embedders_and_rerankers_work(server: SimServer) -> None:
    base_url = f"{server.url}/v1"
    with dragoman.sync.connect_embedder("sim", base_url=base_url) as embedder:
        embedder.ready()
        assert len(embedder.embed(["a", "b"], dimensions=4).vectors) == 2
        assert embedder.cancel("none") is False
        assert embedder.embedder.model == embedder.model == "sim"
        assert "sync" in repr(embedder)
    with dragoman.sync.connect_reranker("sim", base_url=base_url) as reranker:
        reranker.ready()
        assert reranker.rerank("a", ["b", "a"]).results[0].index == 1
        assert reranker.cancel("none") is False
        assert reranker.reranker.name == reranker.name
        assert "sync" in repr(reranker)


# --- dragoman embed and dragoman rerank, the commands ------------------------------------------


def _run(*words: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(main, list(words), input=stdin)


def test_embed_command_prints_vectors(server: SimServer, tmp_path: Path) -> None:
    where = ("--base-url", f"{server.url}/v1")
    done = _run("embed", "sim", "one", "two", "--json", "--dimensions", "4", *where)
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["count"] == 2
    assert record["dimensions"] == 4
    assert len(record["vectors"]) == 2
    assert record["usage"] == {"input_tokens": 2}
    done = _run("embed", "sim", "--batch-size", "1", *where, stdin="first line\n\nsecond line\n")
    assert [len(json.loads(line)) for line in done.stdout.splitlines()] == [64, 64]
    done = _run("embed", "sim", "one", "--input-type", "query", *where)
    assert "warning: input_type" in done.stderr
    for name in ("out.npy", "out.jsonl"):
        done = _run("embed", "sim", "one", "two", "-o", str(tmp_path / name), *where)
        assert done.exit_code == 0, done.output
    numpy = pytest.importorskip("numpy")
    matrix = numpy.load(tmp_path / "out.npy")
    assert matrix.shape == (2, 64)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert numpy.allclose(matrix, [line["vector"] for line in lines])


def test_rerank_command_prints_the_ranking(server: SimServer) -> None:
    where = ("--base-url", f"{server.url}/v1")
    done = _run("rerank", "sim", "red fox", "a cow", "a red fox", "--json", "--top-k", "1", *where)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["results"] == [
        {"index": 1, "relevance_score": 1.0, "document": "a red fox"}
    ]
    done = _run("rerank", "sim", "red fox", *where, stdin="a cow\na red fox\n")
    assert done.stdout.splitlines() == ["  1.0000  a red fox", "  0.0000  a cow"]


def test_invalid_usage_of_the_commands_is_reported(server: SimServer) -> None:
    assert _run("embed", "sim", "--base-url", f"{server.url}/v1", stdin="").exit_code == 2
    assert _run("rerank", "sim", "q", "--base-url", f"{server.url}/v1", stdin="").exit_code == 2
    done = _run("embed", "nonsense", "x")
    assert done.exit_code not in (0, 1)
    assert "vendor:model" in done.stderr
    done = _run("embed", "sim", "x", "--base-url", "ftp://x")
    assert done.exit_code == 2
