"""Translate server tools from the client's wire to the wire of the model.

Search, code execution and page fetching work alike on all wires that have them; each wire
describes them in ``Endpoint.hosted``. File search in a vendor's store and computer control do not:
their ids and actions are specific to the vendor, so those tools are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ...messages import ServerTool
from ..rules import HostedTools

_DATE = "_0123456789"  # the characters of a date after a tool's type: web_search_20250305
# Options that must not be dropped: without them the tool could access what the client forbids, or
# miss what the client provides.
_REQUIRED = frozenset({"allowed_domains", "blocked_domains", "container", "external_web_access"})


class Hosted(Struct, frozen=True):
    """A server tool that a client requested, with its portable name and portable options."""

    name: str
    options: dict[str, Any]


def read_hosted(tools: HostedTools, kind: str, record: Any) -> Hosted | None:
    """Return the server tool that a client requests; ``None`` if other wires cannot offer it.

    ``tools`` are those of the client's wire.
    """
    name = tools.names.get(kind.rstrip(_DATE))
    if name is None or not isinstance(record, Mapping):
        return None
    options = {
        key: value for key, value in record.items() if key not in ("type", "name", "cache_control")
    }
    if isinstance(filters := options.pop("filters", None), Mapping):
        options |= filters
    if options.get("container") == {"type": "auto"}:
        del options["container"]
    for key, value in tools.defaults.items():
        if options.get(key) == value:
            del options[key]
    for key, portable in tools.renamed.items():
        if key in options:
            options[portable] = options.pop(key)
    place = options.get("user_location")
    if isinstance(place, Mapping) and isinstance(place.get("approximate"), Mapping):
        options["user_location"] = {"type": "approximate", **place["approximate"]}
    return Hosted(
        name, {key: value for key, value in options.items() if value not in (None, [], {})}
    )


def fit_hosted(
    hosted: Hosted, wires: Sequence[HostedTools]
) -> tuple[ServerTool, tuple[str, ...]] | None:
    """Return the server tool for a model, and the names of dropped options.

    ``wires`` are the tools of each wire that the model may use. Return ``None`` if one of the
    wires does not support the tool.
    """
    for tools in wires:
        if tools.depend_on_model or hosted.name not in tools.names.values():
            return None
    made: dict[str, Any] = {}
    lost = []
    for name, value in hosted.options.items():
        if all(name in tools.options for tools in wires):
            made[name] = value
        elif name in _REQUIRED:
            return None
        else:
            lost.append(name)
    if "allowed_domains" in made and any(tools.nest_domains for tools in wires):
        if len(wires) > 1:
            return None  # the model may use several wires, whose fields for this option differ
        made["filters"] = {"allowed_domains": made.pop("allowed_domains")}
    return ServerTool(hosted.name, made), tuple(lost)
