"""Convert schemas to the form that strict decoding (``strict: true``) accepts.

The rules are those of hosted OpenAI, which answers 400 to any other schema. Allowed keywords are
those that OpenAI's guide names, and those in recorded requests that OpenAI accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..messages import Tool
from .codec import Notes
from .json import ordered_json
from .schema import schema_name

# Keywords that OpenAI accepts. According to user reports, it rejects ``default``, ``minLength``
# and ``maxLength``.
_KEPT = frozenset(
    {
        "$ref", "$schema", "additionalProperties", "const", "description", "enum",
        "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems", "maximum", "minItems",
        "minimum", "multipleOf", "pattern", "required", "title", "type",
    }
)  # fmt: skip
_NAMED = ("properties", "$defs", "definitions")
_LISTED = ("anyOf", "prefixItems")
_SHAPES = ("$ref", "anyOf", "const", "enum", "type")
_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"}
)
_MAX_LEVELS = 32


def strict_form(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an equivalent schema that strict decoding accepts, or ``None`` if there is none."""
    try:
        form = _convert(schema, 0)
    except _NotStrictError:
        return None
    return form if form.get("type") == "object" and "anyOf" not in form else None


def join_tagged_union(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema whose ``oneOf`` with a discriminator is written as ``anyOf``.

    Pydantic writes unions of tagged models in this way. The meaning is the same, because the tag
    lets only one branch match. Every other schema is returned as it is.
    """
    if "discriminator" not in schema or "oneOf" not in schema or "anyOf" in schema:
        return schema
    joined = dict(schema)
    del joined["discriminator"]
    joined["anyOf"] = joined.pop("oneOf")
    return joined


def choose_strict(
    tool: Tool, path: str, notes: Notes, *, default: bool = False
) -> tuple[bool | None, Any]:
    """Return the ``strict`` flag of a tool, and its parameters in the matching form.

    ``default`` is the flag of a tool that does not set it. If a tool sets the flag but its
    parameters have no strict form, the flag is dropped with a note, because the server would
    reject the request.
    """
    if tool.strict is False or (tool.strict is None and not default):
        return tool.strict, tool.parameters
    form = strict_form(tool.parameters)
    if form is not None:
        return True, form
    note_strict(tool, path, notes, "the parameters are outside the rules of strict decoding")
    return None, tool.parameters


def write_function(tool: Tool, parameters: Any, **facts: Any) -> dict[str, Any]:
    """Return a tool in the form of Chat Completions, which several wires share."""
    about = {"name": tool.name, "description": tool.description}
    function = {**about, "parameters": ordered_json(parameters), **facts}
    return {"type": "function", "function": function}


def note_strict(
    tool: Tool,
    path: str,
    notes: Notes,
    why: str = "this wire has no strict tools; arguments are checked instead",
) -> None:
    """Add a note if a tool requests strict decoding, which the wire cannot express."""
    if tool.strict:
        notes.drop(f"{path}.strict", "strict_dropped", why)


def schema_format(schema: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """Return the fields that request a response schema.

    Strict decoding is requested if it is enabled and the schema allows it.
    """
    form = strict_form(schema) if strict else None
    written = ordered_json(schema if form is None else form)
    return {"name": schema_name(schema), "schema": written, "strict": form is not None}


class _NotStrictError(Exception):
    """Raised if a schema breaks the rules of strict decoding."""


def _convert(schema: Any, level: int) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or level > _MAX_LEVELS:
        raise _NotStrictError
    form: dict[str, Any] = {}
    for keyword, value in join_tagged_union(schema).items():
        if keyword in _KEPT:
            form[keyword] = value
        elif keyword in _NAMED and isinstance(value, Mapping):
            form[keyword] = {name: _convert(part, level + 1) for name, part in value.items()}
        elif keyword == "items":
            form[keyword] = _convert(value, level + 1)
        elif keyword in _LISTED:
            form[keyword] = _convert_all(value, level + 1)
        elif keyword != "discriminator":
            raise _NotStrictError
    _check_kind(form)
    if "$ref" in form and len(form) > 1:
        return _wrap_reference(form)
    return form


def _convert_all(parts: Any, level: int) -> list[dict[str, Any]]:
    if not isinstance(parts, list | tuple) or not parts:
        raise _NotStrictError
    return [_convert(part, level) for part in parts]


def _check_kind(form: Mapping[str, Any]) -> None:
    """Reject open objects, optional properties, arrays of any items, and values of any type."""
    kind = form.get("type")
    if isinstance(kind, list | tuple):
        is_sound = "object" not in kind and "array" not in kind
    elif kind == "object" or "properties" in form:
        is_sound = _is_closed(form)
    elif kind == "array":
        is_sound = "items" in form or "prefixItems" in form
    else:
        is_sound = any(name in form for name in _SHAPES)
    if not is_sound or form.get("format", "date") not in _FORMATS:
        raise _NotStrictError


def _is_closed(form: Mapping[str, Any]) -> bool:
    properties = form.get("properties")
    is_closed = form.get("additionalProperties") is False and properties is not None
    return is_closed and set(properties or ()) == set(form.get("required") or ())


def _wrap_reference(form: dict[str, Any]) -> dict[str, Any]:
    """Move a reference into a union with one branch.

    OpenAI rejects other keywords next to ``$ref``.
    """
    rest = {name: value for name, value in form.items() if name != "$ref"}
    if set(rest) - {"title", "description"}:
        raise _NotStrictError
    return {**rest, "anyOf": [{"$ref": form["$ref"]}]}
