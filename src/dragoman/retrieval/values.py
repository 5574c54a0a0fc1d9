"""Requests and answers of embedding and reranking models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct, field

from ..events import Sale, Usage
from ..messages import LossWarning, new_ulid
from ..prices import Cost, Unpriced, cost
from .vectors import Vectors

Operation: TypeAlias = Literal["embed", "rerank"]


class RetrievalRequest(Struct, frozen=True, kw_only=True):
    """What requests to embedders and rerankers have in common."""

    operation: ClassVar[Operation]
    extras: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    request_id: str = field(default_factory=lambda: new_ulid())
    session_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


class EmbedRequest(RetrievalRequest, frozen=True, kw_only=True):
    """Texts to embed in one request.

    ``input_type`` is what they are for: ``query``, ``document``, or a value that only the wire
    defines.
    """

    operation: ClassVar[Operation] = "embed"
    texts: Sequence[str]
    input_type: str | None = None
    dimensions: int | None = None

    @property
    def inputs(self) -> Sequence[str]:
        """The texts that a server limits and that may be sent in several requests."""
        return self.texts


class RerankRequest(RetrievalRequest, frozen=True, kw_only=True):
    """Documents to order by their relevance to a query, in one request."""

    operation: ClassVar[Operation] = "rerank"
    query: str
    documents: Sequence[str]
    top_k: int | None = None
    return_documents: bool | None = None

    @property
    def inputs(self) -> Sequence[str]:
        """The documents that a server limits and that may be sent in several requests."""
        return self.documents


class Replies:
    """The provider's replies as bytes, parsed when ``value`` is read.

    They are left out of JSON output.
    """

    __slots__ = ("_bodies", "_decode", "is_split")
    # with this attribute msgspec encodes the class as a dataclass without fields
    __dataclass_fields__: Mapping[str, Any] = {}

    def __init__(self, bodies: Sequence[bytes], decode: Any, *, is_split: bool = False) -> None:
        self._bodies = bodies
        self._decode = decode
        self.is_split = is_split

    @property
    def value(self) -> Any:
        """Return the reply as parsed JSON; a list of replies if the call was split."""
        values = [self._decode(body) for body in self._bodies]
        return values if self.is_split or len(values) != 1 else values[0]

    def join(self, others: Sequence[Replies]) -> Replies:
        """Join these replies and ``others`` into the replies of one call that was split."""
        bodies = [body for each in (self, *others) for body in each._bodies]
        return Replies(bodies, self._decode, is_split=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Replies) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]


class RetrievalAnswer(Struct, frozen=True, kw_only=True):
    """What the answers of embedders and rerankers have in common.

    ``model`` is the model name in the answer or, if the answer has none, in the request. A count
    in ``usage`` is ``None`` if the server did not report it. ``warnings`` lists what the caller
    requested but did not get.
    """

    model: str | None = None
    usage: Usage = Usage()
    response_id: str | None = None
    provider: str | None = None
    request_id: str | None = None
    latency_ms: float | None = None
    warnings: tuple[LossWarning, ...] = ()
    kept: Replies | None = None
    sale: Sale | None = None

    @property
    def cost(self) -> Cost | Unpriced:
        """What the answer cost, as ``dragoman.cost(answer)`` returns it."""
        return cost(self)

    @property
    def raw(self) -> Any:
        """The raw reply as JSON, a list if the call was split; ``None`` if it was not kept."""
        return self.kept.value if self.kept is not None else None


class Embeddings(RetrievalAnswer, frozen=True, kw_only=True):
    """One vector for each text, in the order of the texts."""

    vectors: Vectors

    @property
    def dimensions(self) -> int:
        """The length of each vector."""
        return self.vectors.dimensions


class Ranked(Struct, frozen=True):
    """A ranked document: its index in the caller's list, its score, and its text if returned."""

    index: int
    relevance_score: float
    document: str | None = None


class Ranking(RetrievalAnswer, frozen=True, kw_only=True):
    """The documents by relevance, the best first.

    Scores are as the server sends them: some are logits.
    """

    results: tuple[Ranked, ...]
