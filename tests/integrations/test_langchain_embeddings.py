"""Run LangChain's standard tests for embeddings, unmodified, over real sockets to the simulator."""

import asyncio
from typing import Any, ClassVar

import pytest
from langchain_core.embeddings import Embeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests
from msgspec.structs import replace
from pydantic import SecretStr

import dragoman.integrations
from dragoman import LossWarning, RateLimitError
from dragoman.integrations import langchain, pydantic_ai
from dragoman.integrations.langchain import DragomanEmbeddings, DragomanLossWarning
from dragoman.retrieval import EMBED_CODECS, EmbedRequest
from dragoman.retrieval import Embeddings as Embedded
from dragoman.sim import SimServer, SimulatedEmbedder
from dragoman.sim.retrieval import RETRIEVAL_BASES

from ..waiting import PATIENCE


def seen(server: SimServer) -> list[Any]:
    embedder: Any = server.embedder
    requests: list[Any] = embedder.requests
    return requests


class TestUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return DragomanEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": "m", "base_url": "http://127.0.0.1:9/v1"}


class TestIntegration(EmbeddingsIntegrationTests):
    params: ClassVar[dict[str, Any]]

    @pytest.fixture(autouse=True, params=sorted(EMBED_CODECS))
    def _world(self, server: SimServer, request: pytest.FixtureRequest) -> None:
        wire = request.param
        type(self).params = {
            "model": "sim",
            "base_url": server.url + RETRIEVAL_BASES[wire],
            "wire": wire,
        }

    @property
    def embeddings_class(self) -> type[Embeddings]:
        return DragomanEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return self.params


# --- what LangChain's tests do not cover -------------------------------------------------------


def connect_wire(server: SimServer, wire: str, **settings: Any) -> DragomanEmbeddings:
    return DragomanEmbeddings(
        model="sim", base_url=server.url + RETRIEVAL_BASES[wire], wire=wire, **settings
    )


async def test_input_types_and_settings_are_sent(server: SimServer) -> None:
    model = connect_wire(
        server, "voyage", dimensions=8, batch_size=2, api_key="k", timeout=PATIENCE
    )
    before = len(seen(server))
    vectors = await model.aembed_documents(["a", "b", "c"])
    assert [len(vector) for vector in vectors] == [8, 8, 8]
    assert await asyncio.to_thread(model.embed_documents, ["a", "b", "c"]) == vectors
    assert (
        await model.aembed_query("a")
        == await asyncio.to_thread(model.embed_query, "a")
        == vectors[0]
    )
    sent = [(request.input_type, [*request.texts]) for request in seen(server)[before:]]
    documents = [("document", ["a", "b"]), ("document", ["c"])]
    assert sent == [*documents, *documents, ("query", ["a"]), ("query", ["a"])]


def test_text_prefixes_replace_the_input_type(server: SimServer) -> None:
    connect_wire(server, "openai", prefixes={"query": "query: "}).embed_query("Rhine")
    assert [*seen(server)[-1].texts] == ["query: Rhine"]


async def test_embedding_an_empty_list_sends_no_request() -> None:
    embedder = SimulatedEmbedder()
    model = DragomanEmbeddings(embedder=embedder)
    assert model.embed_documents([]) == []
    assert await model.aembed_documents([]) == []
    assert embedder.requests == []


async def test_embedder_that_is_already_open_is_used_and_its_errors_are_raised() -> None:
    model = DragomanEmbeddings(embedder=SimulatedEmbedder(RateLimitError("slow down"), None))
    with pytest.raises(RateLimitError):
        await model.aembed_query("a")
    assert len(await model.aembed_query("a")) == 64


def test_settings_that_cannot_be_sent_are_reported_as_warnings() -> None:
    class Lossy(SimulatedEmbedder):
        async def answer(self, request: EmbedRequest) -> Embedded:
            losses = [
                LossWarning(code, "dimensions", "ignored")
                for code in ("dimensions_ignored", "input_type_dropped")
            ]
            return replace(await super().answer(request), warnings=tuple(losses))

    with pytest.warns(DragomanLossWarning, match="dimensions_ignored") as caught:
        DragomanEmbeddings(embedder=Lossy()).embed_query("a")
    assert [warning.filename for warning in caught] == [__file__]


def test_connections_are_closed_with_the_event_loop(server: SimServer) -> None:
    model = connect_wire(server, "openai")
    found = [asyncio.run(model.aembed_query("a")) for _ in range(2)]
    assert found[0] == found[1]


def test_repr_does_not_contain_the_api_key() -> None:
    model = DragomanEmbeddings(model="m", api_key=SecretStr("hidden"))
    assert "hidden" not in repr(model)


def test_all_integrations_share_one_warning_class() -> None:
    known = {
        module.DragomanLossWarning for module in (dragoman.integrations, langchain, pydantic_ai)
    }
    assert known == {DragomanLossWarning}
