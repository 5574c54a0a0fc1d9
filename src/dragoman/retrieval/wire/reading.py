"""Read replies: vectors in every format that servers use, ranking results, and token counts."""

from __future__ import annotations

import array
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ...errors import InvalidResponseError, ProviderError, quote
from ...events import Usage, read_json
from ...wire.json import read_count
from ..values import Ranked
from ..vectors import WIDTH, is_finite, little_endian

T = TypeVar("T")
Vector = bytes | list[float]


class _Item(Struct, gc=False):
    embedding: Vector
    index: int | None = None


class EmbedReply(Struct):
    """The fields that replies to embedding requests have in common."""

    usage: Any = None
    model: Any = None
    id: Any = None

    def find_vectors(self, count: int) -> Sequence[Vector]:
        """Return the vectors in the order of the texts."""
        raise NotImplementedError


class ListedReply(EmbedReply, kw_only=True):
    """A reply of the openai wire: vectors under ``data`` with an index, as base64 or numbers."""

    data: list[_Item]

    def find_vectors(self, count: int) -> Sequence[Vector]:
        check_count(len(self.data), count)
        # a server that omits the index answers in order
        if all(item.index is None for item in self.data):
            return [item.embedding for item in self.data]
        rows: list[Vector | None] = [None] * count
        for item in self.data:
            _place(rows, item.index, item.embedding)
        return [row for row in rows if row is not None]


class BareReply(EmbedReply, kw_only=True):
    """A reply that is a bare list of vectors."""

    vectors: list[list[float]]

    def find_vectors(self, count: int) -> Sequence[Vector]:
        return self.vectors


def _place(rows: list[Any], index: Any, row: Any) -> None:
    if type(index) is not int or not 0 <= index < len(rows):
        raise InvalidResponseError(f"a vector has the index {quote(index)}, of {len(rows)} texts")
    if rows[index] is not None:
        raise InvalidResponseError(f"two vectors have the index {index}")
    rows[index] = row


def read_typed(body: bytes, kind: type[T], find_error: Callable[[Any], ProviderError | None]) -> T:
    """Decode a body of the expected type.

    For any other body, raise the error that it reports or, if it reports none,
    ``InvalidResponseError``.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
    record = read_any(body)
    raise find_error(record) or InvalidResponseError(
        f"the reply is not one of this wire: {reason}"
    )


def read_any(body: bytes) -> Any:
    """Decode a body of any shape; raise ``InvalidResponseError`` if it is not JSON."""
    try:
        return read_json(body)
    except ValueError as error:
        reason = str(error)[:200]
    raise InvalidResponseError(f"the reply is not JSON: {reason}")


def show_raw(body: bytes) -> Any:
    """Return a reply as parsed JSON, or as text if it is not JSON."""
    try:
        return read_json(body)
    except ValueError:
        return body.decode("utf-8", "replace")


def check_count(found: int, expected: int) -> None:
    """Reject a reply with fewer or more vectors than texts."""
    if found != expected:
        raise InvalidResponseError(f"the reply has {found} vectors for {expected} texts")


def pack_vectors(rows: Sequence[Vector]) -> tuple[bytes, int]:
    """Return the vectors as consecutive little-endian float32 bytes, and the vector length."""
    packed = [
        row if type(row) is bytes else little_endian(array.array("f", row).tobytes())
        for row in rows
    ]
    sizes = set(map(len, packed))
    if len(sizes) > 1:
        lengths = ", ".join([f"{size / WIDTH:g}" for size in sorted(sizes)[:5]])
        raise InvalidResponseError(f"the vectors differ in length: {lengths}")
    size = sizes.pop() if sizes else 0
    if size == 0 or size % WIDTH:
        raise InvalidResponseError(f"a vector has {size} bytes, which are not float32 numbers")
    data = b"".join(packed)
    if not is_finite(data):
        raise InvalidResponseError("a vector has a number that is not finite")
    return data, size // WIDTH


# --- reading rankings --------------------------------------------------------------------------


def read_results(
    items: Any, count: int, limit: int | None, score: str, echo: str
) -> Sequence[Ranked]:
    """Read the results of a ranking of ``count`` documents; reject invalid indices and scores."""
    if not isinstance(items, list):
        raise InvalidResponseError("the reply has no list of results")
    if limit is not None and len(items) > limit:
        raise InvalidResponseError(f"the reply has {len(items)} results, {limit} were asked for")
    seen: set[int] = set()
    results = []
    for item in items:
        index = item.get("index") if isinstance(item, dict) else None
        if type(index) is not int or not 0 <= index < count:
            raise InvalidResponseError(
                f"a result has the index {quote(index)}, of {count} documents"
            )
        if index in seen:
            raise InvalidResponseError(f"two results have the index {index}")
        seen.add(index)
        results.append(Ranked(index, _read_score(item.get(score)), _read_echo(item.get(echo))))
    return results


def _read_score(value: Any) -> float:
    try:
        score = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:  # the integer is too large for a float
        score = math.nan
    if not math.isfinite(score):
        raise InvalidResponseError(f"a result has the score {quote(value)}")
    return score


def _read_echo(value: Any) -> str | None:
    """Read the text of a returned document: a string, or an object with a ``text``."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        text = value.get("text")
        return text if isinstance(text, str) else None
    raise InvalidResponseError(f"a result has the document {quote(value)}")


# --- reading token counts and names: an invalid one is treated as not reported -----------------


def read_usage(record: Any, *names: str) -> Usage:
    """Return the usage in a reply.

    The input tokens are the first valid count among the fields ``names``.
    """
    if not isinstance(record, Mapping):
        return Usage()
    counts = [read_count(record.get(name)) for name in names]
    return Usage(input_tokens=next((count for count in counts if count is not None), None))


def read_name(value: Any) -> str | None:
    """Return an id or a model's name if it is a non-empty string, otherwise ``None``."""
    return value if isinstance(value, str) and value else None
