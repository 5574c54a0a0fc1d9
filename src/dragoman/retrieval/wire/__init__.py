"""Retrieval wires: the codecs that providers use, by operation and by the name of the wire.

Box: core; ``server`` is in the box gateway.

``EMBED_CODECS`` has the wires that embed, ``RERANK_CODECS`` those that rank. A codec does no I/O
in either direction; ``server`` has the server side of each wire, which the gateway and the
simulator use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...wire import ByWire
from .codec import EmbedCodec, RerankCodec, RetrievalCodec

__all__ = ["EMBED_CODECS", "RERANK_CODECS", "EmbedCodec", "RerankCodec", "RetrievalCodec"]

EMBED_CODECS: Mapping[str, type[EmbedCodec[Any]]] = ByWire(
    {
        "cohere": ".cohere:CohereEmbed",
        "gemini": ".gemini:GeminiEmbed",
        "jina": ".jina:JinaEmbed",
        "ollama": ".ollama:OllamaEmbed",
        "openai": ".openai:OpenAIEmbed",
        "tei": ".tei:TeiEmbed",
        "voyage": ".voyage:VoyageEmbed",
    },
    lambda codec: codec,
    __name__,
)
"""The codec of each wire that embeds texts."""

RERANK_CODECS: Mapping[str, type[RerankCodec[Any]]] = ByWire(
    {
        "cohere": ".cohere:CohereRerank",
        "jina": ".jina:JinaRerank",
        "openai": ".openai:OpenAIRerank",
        "tei": ".tei:TeiRerank",
        "voyage": ".voyage:VoyageRerank",
    },
    lambda codec: codec,
    __name__,
)
"""The codec of each wire that ranks documents."""
