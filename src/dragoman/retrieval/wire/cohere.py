"""Codecs for Cohere's ``/v2/embed`` and ``/v2/rerank``."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar, Literal
from urllib.parse import quote as escape

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...errors import InvalidModelError
from ...events import Usage
from ...wire.codec import Encoded, HttpReply, HttpRequest, Notes
from ...wire.json import read_count
from ...wire.readiness import get_json
from ...wire.urls import join_url, root_of
from ..values import EmbedRequest, RerankRequest
from .codec import EmbedCodec, EmbedPart, RankPart, RerankCodec, choose_input_type
from .reading import check_count, pack_vectors, read_any, read_name, read_results, read_typed

_TYPES = {
    "document": "search_document",
    "query": "search_query",
    "classification": "classification",
    "clustering": "clustering",
}


class EmbedQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for a server of the cohere wire that embeds.

    ``embedding_type`` is the format of the vectors in the reply: numbers or base64.
    ``batch_limit`` is the maximum number of texts in a request; the default is 96.
    """

    embedding_type: Literal["float", "base64"] = "float"
    batch_limit: int | None = None


class _Embeddings(Struct, rename={"float_": "float"}):
    float_: list[list[float]] | None = None
    base64: list[bytes] | None = None


class _Reply(Struct):
    embeddings: _Embeddings
    id: Any = None
    meta: Any = None


_decode = msgspec.json.Decoder(_Reply).decode


class CohereEmbed(EmbedCodec[EmbedQuirks]):
    """Encode and decode ``/v2/embed`` for one model at one base URL.

    The wire requires an input type; the default is ``document``.
    """

    wire: ClassVar[str] = "cohere"
    quirks_type = EmbedQuirks
    batch_limit = 96

    def encode(self, request: EmbedRequest) -> Encoded:
        body: dict[str, Any] = {
            "model": request.model or self.model,
            "input_type": choose_input_type(request, _TYPES) or "search_document",
            "embedding_types": [self.quirks.embedding_type],
            "truncate": "NONE",
        }
        if request.dimensions is not None:
            body["output_dimension"] = request.dimensions
        body["texts"] = list(request.texts)
        url = join_url(root_of(self.base_url), "/v2/embed")
        return self.post(url, body, request, Notes(), frozenset({"embedding_types"}))

    def decode(self, reply: HttpReply, request: EmbedRequest) -> EmbedPart:
        read = read_typed(reply.body, _decode, self.inband_error)
        rows: Any = read.embeddings.float_ or read.embeddings.base64 or []
        check_count(len(rows), len(request.texts))
        data, dimensions = pack_vectors(rows)
        return EmbedPart(data, dimensions, _read_units(read.meta), read_name(read.id))

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        yield from _ask_model(self, "embed")


class RerankQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for a server of the cohere wire that ranks.

    ``batch_limit`` is the maximum number of documents in a request; the default is 10,000.
    """

    batch_limit: int | None = None


class CohereRerank(RerankCodec[RerankQuirks]):
    """Encode and decode ``/v2/rerank`` for one model at one base URL.

    The server does not return the documents, and truncates each document at
    ``max_tokens_per_doc``, 4,096 unless set in ``extras``.
    """

    wire: ClassVar[str] = "cohere"
    quirks_type = RerankQuirks
    batch_limit = 10_000

    def encode(self, request: RerankRequest) -> Encoded:
        notes = Notes()
        if request.return_documents:
            notes.drop(
                "return_documents", "return_documents_dropped", "this wire returns no documents"
            )
        body: dict[str, Any] = {"model": request.model or self.model}
        if request.top_k is not None:
            body["top_n"] = request.top_k
        body |= {"query": request.query, "documents": list(request.documents)}
        return self.post(join_url(root_of(self.base_url), "/v2/rerank"), body, request, notes)

    def decode(self, reply: HttpReply, request: RerankRequest) -> RankPart:
        record = read_any(reply.body)
        if (error := self.inband_error(record)) is not None:
            raise error
        facts = record if isinstance(record, dict) else {}
        results = read_results(facts.get("results"), request)
        return RankPart(results, _read_units(facts.get("meta")), read_name(facts.get("id")))

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        yield from _ask_model(self, "rerank")


def _read_units(meta: Any) -> Usage:
    units = meta.get("billed_units") if isinstance(meta, dict) else None
    if not isinstance(units, dict):
        return Usage()
    return replace(
        Usage(), **{name: _read_unit(units.get(name)) for name in ("input_tokens", "search_units")}
    )


def _read_unit(value: Any) -> int | None:
    """Read a count, which the server sends as a float such as 1.0 in some replies."""
    return read_count(int(value) if isinstance(value, float) and value.is_integer() else value)


def _ask_model(
    codec: CohereEmbed | CohereRerank, endpoint: str
) -> Generator[HttpRequest, HttpReply, None]:
    """Request the model's description and check that it lists the endpoint."""
    reply = yield get_json(
        join_url(root_of(codec.base_url), f"/v1/models/{escape(codec.model, safe='')}")
    )
    if reply.status >= 300:
        raise codec.error(reply.status, reply.headers, reply.body)
    record = read_any(reply.body)
    endpoints = record.get("endpoints") if isinstance(record, dict) else None
    if isinstance(endpoints, list) and endpoints and endpoint not in endpoints:
        raise InvalidModelError(
            f"the model {codec.model!r} does not {endpoint}", status=reply.status
        )
