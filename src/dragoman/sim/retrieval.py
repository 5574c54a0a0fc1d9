"""Simulate embedding and reranking models: the same texts always give the same vectors and scores.

Texts that share words are near each other, so that a search over simulated vectors finds plausible
results.
"""

from __future__ import annotations

import array
import re
import zlib
from collections.abc import Sequence
from typing import Any

from .. import retrieval
from ..errors import ProviderError
from ..events import Usage
from ..retrieval.wire import server as servers

RETRIEVAL_PATHS: dict[str, servers.RetrievalServer] = {
    **servers.RETRIEVAL_SERVERS,
    "/voyage/v1/embeddings": servers.EmbedServer("voyage"),
    "/voyage/v1/rerank": servers.RerankServer("voyage"),
    "/jina/v1/embeddings": servers.EmbedServer("jina"),
    "/jina/v1/rerank": servers.RerankServer("jina"),
    "/tei/embed": servers.EmbedServer("tei"),
    "/tei/rerank": servers.RerankServer("tei"),
}
"""The paths that are served; wires whose paths would collide have a prefix."""

RETRIEVAL_BASES = {
    "openai": "/v1",
    "cohere": "",
    "ollama": "",
    "gemini": "/v1beta",
    "voyage": "/voyage/v1",
    "jina": "/jina/v1",
    "tei": "/tei",
}
"""The path of the base URL that clients of each wire use."""

_WORD = re.compile(r"\w+")


class _Simulated(retrieval.RetrievalModel):
    """What both simulated models have in common.

    ``errors`` are raised one after the other, one per call, before any answer; a ``None`` in this
    list lets a call succeed.
    """

    def __init__(
        self,
        *errors: ProviderError | None,
        name: str = "sim",
        model: str = "sim",
        batch_size: int | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.batch_size = batch_size
        self.requests: list[Any] = []
        self._errors = list(errors)

    def _take(self, request: Any) -> None:
        self.requests.append(request)
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error


class SimulatedEmbedder(_Simulated, retrieval.Embedder):
    """Embed with a bag of words: each word adds to one dimension; the vector is normalised."""

    def __init__(
        self, *errors: ProviderError | None, dimensions: int = 64, **settings: Any
    ) -> None:
        super().__init__(*errors, **settings)
        self._dimensions = dimensions

    async def answer(self, request: retrieval.EmbedRequest) -> retrieval.Embeddings:
        self._take(request)
        size = request.dimensions or self._dimensions
        data = b"".join([_embed(text, size) for text in request.texts])
        tokens = sum([text.count(" ") + 1 for text in request.texts])
        return retrieval.Embeddings(
            vectors=retrieval.Vectors(data, size),
            model=request.model or self.model,
            usage=Usage(input_tokens=tokens),
            provider=self.name,
            request_id=request.request_id,
        )


class SimulatedReranker(_Simulated, retrieval.Reranker):
    """Score a document by the share of the query's words it contains."""

    async def answer(self, request: retrieval.RerankRequest) -> retrieval.Ranking:
        self._take(request)
        scores = _score(request.query, request.documents)
        echoes = request.documents if request.return_documents else [None] * len(scores)
        results = [retrieval.Ranked(at, score, echoes[at]) for at, score in enumerate(scores)]
        results.sort(key=lambda each: -each.relevance_score)
        return retrieval.Ranking(
            results=tuple(results[: request.top_k]),
            model=request.model or self.model,
            usage=Usage(search_units=1),
            provider=self.name,
            request_id=request.request_id,
        )


def _embed(text: str, size: int) -> bytes:
    vector = array.array("f", bytes(4 * size))
    for word in _WORD.findall(text.lower()):
        place = zlib.crc32(word.encode())
        vector[place % size] += 1.0 if place & 0x10000 else -1.0
    touched = [at for at, value in enumerate(vector) if value]
    if not touched:
        vector[zlib.crc32(text.encode()) % size] = 1.0
        return vector.tobytes()
    length = sum([vector[at] ** 2 for at in touched]) ** 0.5
    for at in touched:
        vector[at] /= length
    return vector.tobytes()


def _score(query: str, documents: Sequence[str]) -> list[float]:
    wanted = set(_WORD.findall(query.lower()))
    found = [set(_WORD.findall(document.lower())) for document in documents]
    return [round(len(wanted & words) / max(1, len(wanted)), 6) for words in found]
