"""Text Embeddings Inference: ``/embed`` and ``/rerank``, whose replies are bare lists.

Token counts are only in a header. From version 1.9 on, the server truncates long texts unless
``truncate`` is false.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct, field

from ...errors import (
    InvalidModelError,
    InvalidResponseError,
    ModelNotLoadedError,
    UnavailableError,
)
from ...events import Usage
from ...wire.codec import Encoded, HttpReply, HttpRequest, Notes
from ...wire.readiness import get_json
from ...wire.urls import join_url, root_of
from ..values import EmbedRequest, RerankRequest
from .codec import EmbedCodec, EmbedPart, RankPart, RerankCodec, drop_input_type
from .reading import check_count, pack_vectors, read_any, read_results, read_typed


class EmbedQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for a TEI server that embeds.

    ``prompt_names`` maps each input type to the name of a prompt that the server has.
    ``embed_truncate`` is ``false`` to reject long texts, or ``omit`` to omit the field from the
    request. ``batch_limit`` must be set if the server's ``max_client_batch_size`` is not 32.
    """

    prompt_names: dict[str, str] = field(default_factory=dict)
    embed_truncate: Literal["false", "omit"] = "false"
    batch_limit: int | None = None


_decode = msgspec.json.Decoder(list[list[float]]).decode


class TeiEmbed(EmbedCodec[EmbedQuirks]):
    """Encode and decode ``/embed`` for the only model of a server."""

    wire: ClassVar[str] = "tei"
    quirks_type = EmbedQuirks
    batch_limit = 32

    def encode(self, request: EmbedRequest) -> Encoded:
        notes = Notes()
        body: dict[str, Any] = {}
        name = self.quirks.prompt_names.get(request.input_type or "")
        if name is not None:
            body["prompt_name"] = name
        else:
            drop_input_type(request, notes)
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        if self.quirks.embed_truncate == "false":
            body["truncate"] = False
        body["inputs"] = list(request.texts)
        return self.post(join_url(root_of(self.base_url), "/embed"), body, request, notes)

    def decode(self, reply: HttpReply, request: EmbedRequest) -> EmbedPart:
        rows = read_typed(reply.body, _decode, self.inband_error)
        check_count(len(rows), len(request.texts))
        data, dimensions = pack_vectors(rows)
        return EmbedPart(data, dimensions, _read_tokens(reply.headers))

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        yield from _ask_info(self, "embedding")


class RerankQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for a TEI server that ranks.

    ``batch_limit`` must be set if the server's ``max_client_batch_size`` is not 32.
    """

    batch_limit: int | None = None


class TeiRerank(RerankCodec[RerankQuirks]):
    """Encode and decode ``/rerank`` for the only model of a server.

    The endpoint has no ``top_n``, so the codec itself truncates the list of results.
    """

    wire: ClassVar[str] = "tei"
    quirks_type = RerankQuirks
    batch_limit = 32

    def encode(self, request: RerankRequest) -> Encoded:
        body: dict[str, Any] = {
            "truncate": False,
            "return_text": bool(request.return_documents),
            "query": request.query,
            "texts": list(request.documents),
        }
        return self.post(join_url(root_of(self.base_url), "/rerank"), body, request, Notes())

    def decode(self, reply: HttpReply, request: RerankRequest) -> RankPart:
        record = read_any(reply.body)
        if (error := self.inband_error(record)) is not None:
            raise error
        if not isinstance(record, list):
            raise InvalidResponseError("the reply has no list of results")
        everything = msgspec.structs.replace(request, top_k=None)
        results = read_results(record, everything, "score", "text")
        best = sorted(results, key=lambda each: -each.relevance_score)[: request.top_k]
        return RankPart(tuple(best), _read_tokens(reply.headers))

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        yield from _ask_info(self, "reranker")


def _read_tokens(headers: Mapping[str, str]) -> Usage:
    text = next(
        (value for name, value in headers.items() if name.lower() == "x-compute-tokens"), ""
    )
    return (
        Usage(input_tokens=int(text))
        if text.isascii() and text.isdigit() and len(text) < 19
        else Usage()
    )


def _ask_info(codec: TeiEmbed | TeiRerank, kind: str) -> Generator[HttpRequest, HttpReply, None]:
    """Check that the server is up, and that its model is of the right kind."""
    health = yield get_json(join_url(root_of(codec.base_url), "/health"))
    if health.status == 503:
        raise ModelNotLoadedError("the server is still loading the model", status=503)
    if health.status >= 500:
        raise UnavailableError("the server reports that it is not healthy", status=health.status)
    reply = yield get_json(join_url(root_of(codec.base_url), "/info"))
    if reply.status >= 300:
        raise codec.error(reply.status, reply.headers, reply.body)
    info = read_any(reply.body)
    kinds = info.get("model_type") if isinstance(info, dict) else None
    if isinstance(kinds, dict) and kinds and kind not in kinds:
        raise InvalidModelError(
            f"the server's model is not of the kind {kind!r}", status=reply.status
        )
