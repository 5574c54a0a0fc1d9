"""Voyage: ``/v1/embeddings`` with an input type, and ``/v1/rerank`` with ``top_k``.

Both truncate long texts unless ``truncation`` is false, so the codecs always send false.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from .codec import BatchQuirks, EmbedCodec, EmbedRow, RerankCodec, RerankRow


class EmbedQuirks(BatchQuirks, frozen=True, forbid_unknown_fields=True):
    """Settings for a server of the voyage wire that embeds.

    ``encoding_format`` is the format of the vectors in the reply: ``base64``, or numbers if it is
    not set.
    """

    encoding_format: Literal["base64"] | None = None


class VoyageEmbed(EmbedCodec[EmbedQuirks]):
    """Encode and decode ``/v1/embeddings`` for one model at one base URL."""

    wire: ClassVar[str] = "voyage"
    quirks_type = EmbedQuirks
    batch_limit = 1000
    row = EmbedRow(
        path="/embeddings",
        input_type="input_type",
        types={"query": "query", "document": "document"},
        dimensions="output_dimension",
        sends=("encoding_format",),
        fixed={"truncation": False},
        tokens=("total_tokens",),
        cuts=("truncation",),
    )


class VoyageRerank(RerankCodec[BatchQuirks]):
    """Encode and decode ``/v1/rerank`` for one model at one base URL."""

    wire: ClassVar[str] = "voyage"
    quirks_type = BatchQuirks
    batch_limit = 1000
    row = RerankRow(
        path="/rerank",
        top_k="top_k",
        fixed={"truncation": False},
        results="data",
        tokens=("total_tokens",),
    )
