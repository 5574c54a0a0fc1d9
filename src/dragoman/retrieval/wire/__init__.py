"""Retrieval wires: the codecs that providers use, by operation and by the name of the wire.

``EMBED_CODECS`` has the wires that embed, ``RERANK_CODECS`` those that rank. A codec is a pure function in both
directions; ``server`` has the other side of each wire, which the gateway and the simulator use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .codec import EmbedCodec, EmbedPart, RankPart, RerankCodec, RetrievalCodec
from .cohere import CohereEmbed, CohereRerank
from .gemini import GeminiEmbed
from .jina import JinaEmbed, JinaRerank
from .ollama import OllamaEmbed
from .openai import OpenAIEmbed, OpenAIRerank
from .tei import TeiEmbed, TeiRerank
from .voyage import VoyageEmbed, VoyageRerank

__all__ = [
    "EMBED_CODECS",
    "RERANK_CODECS",
    "EmbedCodec",
    "EmbedPart",
    "RankPart",
    "RerankCodec",
    "RetrievalCodec",
]

EMBED_CODECS: Mapping[str, type[EmbedCodec[Any]]] = {
    codec.wire: codec
    for codec in (CohereEmbed, GeminiEmbed, JinaEmbed, OllamaEmbed, OpenAIEmbed, TeiEmbed, VoyageEmbed)
}
"""The wires that embed, by name."""

RERANK_CODECS: Mapping[str, type[RerankCodec[Any]]] = {
    codec.wire: codec for codec in (CohereRerank, JinaRerank, OpenAIRerank, TeiRerank, VoyageRerank)
}
"""The wires that rank, by name."""
