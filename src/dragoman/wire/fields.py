"""Read the body of a client's request, and fields that several wires write alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import groupby
from typing import Any, TypeVar

import msgspec

from ..errors import InvalidRequestError
from ..messages import Inline, Message, PromptCache, Text, Url, User, UserBlock
from ..validate.content import MAX_DEPTH, check_depth
from ..validate.data_url import read_data_url
from ..validate.fields import Fields, kind_of
from .losses import ClientRecord, Losses
from .rules import FieldTable
from .schema import schema_name

R = TypeVar("R", bound=ClientRecord)
T = TypeVar("T")


def read_body(body: bytes | dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request body, which is given as bytes or as decoded JSON.

    A request that is not valid JSON is rejected. (The decoder of replies tolerates some errors.)
    """
    if isinstance(body, dict):
        return body
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not JSON: {_reason(error)}") from None
    if body.count(b"{") + body.count(b"[") >= MAX_DEPTH:
        # A body with fewer opening brackets than MAX_DEPTH cannot be nested that deeply, so its
        # depth need not be checked.
        check_depth(data, "the body")
    if not isinstance(data, dict):
        raise InvalidRequestError(f"the body must be an object, not {kind_of(data)}")
    return data


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


def open_body(data: Any, table: FieldTable, kind: type[R], skip: Collection[str] = ()) -> R:
    """Return a lenient reader for a body, whose fields are sorted by the rules of a wire.

    The fields to ``skip`` are read by the caller.
    """
    fields = kind(data, "", Losses(data, table))
    fields.sort(table.rules, skip)
    return fields


def read_media_url(url: str) -> tuple[Url | Inline, str | None]:
    """Return the source of a medium from its URL, and the media type in a ``data:`` URL."""
    found = read_data_url(url)
    return (Url(url), None) if found is None or found[0] is None else (Inline(found[1]), found[0])


def split_results(
    parts: Iterable[T],
    is_result: Callable[[T], bool],
    read_result: Callable[[T], Message],
    read_block: Callable[[T], UserBlock],
) -> list[Message]:
    """Return a turn of the user as messages: each tool result, and the blocks between results."""
    messages: list[Message] = []
    for found, group in groupby(parts, is_result):
        if found:
            messages += [read_result(part) for part in group]
        else:
            messages.append(make_user([read_block(part) for part in group]))
    return messages or [make_user([])]


def make_user(blocks: list[UserBlock]) -> User:
    """Return a message of the user; a single text becomes a string, which every wire accepts."""
    only = blocks[0] if len(blocks) == 1 else None
    return User(only.text, cache=only.cache) if isinstance(only, Text) else User(blocks)


def read_stops(fields: Fields, name: str) -> tuple[str, ...] | None:
    """Read the stop sequences, which are one string or a list of strings."""
    value = fields.take(name)
    return (value,) if isinstance(value, str) else fields.texts(name)


def take_cache(fields: dict[str, Any]) -> PromptCache | None:
    """Remove the cache key and the retention time from a body's fields; return the setting."""
    key = fields.get("prompt_cache_key")
    kept = fields.get("prompt_cache_retention")
    key = key if isinstance(key, str) else None
    if key is None and kept != "24h":
        return None
    fields.pop("prompt_cache_key", None)
    if kept == "24h":
        del fields["prompt_cache_retention"]
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
