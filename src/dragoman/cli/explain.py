"""Describe the providers that a name in the registry opens, for ``dragoman config explain``."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from msgspec import to_builtins

from ..middleware import Availability, Fallback, describe
from ..provider import SCHEMES
from ..registry import Adapter, Group, ModelEntry, Registry


def explain_name(registry: Registry, name: str) -> dict[str, Any]:
    """Return the stack of providers that a name opens, as text, and the models in that stack.

    Raise ``InvalidModelError`` if the name is unknown.
    """
    provider = registry.open(name, planning=True)
    found: dict[str, Any] = {"name": name, "stack": describe(provider), "models": []}
    if isinstance(provider, Fallback):
        found["availability"] = _show_availability(provider.availability)
    if name.partition(":")[0] in SCHEMES and name not in registry.aliases():
        return found
    entry = registry.find(name)
    candidates = (
        [candidate.model for candidate in entry.group.candidates]
        if entry.group is not None
        else [name]
    )
    for model in candidates:
        if model.partition(":")[0] not in SCHEMES:
            found["models"].append(_explain_model(registry, registry.find(model), entry.group))
    return found


def _explain_model(registry: Registry, entry: ModelEntry, group: Group | None) -> dict[str, Any]:
    adapter = registry.adapter(entry.adapter).for_model(entry.wire_name)
    candidate = (
        next((each for each in group.candidates if registry.find(each.model).id == entry.id), None)
        if group
        else None
    )
    timeouts = adapter.deadlines(candidate.timeouts if candidate else None)
    return {
        "id": entry.id,
        "status": entry.status,
        "adapter": f"{adapter.name} (type {adapter.type})",
        "wire": adapter.wire,
        "sent_as": entry.wire_name,
        "address": _show_address(adapter.base_url),
        "keys": [f"{name} ({_state(adapter, name)})" for name in adapter.key_envs] or None,
        "timeouts": to_builtins(timeouts),
        "rate_limit": adapter.rate_limit.given() if adapter.rate_limit else None,
        "proxy": _show_address(adapter.connection.proxy)
        if "://" in adapter.connection.proxy
        else adapter.connection.proxy,
        "ca": adapter.connection.ca,
        "client_cert": adapter.connection.client_cert,
        "priced_as": entry.priced_as.model,
        "tokens": entry.tokens,
    }


def _state(adapter: Adapter, variable: str) -> str:
    return "set" if adapter.has_key(variable) else "not set"


def _show_availability(availability: Availability) -> dict[str, Any]:
    shared = {"shared": "Redis" if type(availability) is not Availability else "this process"}
    return {**to_builtins(availability.thresholds), **shared}


def _show_address(url: str | None) -> str | None:
    """Return an address without credentials."""
    if url is None:
        return None
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
