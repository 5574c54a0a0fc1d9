"""Jina: ``/v1/embeddings`` with a task, and ``/v1/rerank``.

Texts that are too long are rejected, not truncated. Tasks beyond ``query`` and ``document`` differ
between versions of Jina's models; set them with ``extras={"task": ...}``.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar, Literal

from msgspec import Struct

from ...wire.codec import Encoded, HttpReply, HttpRequest, Notes
from ...wire.urls import join_url
from ..values import EmbedRequest, RerankRequest
from .codec import EmbedCodec, EmbedPart, RankPart, RerankCodec, choose_input_type
from .reading import read_any, read_listed, read_name, read_results, read_usage

_TASKS = {"query": "retrieval.query", "document": "retrieval.passage"}


class EmbedQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for a server of the jina wire that embeds.

    ``embedding_type`` is the format of the vectors in the reply, and is sent only if it is set;
    ``base64`` makes replies three times smaller than numbers. ``batch_limit`` is the maximum
    number of texts in a request; unlimited by default.
    """

    embedding_type: Literal["base64", "float"] | None = None
    batch_limit: int | None = None


class JinaEmbed(EmbedCodec[EmbedQuirks]):
    """Encode and decode ``/v1/embeddings`` for one model at one base URL."""

    wire: ClassVar[str] = "jina"
    quirks_type = EmbedQuirks

    def encode(self, request: EmbedRequest) -> Encoded:
        body: dict[str, Any] = {"model": request.model or self.model}
        task = choose_input_type(request, _TASKS)
        if task is not None:
            body["task"] = task
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        if self.quirks.embedding_type is not None:
            body["embedding_type"] = self.quirks.embedding_type
        body |= {"truncate": False, "input": list(request.texts)}
        return self.post(
            join_url(self.base_url, "/embeddings", default="/v1"), body, request, Notes()
        )

    def decode(self, reply: HttpReply, request: EmbedRequest) -> EmbedPart:
        read, data, dimensions = read_listed(reply, len(request.texts), self.inband_error)
        usage = read_usage(read.usage, "total_tokens", "prompt_tokens")
        return EmbedPart(data, dimensions, usage, read_name(read.id), read_name(read.model))

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        yield from self.try_call(EmbedRequest(texts=("?",)))


class RerankQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for a server of the jina wire that ranks.

    ``batch_limit`` is the maximum number of documents in a request; unlimited by default.
    """

    batch_limit: int | None = None


class JinaRerank(RerankCodec[RerankQuirks]):
    """Encode and decode ``/v1/rerank`` for one model at one base URL."""

    wire: ClassVar[str] = "jina"
    quirks_type = RerankQuirks

    def encode(self, request: RerankRequest) -> Encoded:
        body: dict[str, Any] = {"model": request.model or self.model}
        if request.top_k is not None:
            body["top_n"] = request.top_k
        # return_documents is always sent, because Jina returns all documents by default.
        body |= {"return_documents": bool(request.return_documents), "truncation": False}
        body |= {"query": request.query, "documents": list(request.documents)}
        return self.post(join_url(self.base_url, "/rerank", default="/v1"), body, request, Notes())

    def decode(self, reply: HttpReply, request: RerankRequest) -> RankPart:
        record = read_any(reply.body)
        if (error := self.inband_error(record)) is not None:
            raise error
        facts = record if isinstance(record, dict) else {}
        usage = read_usage(facts.get("usage"), "total_tokens", "prompt_tokens")
        results = read_results(facts.get("results"), request)
        return RankPart(results, usage, read_name(facts.get("id")), read_name(facts.get("model")))

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        yield from self.try_call(RerankRequest(query="?", documents=("?",)))
