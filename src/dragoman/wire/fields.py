"""Read the body of a client's request, and collect warnings about dropped fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ..errors import InvalidRequestError
from ..messages import Inline, LossWarning, PromptCache, Url
from ..validate.content import MAX_DEPTH, check_depth
from ..validate.data_url import read_data_url
from ..validate.fields import Fields
from .schema import schema_name


class Losses:
    """Collect warnings for the fields in a client's request that ``Request`` does not have."""

    def __init__(self) -> None:
        self._found: list[LossWarning] = []

    def drop(self, path: str, code: str, detail: str) -> None:
        """Add a warning for a dropped field."""
        self._found.append(LossWarning(code, path, detail))

    def drop_fields(self, fields: Fields, names: Iterable[str], detail: str) -> None:
        """Drop the named fields, and add a warning for each one that is present."""
        for name in names:
            if fields.take(name) is not None:
                self.drop(fields.at(name), f"{name}_dropped", detail)

    @property
    def warnings(self) -> tuple[LossWarning, ...]:
        """A warning for each dropped field."""
        return tuple(self._found)


def read_body(body: bytes | dict[str, Any]) -> Fields:
    """Return a reader for a request body, given as bytes or as decoded JSON.

    A request that is not valid JSON is rejected. (The decoder of replies tolerates some errors.)
    """
    if isinstance(body, dict):
        return Fields(body)
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not JSON: {_reason(error)}") from None
    if body.count(b"{") + body.count(b"[") >= MAX_DEPTH:
        # A body with fewer opening brackets than MAX_DEPTH cannot be nested that deeply, so its
        # depth need not be checked.
        check_depth(data, "the body")
    return Fields(data)


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


def read_media_url(url: str) -> tuple[Url | Inline, str | None]:
    """Return the source of a medium from its URL, and the media type in a ``data:`` URL."""
    found = read_data_url(url)
    return (Url(url), None) if found is None or found[0] is None else (Inline(found[1]), found[0])


def read_stops(fields: Fields, name: str) -> tuple[str, ...] | None:
    """Read the stop sequences, which are one string or a list of strings."""
    value = fields.take(name)
    return (value,) if isinstance(value, str) else fields.texts(name)


def read_key(fields: Fields) -> PromptCache | None:
    """Return the cache settings of a wire with automatic caching: cache key and retention time."""
    key, kept = fields.text("prompt_cache_key"), fields.take("prompt_cache_retention")
    if kept not in (None, "24h"):
        fields.put("prompt_cache_retention", kept)
    if key is None and kept != "24h":
        return None
    return PromptCache(auto=False, key=key, ttl="24h" if kept == "24h" else None)


def read_schema(schema: Any, name: str | None, path: str, losses: Losses) -> dict[str, Any]:
    """Return a client's schema; if it has no title, the name in the request becomes its title."""
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"{path} must be a JSON Schema")
    if name is None or name == schema_name(schema):
        return schema
    if "title" not in schema:
        return {"title": name, **schema}
    losses.drop(
        path, "schema_name_dropped", "the schema has a title of its own, and is known by that"
    )
    return schema
