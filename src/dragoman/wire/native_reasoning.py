"""The amount of reasoning that a client of the model's own wire wrote, if the model lacks it.

A gateway sends the fields of such a client unchanged, but the model may not accept them: SDKs of
the anthropic wire send ``thinking: {"type": "enabled"}`` to models that only take an effort, and
clients of Gemini send levels that the model does not have. The amount is translated then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ..messages import Request
from .json import dig
from .reasoning import ReasoningStyle


def settle_reasoning(
    request: Request,
    wire: str,
    style: ReasoningStyle | None,
    fields: Collection[str],
    parent: str,
) -> Request:
    """Return a request whose amount of reasoning is either the client's fields or a setting.

    ``fields`` are the fields of reasoning of all families of the wire, and ``parent`` the object
    of the body that has them. If the model accepts the client's fields, or is unknown, the setting
    is removed, and otherwise the fields are.
    """
    native = request.native.get(wire, {})
    paths = _find_paths(fields, parent)
    written = {name: value for name in fields if (value := dig(native, *paths[name])) is not None}
    if not written:
        return request
    if style is None or _accepts(style, written):
        return replace(request, config=replace(request.config, reasoning=None))
    return remove_reasoning(request, wire, written, parent)


def remove_reasoning(request: Request, wire: str, fields: Collection[str], parent: str) -> Request:
    """Return a request without those of its client's fields of reasoning; see above."""
    native = request.native.get(wire, {})
    for path in _find_paths(fields, parent).values():
        if dig(native, *path) is not None:
            native = _without(native, path)
    return replace(request, native={**request.native, wire: native})


def _find_paths(fields: Collection[str], parent: str) -> dict[str, list[str]]:
    """Return where the body has each field of reasoning."""
    before = parent.split(".") if parent else []
    return {name: [*before, *name.split(".")] for name in fields}


def _accepts(style: ReasoningStyle, written: Mapping[str, Any]) -> bool:
    """Return whether a model accepts these fields. Clients of Gemini write words in capitals."""
    values = style.list_values()
    for name, value in written.items():
        word = value.lower() if isinstance(value, str) else value
        if name not in values or (name != style.budget and word not in values[name]):
            return False
    return True


def _without(fields: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Return fields without the one at a path, and without objects that are empty then."""
    name, *inner = path
    kept = {each: value for each, value in fields.items() if each != name}
    left = _without(fields[name], inner) if inner else None
    if left:
        kept[name] = left
    return kept
