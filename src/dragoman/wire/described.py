"""What a server's own model list states about a model: its limits, its end and its reasoning.

``ready()`` of a codec returns a ``Description``. The provider adds its facts to the capabilities,
with the source ``observed``, and its quirks replace what is believed of the model's line.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from msgspec import Struct, field

from .json import dig

_C = TypeVar("_C", bound=Any)
MAX_TOKENS = 100_000_000
"""The largest limit in tokens that a model list may state; a larger one is ignored."""


class Description(Struct, frozen=True):
    """What a server states about a model: values of ``Capabilities``, and quirks that follow."""

    facts: dict[str, Any] = field(default_factory=dict)
    quirks: dict[str, Any] = field(default_factory=dict)


def apply(codec: _C, description: Description) -> _C:
    """Return a codec with what the server states; quirks that were set or learned stay."""
    changes = {
        name: value
        for name, value in description.quirks.items()
        if hasattr(codec.quirks, name) and name not in codec.stated
    }
    if changes:
        names = ", ".join(changes)
        codec = codec.taught(f"the server's model list states these quirks: {names}", **changes)
    if codec.max_output_tokens is None:
        codec.max_output_tokens = description.facts.get("max_output_tokens")
    return codec


def find_limit(entry: Mapping[str, Any], paths: Iterable[str]) -> int | None:
    """Return the number of tokens at the first path that has one, within the stated range."""
    for path in paths:
        value = dig(entry, *path.split("."))
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_TOKENS:
            return value
    return None


def find_day(entry: Mapping[str, Any], paths: Iterable[str]) -> str | None:
    """Return the day at the first path that has one; a time of day is left out."""
    for path in paths:
        value = dig(entry, *path.split("."))
        if isinstance(value, str):
            try:
                return datetime.date.fromisoformat(value[:10]).isoformat()
            except ValueError:
                continue
    return None


def keep_known(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that have a value."""
    return {name: value for name, value in facts.items() if value is not None}
