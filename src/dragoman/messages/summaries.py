"""Summarise a block that only one provider understands, in one readable line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["summarise_block"]

_LENGTH = 200  # longest value to show, in characters
_VALUES = 5
# Fields of server-side tools on all wires: searches, code, files, pages, and errors.
_TELLING = (
    "name", "query", "queries", "code", "command", "output", "stdout", "stderr", "outcome", "url",
    "uri", "title",
    "error_code", "mimeType", "status", "retrievedUrl", "urlRetrievalStatus", "text",
)  # fmt: skip


def summarise_block(data: Any) -> str:
    """Return the kind of a block and its most informative values, each truncated."""
    if not isinstance(data, dict):
        return _cut(str(data))
    kind = data.get("type")
    if not isinstance(kind, str):
        kind = next(iter(data), "block")
    values = list(dict.fromkeys(_values(data, 0)))
    more = f", and {len(values) - _VALUES} more" if len(values) > _VALUES else ""
    return f"{kind}: {'; '.join(values[:_VALUES])}{more}" if values else str(kind)


def _values(data: Any, depth: int) -> Iterator[str]:
    if depth > 6:
        return
    if isinstance(data, list):
        for item in data:
            yield from _values(item, depth + 1)
    elif isinstance(data, dict):
        for name in _TELLING:
            found = data.get(name)
            for value in found if isinstance(found, list) else [found]:
                if isinstance(value, str) and value.strip():
                    yield _cut(value)
        for name, value in data.items():
            if name not in _TELLING:
                yield from _values(value, depth + 1)


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LENGTH else f"{line[:_LENGTH]}…"
