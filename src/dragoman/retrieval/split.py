"""Split calls that are too large for one request, and join the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from ..errors import InvalidResponseError
from ..events import Usage
from .values import Embeddings, EmbedRequest, Ranking
from .vectors import Vectors

AnswerT = TypeVar("AnswerT", Embeddings, Ranking)

KEPT_BYTES = 16 * 1024 * 1024
"""The maximum size of a reply that is kept as ``raw`` by default, in bytes."""


def split_request(request: Any, size: int) -> Iterator[Any]:
    """Yield a request for each slice of the texts or documents."""
    for start in range(0, len(request.inputs), size):
        part = request.inputs[start : start + size]
        if isinstance(request, EmbedRequest):
            yield replace(request, texts=part)
        else:
            top_k = None if request.top_k is None else min(request.top_k, len(part))
            yield replace(request, documents=part, top_k=top_k)


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
    data = b"".join([part.vectors.data for part in parts])
    return replace(_join(parts), vectors=Vectors(data, first.dimensions))


class Joined:
    """Join the answers to consecutive slices as they arrive, so that no vector is kept twice."""

    def __init__(self, request: Any, size: int) -> None:
        self.count = 0
        self._request = request
        self._size = size
        self._data = bytearray()
        self._parts: list[Any] = []  # the answers so far, without their vectors

    def add(self, part: Any) -> None:
        """Add the answer for the next slice of the texts or documents."""
        if isinstance(part, Embeddings):
            check_length(part, self._parts)
            self._data += part.vectors.data.cast("B")
            # An empty view keeps the length of the vectors without their data.
            part = replace(part, vectors=Vectors(b"", part.dimensions))
        self._parts.append(part)
        self.count += 1

    def result(self) -> Any:
        """Return the joined answer; ``None`` if no answer was added."""
        if not self._parts:
            return None
        if not isinstance(self._parts[0], Embeddings):
            return _join_rankings(self._parts, self._request.top_k, self._size)
        joined = join_embeddings(self._parts)
        return replace(joined, vectors=Vectors(self._data, joined.dimensions))


def _join_rankings(parts: Sequence[Ranking], top_k: int | None, size: int) -> Ranking:
    """Join the rankings of consecutive slices: renumber, sort, and keep the best ``top_k``."""
    moved = [
        replace(each, index=each.index + number * size)
        for number, part in enumerate(parts)
        for each in part.results
    ]
    best = tuple(sorted(moved, key=lambda each: -each.relevance_score)[:top_k])
    return replace(_join(parts), results=best)


def _join(parts: Sequence[AnswerT]) -> AnswerT:
    """Return the first answer with the usage, latency, warnings and replies of all."""
    if len(parts) == 1:
        return parts[0]
    kept = [part.kept for part in parts if part.kept is not None]
    return replace(
        parts[0],
        usage=add_usage([part.usage for part in parts]),
        latency_ms=sum([part.latency_ms or 0.0 for part in parts]),
        warnings=tuple(dict.fromkeys([warning for part in parts for warning in part.warnings])),
        kept=kept[0].join(kept[1:]) if len(kept) == len(parts) else None,
    )


def add_usage(usages: Sequence[Usage]) -> Usage:
    """Return the total usage of several replies; a total is unknown if a reply lacks the count."""
    sums: dict[str, Any] = {}
    for name in ("input_tokens", "search_units"):
        counts = [getattr(usage, name) for usage in usages]
        sums[name] = None if None in counts else sum(counts)
    return Usage(**sums)
