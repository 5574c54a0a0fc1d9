"""Text Embeddings Inference: ``/embed`` and ``/rerank``, whose replies are bare lists.

Token counts are only in a header. From version 1.9 on, the server truncates long texts unless
``truncate`` is false.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Literal

from msgspec import field

from ...errors import ModelNotLoadedError, UnavailableError
from ...events import Usage
from ...wire.codec import HttpReply, HttpRequest, Notes
from ...wire.readiness import get_json
from ..values import EmbedRequest
from .codec import BatchQuirks, EmbedCodec, EmbedRow, RerankCodec, RerankRow, RetrievalCodec


class EmbedQuirks(BatchQuirks, frozen=True, forbid_unknown_fields=True):
    """Settings for a TEI server that embeds.

    ``prompt_names`` maps each input type to the name of a prompt that the server has.
    ``embed_truncate`` is ``false`` to reject long texts, or ``omit`` to omit the field from the
    request. ``batch_limit`` must be set if the server's ``max_client_batch_size`` is not 32.
    """

    prompt_names: dict[str, str] = field(default_factory=dict)
    embed_truncate: Literal["false", "omit"] = "false"


class _Tei(RetrievalCodec[Any]):
    """What both codecs have in common: one model on the server, 32 texts in a request."""

    wire: ClassVar[str] = "tei"
    batch_limit = 32
    kind: ClassVar[str]

    def count(self, record: Any, headers: Mapping[str, str]) -> Usage:
        text = next(
            (value for name, value in headers.items() if name.lower() == "x-compute-tokens"), ""
        )
        is_count = text.isascii() and text.isdigit() and len(text) < 19
        return Usage(input_tokens=int(text)) if is_count else Usage()

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Check that the server is up, and that its model is of the right kind."""
        health = yield get_json(self.locate("/health"))
        if health.status == 503:
            raise ModelNotLoadedError("the server is still loading the model", status=503)
        if health.status >= 500:
            raise UnavailableError(
                "the server reports that it is not healthy", status=health.status
            )
        reply = yield get_json(self.locate("/info"))
        problem = f"the server's model is not of the kind {self.kind!r}"
        self.check_listed(reply, "model_type", self.kind, problem=problem)


class TeiEmbed(_Tei, EmbedCodec[EmbedQuirks]):
    """Encode and decode ``/embed`` for the only model of a server."""

    quirks_type = EmbedQuirks
    kind = "embedding"
    row = EmbedRow(
        path="/embed",
        at_root=True,
        has_model=False,
        texts="inputs",
        input_type="prompt_name",
        reply=list[list[float]],
        cuts=("truncate",),
    )

    def write_type(self, request: EmbedRequest, notes: Notes) -> str | None:
        name = self.quirks.prompt_names.get(request.input_type or "")
        return super().write_type(request, notes) if name is None else name

    def write_quirks(self) -> dict[str, Any]:
        return {"truncate": False} if self.quirks.embed_truncate == "false" else {}


class TeiRerank(_Tei, RerankCodec[BatchQuirks]):
    """Encode and decode ``/rerank`` for the only model of a server.

    The endpoint has no ``top_n``, so the codec itself truncates the list of results.
    """

    quirks_type = BatchQuirks
    kind = "reranker"
    row = RerankRow(
        path="/rerank",
        at_root=True,
        has_model=False,
        documents="texts",
        top_k=None,
        returns="return_text",
        fixed={"truncate": False},
        results="",
        is_bare=True,
        score="score",
        echo="text",
        cuts=("truncate",),
    )
