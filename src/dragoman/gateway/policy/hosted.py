"""Translate server tools from the client's wire to the wire of the model.

Search, code execution and page fetching work alike on all wires that have them. File search in a
vendor's store and computer control do not: their ids and actions are specific to the vendor, so
those tools are rejected. On the openai wire, search is a property of the model, and a server
without search ignores the field, so search is never translated to that wire.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from ...messages import ServerTool

_RUN = {
    "web_search": frozenset({"anthropic", "gemini", "responses"}),
    "code_execution": frozenset({"anthropic", "gemini", "responses"}),
    "url_context": frozenset({"anthropic", "gemini"}),
}
# The vendors' names of each server tool. On the anthropic wire a tool type ends with a date, which
# is removed before the lookup.
_NAMES: dict[str, dict[str, str]] = {
    "openai": {"web_search_options": "web_search"},
    "responses": {
        "web_search": "web_search",
        "web_search_preview": "web_search",
        "web_search_2025_08_26": "web_search",
        "web_search_preview_2025_03_11": "web_search",
        "code_interpreter": "code_execution",
    },
    "gemini": {
        "googleSearch": "web_search",
        "codeExecution": "code_execution",
        "urlContext": "url_context",
    },
    "anthropic": {
        "web_search": "web_search",
        "code_execution": "code_execution",
        "web_fetch": "url_context",
    },
}
_DATED = frozenset({"anthropic"})
_ALONE = frozenset({"gemini"})  # wires on which server tools exclude functions
_FILTERED = frozenset({"responses"})  # wires that nest the allowed domains in ``filters``
# The names of options that differ from the portable names.
_OPTIONS = {"gemini": {"excludeDomains": "blocked_domains"}}
# The wires that accept each option of a server tool. If the model's wire does not accept an
# option, the option is dropped and reported.
_PLACES = {
    "allowed_domains": ("anthropic", "responses"),
    "blocked_domains": ("anthropic",),
    "user_location": ("anthropic", "responses"),
    "max_uses": ("anthropic",),
    "search_context_size": ("responses",),
}
# Options that must not be dropped: without them the tool could access what the client forbids, or
# miss what the client provides.
_REQUIRED = frozenset({"allowed_domains", "blocked_domains", "container"})


class Hosted(Struct, frozen=True):
    """A server tool that a client requested, with its portable name and portable options."""

    name: str
    options: dict[str, Any]


def read_hosted(wire: str, kind: str, record: Any) -> Hosted | None:
    """Return the server tool that a client requests; ``None`` if other wires cannot offer it."""
    dated = kind.rpartition("_")
    known = dated[0] if wire in _DATED and dated[2].isdigit() else kind
    name = _NAMES.get(wire, {}).get(known)
    if name is None or not isinstance(record, Mapping):
        return None
    options = {
        key: value for key, value in record.items() if key not in ("type", "name", "cache_control")
    }
    if isinstance(filters := options.pop("filters", None), Mapping):
        options |= filters
    if options.get("container") == {"type": "auto"}:
        del options["container"]
    for key, portable in _OPTIONS.get(wire, {}).items():
        if key in options:
            options[portable] = options.pop(key)
    place = options.get("user_location")
    if isinstance(place, Mapping) and isinstance(place.get("approximate"), Mapping):
        options["user_location"] = {"type": "approximate", **place["approximate"]}
    return Hosted(
        name, {key: value for key, value in options.items() if value not in (None, [], {})}
    )


def fit_hosted(
    hosted: Hosted, wires: Collection[str], *, beside_functions: bool
) -> tuple[ServerTool, tuple[str, ...]] | None:
    """Return the server tool for a model of the given wires, and the names of dropped options.

    Return ``None`` if one of the wires does not support the tool. Gemini before version 3 does not
    accept server tools together with functions.
    """
    if (
        not wires
        or not _RUN[hosted.name] >= set(wires)
        or (beside_functions and not _ALONE.isdisjoint(wires))
    ):
        return None
    made: dict[str, Any] = {}
    lost = []
    for name, value in hosted.options.items():
        if set(wires) <= set(_PLACES.get(name, ())):
            made[name] = value
        elif name in _REQUIRED:
            return None
        else:
            lost.append(name)
    if not _FILTERED.isdisjoint(wires) and "allowed_domains" in made:
        if len(wires) > 1:
            return None  # the model may use several wires, whose fields for this option differ
        made["filters"] = {"allowed_domains": made.pop("allowed_domains")}
    return ServerTool(hosted.name, made), tuple(lost)
