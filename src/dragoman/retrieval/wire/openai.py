"""The openai wire: ``/v1/embeddings``, and ``/v1/rerank`` as servers of this wire implement it.

OpenAI, vLLM, llama.cpp, LM Studio, Infinity, TEI and most gateways answer ``/v1/embeddings``;
vLLM, llama.cpp and Infinity also answer ``/v1/rerank``. ``encoding_format`` is sent only to
servers that are known to support it: LM Studio ignores it, and other servers reject it, or answer
with status 200 but without vectors.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from ...events import Usage
from ...wire.codec import HttpReply, HttpRequest
from ...wire.openai import OpenAICodec
from ...wire.openai.quirks import Quirks as ChatQuirks
from ..values import RerankRequest
from .codec import EmbedCodec, EmbedRow, RerankCodec, RerankRow, RetrievalCodec


class RerankQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for a server of the openai wire that ranks.

    ``usage`` is false for a server whose counts are not tokens (Infinity counts characters).
    ``batch_limit`` is the maximum number of texts or documents in a request; the default is 2,048
    texts. ``readiness``, ``any_model`` and ``key_header`` have the same meaning as in the quirks
    of the openai wire for chat.
    """

    usage: bool = True
    batch_limit: int | None = None
    readiness: Literal["auto", "models", "health", "state", "resident"] = "auto"
    any_model: bool = False
    key_header: str | None = None


class EmbedQuirks(RerankQuirks, frozen=True, forbid_unknown_fields=True):
    """Settings for a server of the openai wire that embeds: those of ``RerankQuirks``, and more.

    ``encoding_format`` is the format of the vectors in the reply, and is sent only if it is set;
    ``base64`` is three times smaller than numbers and faster to decode.
    """

    encoding_format: Literal["float", "base64"] | None = None


class _OpenAI(RetrievalCodec[Any]):
    """What both codecs of the openai wire have in common."""

    wire: ClassVar[str] = "openai"

    def count(self, record: Any, headers: Mapping[str, str]) -> Usage:
        return super().count(record, headers) if self.quirks.usage else Usage()

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Check readiness as for a chat model: by the lists of models and of loaded models."""
        quirks = replace(
            ChatQuirks(), readiness=self.quirks.readiness, any_model=self.quirks.any_model
        )
        yield from OpenAICodec(self.model, self.base_url, quirks).ready()


class OpenAIEmbed(_OpenAI, EmbedCodec[EmbedQuirks]):
    """Encode and decode ``/v1/embeddings`` for one model at one base URL."""

    quirks_type = EmbedQuirks
    batch_limit = 2048
    row = EmbedRow(
        path="/embeddings",
        sends=("encoding_format",),
        tokens=("prompt_tokens", "total_tokens"),
        hints=("user",),
    )


class OpenAIRerank(_OpenAI, RerankCodec[RerankQuirks]):
    """Encode and decode ``/v1/rerank`` for one model at one base URL.

    llama.cpp answers with a bare list, as TEI does, if the request looks like one for TEI.
    """

    quirks_type = RerankQuirks
    row = RerankRow(path="/rerank", is_bare=True, tokens=("prompt_tokens", "total_tokens"))

    def write_returns(self, request: RerankRequest) -> dict[str, Any]:
        return {} if request.return_documents is None else super().write_returns(request)
