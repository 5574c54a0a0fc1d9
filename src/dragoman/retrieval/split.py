"""Split calls that are too large for one request, and join the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from ..errors import InvalidResponseError
from ..events import Usage
from .values import Embeddings, EmbedRequest, Ranking, Replies, RerankRequest
from .vectors import Vectors

KEPT_BYTES = 16 * 1024 * 1024
"""The maximum size of a reply that is kept as ``raw`` by default, in bytes."""


def split_texts(request: EmbedRequest, size: int) -> Iterator[EmbedRequest]:
    """Yield the requests for consecutive slices of the texts."""
    for start in range(0, len(request.texts), size):
        yield replace(request, texts=request.texts[start : start + size])


def split_documents(request: RerankRequest, size: int) -> Iterator[RerankRequest]:
    """Yield a request for each slice of the documents; limit ``top_k`` to the slice's length."""
    for start in range(0, len(request.documents), size):
        documents = request.documents[start : start + size]
        top_k = None if request.top_k is None else min(request.top_k, len(documents))
        yield replace(request, documents=documents, top_k=top_k)


def check_length(part: Embeddings, earlier: Sequence[Embeddings]) -> Embeddings:
    """Return the answer; raise an error if its vectors and earlier ones differ in length."""
    if earlier and part.dimensions != earlier[0].dimensions:
        raise InvalidResponseError(
            f"the vectors of this request have {part.dimensions} numbers, those before it "
            f"{earlier[0].dimensions}"
        )
    return part


def join_embeddings(parts: Sequence[Embeddings]) -> Embeddings:
    """Join the results of consecutive slices; id and model come from the first slice."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return replace(
        first,
        vectors=Vectors(b"".join([part.vectors.data for part in parts]), first.dimensions),
        usage=add_usage([part.usage for part in parts]),
        latency_ms=_add_latency(parts),
        warnings=tuple(dict.fromkeys([warning for part in parts for warning in part.warnings])),
        kept=_join_kept(parts),
    )


class JoinedEmbeddings:
    """Join the answers to consecutive slices as they arrive, so that no vector is kept twice."""

    def __init__(self) -> None:
        self.count = 0
        self._data = bytearray()
        self._parts: list[Embeddings] = []  # the answers so far, without their vectors

    def add(self, part: Embeddings) -> None:
        """Add the answer for the next slice of the texts."""
        check_length(part, self._parts)
        self._data += part.vectors.data.cast("B")
        # An empty view keeps the length of the vectors without their data.
        self._parts.append(replace(part, vectors=Vectors(b"", part.dimensions)))
        self.count += 1

    def result(self) -> Embeddings | None:
        """Return the joined answer; ``None`` if no answer was added."""
        if not self._parts:
            return None
        joined = join_embeddings(self._parts)
        return replace(joined, vectors=Vectors(self._data, joined.dimensions))


def join_rankings(parts: Sequence[Ranking], request: RerankRequest, size: int) -> Ranking:
    """Join the rankings of consecutive slices: renumber, sort, and keep the best ``top_k``."""
    first = parts[0]
    if len(parts) == 1:
        return first
    moved = [
        replace(each, index=each.index + number * size)
        for number, part in enumerate(parts)
        for each in part.results
    ]
    return replace(
        first,
        results=tuple(sorted(moved, key=lambda each: -each.relevance_score)[: request.top_k]),
        usage=add_usage([part.usage for part in parts]),
        latency_ms=_add_latency(parts),
        warnings=tuple(dict.fromkeys([warning for part in parts for warning in part.warnings])),
        kept=_join_kept(parts),
    )


def add_usage(usages: Sequence[Usage]) -> Usage:
    """Return the total usage of several replies; a total is unknown if a reply lacks the count."""
    sums: dict[str, Any] = {}
    for name in ("input_tokens", "search_units"):
        counts = [getattr(usage, name) for usage in usages]
        sums[name] = None if None in counts else sum(counts)
    return Usage(**sums)


def _add_latency(parts: Sequence[Embeddings] | Sequence[Ranking]) -> float:
    return sum([part.latency_ms or 0.0 for part in parts])


def _join_kept(parts: Sequence[Embeddings] | Sequence[Ranking]) -> Replies | None:
    kept = [part.kept for part in parts if part.kept is not None]
    return kept[0].join(kept[1:]) if len(kept) == len(parts) else None
