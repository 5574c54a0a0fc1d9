"""The openai wire: ``/v1/embeddings``, and ``/v1/rerank`` as servers of this wire implement it.

OpenAI, vLLM, llama.cpp, LM Studio, Infinity, TEI and most gateways answer ``/v1/embeddings``;
vLLM, llama.cpp and Infinity also answer ``/v1/rerank``. ``encoding_format`` is sent only to
servers that are known to support it: LM Studio ignores it, and other servers reject it, or answer
with status 200 but without vectors.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from ...events import Usage
from ...wire.codec import Encoded, HttpReply, HttpRequest, Notes
from ...wire.openai import OpenAICodec
from ...wire.openai.quirks import Quirks as ChatQuirks
from ...wire.urls import join_url
from ..values import EmbedRequest, RerankRequest
from .codec import EmbedCodec, EmbedPart, RankPart, RerankCodec, drop_input_type
from .reading import read_any, read_listed, read_name, read_results, read_usage


class EmbedQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for a server of the openai wire that embeds.

    ``encoding_format`` is the format of the vectors in the reply, and is sent only if it is set;
    ``base64`` is three times smaller than numbers and faster to decode. ``usage`` is false for a
    server whose counts are not tokens (Infinity counts characters). ``batch_limit`` is the maximum
    number of texts in a request; the default is 2,048. ``readiness`` and ``any_model`` have the
    same meaning as in the quirks of the openai wire for chat.
    """

    encoding_format: Literal["base64", "float"] | None = None
    usage: bool = True
    batch_limit: int | None = None
    readiness: Literal["auto", "models", "health", "state", "resident"] = "auto"
    any_model: bool = False


class OpenAIEmbed(EmbedCodec[EmbedQuirks]):
    """Encode and decode ``/v1/embeddings`` for one model at one base URL."""

    wire: ClassVar[str] = "openai"
    quirks_type = EmbedQuirks
    batch_limit = 2048

    def __init__(self, model: str, base_url: str, quirks: EmbedQuirks | None = None) -> None:
        super().__init__(model, base_url, quirks)
        self._url = join_url(base_url, "/embeddings", default="/v1")

    def encode(self, request: EmbedRequest) -> Encoded:
        notes = Notes()
        drop_input_type(request, notes)
        body: dict[str, Any] = {"model": request.model or self.model}
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        if self.quirks.encoding_format is not None:
            body["encoding_format"] = self.quirks.encoding_format
        body["input"] = list(request.texts)
        return self.post(self._url, body, request, notes)

    def decode(self, reply: HttpReply, request: EmbedRequest) -> EmbedPart:
        read, data, dimensions = read_listed(reply, len(request.texts), self.inband_error)
        usage = (
            read_usage(read.usage, "prompt_tokens", "total_tokens")
            if self.quirks.usage
            else Usage()
        )
        return EmbedPart(data, dimensions, usage, read_name(read.id), read_name(read.model))

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        yield from ask_as_chat(self.model, self.base_url, self.quirks)


class RerankQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for a server of the openai wire that ranks.

    ``batch_limit`` is the maximum number of documents in a request; unlimited by default. The
    other fields have the same meaning as in ``EmbedQuirks``.
    """

    usage: bool = True
    batch_limit: int | None = None
    readiness: Literal["auto", "models", "health", "state", "resident"] = "auto"
    any_model: bool = False


class OpenAIRerank(RerankCodec[RerankQuirks]):
    """Encode and decode ``/v1/rerank`` for one model at one base URL."""

    wire: ClassVar[str] = "openai"
    quirks_type = RerankQuirks

    def __init__(self, model: str, base_url: str, quirks: RerankQuirks | None = None) -> None:
        super().__init__(model, base_url, quirks)
        self._url = join_url(base_url, "/rerank", default="/v1")

    def encode(self, request: RerankRequest) -> Encoded:
        body: dict[str, Any] = {"model": request.model or self.model}
        if request.top_k is not None:
            body["top_n"] = request.top_k
        if request.return_documents is not None:
            body["return_documents"] = request.return_documents
        body |= {"query": request.query, "documents": list(request.documents)}
        return self.post(self._url, body, request, Notes())

    def decode(self, reply: HttpReply, request: RerankRequest) -> RankPart:
        record = read_any(reply.body)
        if (error := self.inband_error(record)) is not None:
            raise error
        # llama.cpp answers with a bare list, as TEI does, if the request looks like one for TEI.
        results = record.get("results") if isinstance(record, dict) else record
        facts = record if isinstance(record, dict) else {}
        usage = (
            read_usage(facts.get("usage"), "prompt_tokens", "total_tokens")
            if self.quirks.usage
            else Usage()
        )
        name = "score" if isinstance(record, list) else "relevance_score"
        return RankPart(
            read_results(results, request, name),
            usage,
            read_name(facts.get("id")),
            read_name(facts.get("model")),
        )

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        yield from ask_as_chat(self.model, self.base_url, self.quirks)


def ask_as_chat(
    model: str, base_url: str, quirks: EmbedQuirks | RerankQuirks
) -> Generator[HttpRequest, HttpReply, None]:
    """Check readiness as for a chat model: by the list of models and the list of loaded models."""
    asked = replace(ChatQuirks(), readiness=quirks.readiness, any_model=quirks.any_model)
    yield from OpenAICodec(model, base_url, asked).ready()
