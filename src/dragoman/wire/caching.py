"""Prompt caching: which cache settings a call uses, and which of them a wire cannot express."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ..errors import UnsupportedFeatureError
from ..messages import PromptCache, Request
from .cache_marks import LIMIT
from .codec import Notes
from .json import entries_of

_MARKS_ALONE = PromptCache(auto=False)


def read_cache(request: Request, *, default: bool = False) -> PromptCache | None:
    """Return how a call uses the prompt cache; ``None`` if caching is off.

    ``default`` is the endpoint's setting, which applies to calls without a cache setting.
    """
    given = request.config.cache
    if given is None:
        return PromptCache() if default else _MARKS_ALONE
    if isinstance(given, str):
        return PromptCache() if given == "auto" else None
    return given


def note_unplaced(cache: PromptCache | None, places: Collection[str], notes: Notes) -> None:
    """Report cache settings that the wire has no field for, and reject a cache handle.

    Dropping a handle would change the prompt, because a handle refers to a stored part of it.
    """
    if cache is None:
        return
    if cache.handle is not None and "handle" not in places:
        raise UnsupportedFeatureError(
            "config.cache.handle: this wire has no handles of cached contents"
        )
    for name in ("ttl", "key"):
        if getattr(cache, name) is not None and name not in places:
            why = "the prompt cache of this wire has no such setting"
            notes.drop(f"config.cache.{name}", f"cache_{name}_dropped", why)


def key_of(cache: PromptCache | None, request: Request, *, auto_key: bool) -> str | None:
    """Return the cache key of a call; calls with the same key are routed to the same cache.

    With ``auto_key``, all calls of a session use the session id as their key.
    """
    if cache is None:
        return None
    return cache.key or (request.session_id if auto_key and cache.auto else None)


def write_key(
    cache: PromptCache | None,
    notes: Notes,
    *,
    key: str | None,
    form: str = "retention",
) -> dict[str, Any]:
    """Return the fields of the cache settings for a wire that caches automatically.

    ``form`` is the quirk ``cache_form``. With ``breakpoints``, a prefix is cached at breakpoints
    alone. The server adds one to the newest message, and charges for writing the cache, unless the
    mode is explicit.
    """
    if cache is None:
        return {"prompt_cache_options": {"mode": "explicit"}} if form == "breakpoints" else {}
    if form in ("key", "none"):
        places = ("key",) if form == "key" else ()
        note_unplaced(cache, places, notes)
        return {"prompt_cache_key": key} if key is not None and places else {}
    note_unplaced(replace(cache, ttl=None), ("key",), notes)
    fields: dict[str, Any] = {} if key is None else {"prompt_cache_key": key}
    if form == "breakpoints":
        if cache.ttl is not None:
            fields["prompt_cache_options"] = {"ttl": "30m"}  # the only value
        if cache.ttl in ("1h", "24h"):
            why = "the cache is kept for 30 minutes"
            notes.rewrite("config.cache.ttl", "cache_ttl_shortened", why, loss=True)
        return fields
    if cache.ttl == "24h":
        fields["prompt_cache_retention"] = cache.ttl
    elif cache.ttl == "1h":
        why = "the cache is kept for some minutes, or 24 hours"
        notes.rewrite("config.cache.ttl", "cache_ttl_shortened", why, loss=True)
    return fields


def has_marks(request: Request) -> bool:
    """Return whether a message or a block of a request has a mark for the prompt cache."""
    for message in request.messages:
        blocks = message.content if isinstance(message.content, tuple) else ()
        if any(getattr(each, "cache", False) for each in (message, *blocks)):
            return True
    return False


def drop_marks(request: Request) -> Request:
    """Return a request without its marks for the prompt cache, and without a cache setting."""
    return replace(
        request,
        messages=[_unmark(message) for message in request.messages],
        config=replace(request.config, cache=None),
    )


def _unmark(value: Any) -> Any:
    """Return a message or a block without its mark for the prompt cache."""
    content = getattr(value, "content", None)
    changes: dict[str, Any] = {"cache": False} if getattr(value, "cache", False) else {}
    if isinstance(content, tuple):
        changes["content"] = tuple([_unmark(block) for block in content])
    return replace(value, **changes) if changes else value


_RETENTION = ("prompt_cache_retention",)
_BREAKPOINTS = ("prompt_cache_breakpoint", "prompt_cache_options")


def list_cache_problems(body: Mapping[str, Any], form: str | None) -> Iterator[str]:
    """Yield what a server with this form of cache settings refuses in a body, as an error text.

    The form is that of the quirk ``cache_form``; a server without one refuses nothing.
    """
    if form is None:
        return
    refused = {"retention": _BREAKPOINTS, "breakpoints": _RETENTION}.get(form, ())
    found = list(_find_names((*_RETENTION, *_BREAKPOINTS), body))
    for name in refused:
        if name in found:
            yield f"{name} is not supported on this model"
    marks = found.count("prompt_cache_breakpoint")
    if marks > LIMIT:
        yield f"A maximum of {LIMIT} prompt cache breakpoints may be provided. Found {marks}."


def _find_names(names: Collection[str], body: Mapping[str, Any]) -> Iterator[str]:
    """Yield each occurrence of a field at the top of a body, or in a part of its conversation."""
    yield from (name for name in names if name in body)
    for turn in entries_of(body.get("messages", body.get("input"))):
        for place in (turn, *entries_of(turn.get("content")), *entries_of(turn.get("output"))):
            yield from (name for name in names if name in place)
