"""Jina: ``/v1/embeddings`` with a task, and ``/v1/rerank``.

Texts that are too long are rejected, not truncated. Tasks beyond ``query`` and ``document`` differ
between versions of Jina's models; set them with ``extras={"task": ...}``.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from .codec import BatchQuirks, EmbedCodec, EmbedRow, RerankCodec, RerankRow

_TOKENS = ("total_tokens", "prompt_tokens")


class EmbedQuirks(BatchQuirks, frozen=True, forbid_unknown_fields=True):
    """Settings for a server of the jina wire that embeds.

    ``embedding_type`` is the format of the vectors in the reply, and is sent only if it is set;
    ``base64`` makes replies three times smaller than numbers.
    """

    embedding_type: Literal["float", "base64"] | None = None


class JinaEmbed(EmbedCodec[EmbedQuirks]):
    """Encode and decode ``/v1/embeddings`` for one model at one base URL."""

    wire: ClassVar[str] = "jina"
    quirks_type = EmbedQuirks
    row = EmbedRow(
        path="/embeddings",
        input_type="task",
        types={"query": "retrieval.query", "document": "retrieval.passage"},
        sends=("embedding_type",),
        fixed={"truncate": False},
        tokens=_TOKENS,
        cuts=("truncate",),
    )


class JinaRerank(RerankCodec[BatchQuirks]):
    """Encode and decode ``/v1/rerank`` for one model at one base URL.

    ``return_documents`` is always sent, because Jina returns all documents by default.
    """

    wire: ClassVar[str] = "jina"
    quirks_type = BatchQuirks
    row = RerankRow(path="/rerank", fixed={"truncation": False}, tokens=_TOKENS)
