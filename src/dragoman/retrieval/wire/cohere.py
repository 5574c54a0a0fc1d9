"""Codecs for Cohere's ``/v2/embed`` and ``/v2/rerank``."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, Literal
from urllib.parse import quote as escape

from msgspec import Struct

from ...events import Usage
from ...wire.codec import HttpReply, HttpRequest, Notes
from ...wire.json import read_count
from ...wire.readiness import get_json
from ..values import EmbedRequest
from .codec import BatchQuirks, EmbedCodec, EmbedRow, RerankCodec, RerankRow, RetrievalCodec
from .reading import EmbedReply, Vector


class EmbedQuirks(BatchQuirks, frozen=True, forbid_unknown_fields=True):
    """Settings for a server of the cohere wire that embeds.

    ``embedding_type`` is the format of the vectors in the reply: numbers or base64.
    """

    embedding_type: Literal["float", "base64"] = "float"


class _Embeddings(Struct, rename={"float_": "float"}):
    float_: list[list[float]] | None = None
    base64: list[bytes] | None = None


class _Reply(EmbedReply, kw_only=True):
    embeddings: _Embeddings
    meta: Any = None

    def __post_init__(self) -> None:
        self.usage = self.meta

    def find_vectors(self, count: int) -> Sequence[Vector]:
        return self.embeddings.float_ or self.embeddings.base64 or []


class _Cohere(RetrievalCodec[Any]):
    """What both codecs of the cohere wire have in common."""

    wire: ClassVar[str] = "cohere"

    def count(self, record: Any, headers: Mapping[str, str]) -> Usage:
        units = record.get("billed_units") if isinstance(record, dict) else None
        if not isinstance(units, dict):
            return Usage()
        return Usage(
            input_tokens=_read_unit(units.get("input_tokens")),
            search_units=_read_unit(units.get("search_units")),
        )

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Request the model's description and check that it lists the endpoint."""
        reply = yield get_json(self.locate(f"/v1/models/{escape(self.model, safe='')}"))
        self.check_listed(reply, "endpoints", self.operation)


class CohereEmbed(_Cohere, EmbedCodec[EmbedQuirks]):
    """Encode and decode ``/v2/embed`` for one model at one base URL.

    The wire requires an input type; the default is ``document``.
    """

    quirks_type = EmbedQuirks
    lists = frozenset({"embedding_types"})
    batch_limit = 96
    row = EmbedRow(
        path="/v2/embed",
        at_root=True,
        texts="texts",
        input_type="input_type",
        types={
            "document": "search_document",
            "query": "search_query",
            "classification": "classification",
            "clustering": "clustering",
        },
        dimensions="output_dimension",
        fixed={"truncate": "NONE"},
        reply=_Reply,
        hints=("priority",),
    )

    def write_type(self, request: EmbedRequest, notes: Notes) -> str | None:
        return super().write_type(request, notes) or "search_document"

    def write_quirks(self) -> dict[str, Any]:
        return {"embedding_types": [self.quirks.embedding_type]}


class CohereRerank(_Cohere, RerankCodec[BatchQuirks]):
    """Encode and decode ``/v2/rerank`` for one model at one base URL.

    The server does not return the documents, and truncates each document at
    ``max_tokens_per_doc``, 4,096 unless set in ``extras``.
    """

    quirks_type = BatchQuirks
    batch_limit = 10_000
    row = RerankRow(path="/v2/rerank", at_root=True, returns=None, usage="meta")


def _read_unit(value: Any) -> int | None:
    """Read a count, which the server sends as a float such as 1.0 in some replies."""
    return read_count(int(value) if isinstance(value, float) and value.is_integer() else value)
