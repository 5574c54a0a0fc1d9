"""Test the conformance check for embedding and reranking servers, as a function and as a command."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from dragoman import Embeddings, Ranking, Vectors
from dragoman.capabilities import Capabilities
from dragoman.cli import main
from dragoman.conformance.retrieval import check_retrieval_server
from dragoman.sim import ScriptedProvider, SimServer, SimulatedEmbedder, SimulatedReranker


@pytest.mark.parametrize("wire", ["openai", "cohere", "tei"])
async def test_correct_embedding_server_passes_the_check(wire: str) -> None:
    with SimServer(ScriptedProvider("Hi.")) as server:
        base = {"openai": "/v1", "cohere": "", "tei": "/tei"}[wire]
        report = await check_retrieval_server(server.url + base, "sim", "embed", wire)
        assert [each.status for each in report.outcomes] == ["pass"] * 5, report.outcomes
        assert report.capabilities.known("max_dimensions") == 64
        assert report.capabilities.known("supports_dimensions") is True
        report = await check_retrieval_server(server.url + base, "sim", "rerank", wire)
        assert not report.failed
        assert report.capabilities.known("supports_reranking") is True


class Shuffled(SimulatedEmbedder):
    """Embed texts with two faults: the vectors are in the wrong order, and the requested
    dimensions are ignored.
    """

    async def answer(self, request: Any) -> Embeddings:
        found = await super().answer(replace(request, dimensions=None))
        return replace(found, vectors=Vectors.of([row.tolist() for row in found.vectors][::-1]))


class Greedy(SimulatedReranker):
    """Rank only the first document."""

    async def answer(self, request: Any) -> Ranking:
        found = await super().answer(request)
        return replace(found, results=found.results[:1])


async def test_check_detects_faulty_embedding_servers() -> None:
    with SimServer(ScriptedProvider("Hi."), embedder=Shuffled(), reranker=Greedy()) as server:
        url = f"{server.url}/v1"
        found = {
            each.name: each.status
            for each in (await check_retrieval_server(url, "sim", "embed")).outcomes
        }
        assert found["embed.order"] == "fail"
        assert found["embed.dimensions"] == "unsupported"
        report = await check_retrieval_server(url, "sim", "rerank")
        assert {each.name: each.status for each in report.outcomes}["rerank.scores"] == "fail"


def test_check_command_tests_an_embedding_server(tmp_path: Path) -> None:
    with SimServer(ScriptedProvider("Hi.")) as server:
        words = ["check", f"{server.url}/v1", "--model", "sim", "--operation", "embed", "--json"]
        done = CliRunner().invoke(main, [*words, "--save", str(tmp_path / "found.json")])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["failed"] is False
        assert Capabilities.read(tmp_path / "found.json").known("supports_embeddings") is True
        assert (
            CliRunner().invoke(main, ["check", server.url, "--operation", "rerank"]).exit_code == 2
        )
