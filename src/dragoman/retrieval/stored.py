"""Embeddings and rankings as JSON, for cassettes and caches."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from ..events import Usage
from ..messages import LossWarning
from .values import Embeddings, Ranked, Ranking
from .vectors import from_little_endian

_COMMON = ("model", "response_id", "provider", "usage", "warnings")


def write_answer(answer: Any) -> bytes:
    """Return embeddings or a ranking as JSON; vectors are written as float32 bytes."""
    common: dict[str, Any] = {name: getattr(answer, name) for name in _COMMON}
    if isinstance(answer, Embeddings):
        common |= {"dimensions": answer.dimensions, "vectors": answer.vectors.tobytes()}
    else:
        common |= {"results": answer.results}
    return msgspec.json.encode(common)


class _StoredAnswer(Struct):
    model: str | None = None
    response_id: str | None = None
    provider: str | None = None
    usage: Usage = Usage()
    warnings: tuple[LossWarning, ...] = ()
    dimensions: int = 0
    vectors: bytes | None = None
    results: tuple[Ranked, ...] = ()


def read_answer(data: bytes) -> Any:
    """Return embeddings or a ranking from what ``write_answer`` wrote."""
    found = msgspec.json.decode(data, type=_StoredAnswer)
    common: dict[str, Any] = {name: getattr(found, name) for name in _COMMON}
    if found.vectors is not None:
        return Embeddings(vectors=from_little_endian(found.vectors, found.dimensions), **common)
    return Ranking(results=found.results, **common)
