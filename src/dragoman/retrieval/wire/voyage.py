"""Voyage: ``/v1/embeddings`` with an input type, and ``/v1/rerank`` with ``top_k``.

Both truncate long texts unless ``truncation`` is false, so the codecs always send false.
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

_TYPES = {"query": "query", "document": "document"}


class EmbedQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for a server of the voyage wire that embeds.

    ``encoding_format`` is the format of the vectors in the reply: ``base64``, or numbers if it is
    not set. ``batch_limit`` is the maximum number of texts in a request; the default is 1,000.
    """

    encoding_format: Literal["base64"] | None = None
    batch_limit: int | None = None


class VoyageEmbed(EmbedCodec[EmbedQuirks]):
    """Encode and decode ``/v1/embeddings`` for one model at one base URL."""

    wire: ClassVar[str] = "voyage"
    quirks_type = EmbedQuirks
    batch_limit = 1000

    def encode(self, request: EmbedRequest) -> Encoded:
        body: dict[str, Any] = {"model": request.model or self.model}
        kind = choose_input_type(request, _TYPES)
        if kind is not None:
            body["input_type"] = kind
        if request.dimensions is not None:
            body["output_dimension"] = request.dimensions
        if self.quirks.encoding_format is not None:
            body["encoding_format"] = self.quirks.encoding_format
        body |= {"truncation": False, "input": list(request.texts)}
        return self.post(
            join_url(self.base_url, "/embeddings", default="/v1"), body, request, Notes()
        )

    def decode(self, reply: HttpReply, request: EmbedRequest) -> EmbedPart:
        read, data, dimensions = read_listed(reply, len(request.texts), self.inband_error)
        usage = read_usage(read.usage, "total_tokens")
        return EmbedPart(data, dimensions, usage, read_name(read.id), read_name(read.model))

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        yield from self.try_call(EmbedRequest(texts=("?",)))


class RerankQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for a server of the voyage wire that ranks.

    ``batch_limit`` is the maximum number of documents in a request; the default is 1,000.
    """

    batch_limit: int | None = None


class VoyageRerank(RerankCodec[RerankQuirks]):
    """Encode and decode ``/v1/rerank`` for one model at one base URL."""

    wire: ClassVar[str] = "voyage"
    quirks_type = RerankQuirks
    batch_limit = 1000

    def encode(self, request: RerankRequest) -> Encoded:
        body: dict[str, Any] = {"model": request.model or self.model}
        if request.top_k is not None:
            body["top_k"] = request.top_k
        body |= {"return_documents": bool(request.return_documents), "truncation": False}
        body |= {"query": request.query, "documents": list(request.documents)}
        return self.post(join_url(self.base_url, "/rerank", default="/v1"), body, request, Notes())

    def decode(self, reply: HttpReply, request: RerankRequest) -> RankPart:
        record = read_any(reply.body)
        if (error := self.inband_error(record)) is not None:
            raise error
        facts = record if isinstance(record, dict) else {}
        usage = read_usage(facts.get("usage"), "total_tokens")
        results = read_results(facts.get("data"), request)
        return RankPart(results, usage, read_name(facts.get("id")), read_name(facts.get("model")))

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        yield from self.try_call(RerankRequest(query="?", documents=("?",)))
