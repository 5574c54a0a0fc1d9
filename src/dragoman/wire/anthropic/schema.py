"""Project JSON Schemas onto the subset that this wire accepts.

The server compiles the schema in ``output_config.format`` into a grammar, and rejects a schema
that it cannot compile. Every object must have ``additionalProperties: false``. The server also
rejects numeric bounds and, according to the vendor's documentation and user reports, lengths,
counts other than ``minItems`` 0 or 1, most formats, ``oneOf``, free keys and recursion (case:
anthropic/structured-projected). The ``input_schema`` of a tool only guides the model: it needs a
``type`` and no union at its root. Removed keywords are added to the schema's description, where
the model can read them. The reply is still checked against the complete schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...messages import Tool
from ..codec import Notes
from ..json import json_text
from ..strict import join_tagged_union, note_strict

_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
_KEPT = frozenset(
    {
        "$defs", "$ref", "$schema", "additionalProperties", "allOf", "anyOf", "const", "default",
        "definitions", "description", "enum", "items", "pattern", "properties", "required",
        "title", "type",
    }
)  # fmt: skip
_SHAPES = ("$ref", "allOf", "anyOf", "const", "enum", "oneOf", "type")
_UNIONS = ("allOf", "anyOf", "oneOf")


def fits_format(schema: Mapping[str, Any]) -> bool:
    """Return whether ``output_config.format`` can express every value that a schema allows."""
    return _fits(schema, schema, {})


def _fits(node: Any, root: Mapping[str, Any], seen: dict[str, bool]) -> bool:
    if not isinstance(node, Mapping) or not any(word in node for word in _SHAPES):
        # the schemas ``true`` and ``{}`` allow any value, which a grammar cannot express
        return False
    if "$ref" in node:
        return _fits_reference(node["$ref"], root, seen)
    if _is_open(node) or any(isinstance(value, dict | list) for value in node.get("enum", ())):
        return False
    if any(isinstance(part, Mapping) and "$ref" in part for part in node.get("allOf", ())):
        return False
    parts = [
        *node.get("properties", {}).values(),
        *[part for word in _UNIONS for part in node.get(word, ())],
    ]
    parts += [node["items"]] if "items" in node else []
    return all(_fits(part, root, seen) for part in parts)


def _fits_reference(reference: str, root: Mapping[str, Any], seen: dict[str, bool]) -> bool:
    if reference not in seen:
        # A reference that occurs again on this path means a recursive schema.
        seen[reference] = False
        place, _, name = reference.removeprefix("#/").partition("/")
        known = root.get(place, {}) if place in ("$defs", "definitions") else {}
        seen[reference] = _fits(known.get(name), root, seen)
    return seen[reference]


def _is_object(node: Mapping[str, Any]) -> bool:
    kind = node.get("type")
    return (
        "properties" in node or kind == "object" or (isinstance(kind, list) and "object" in kind)
    )


def _is_open(node: Mapping[str, Any]) -> bool:
    """Return whether a schema is an object that allows keys other than its properties."""
    if not _is_object(node):
        return False
    free = node.get("additionalProperties", not node.get("properties"))
    return free is not False or "patternProperties" in node


def project_format(
    schema: Mapping[str, Any], notes: Notes, path: str = "response_schema"
) -> dict[str, Any]:
    """Return the schema for ``output_config.format`` or a strict tool; report removed keywords."""
    written: dict[str, Any] = _project(schema, notes, path)
    return written


def _project(node: Any, notes: Notes, path: str) -> Any:
    if not isinstance(node, Mapping):
        return node
    node = join_tagged_union(node)
    written: dict[str, Any] = {}
    removed: dict[str, Any] = {}
    for word, value in node.items():
        if word == "oneOf" and "anyOf" not in node:
            written["anyOf"] = _project_parts(value, notes, f"{path}.oneOf")
            notes.rewrite(f"{path}.oneOf", "schema_keyword_rewritten", "sent as anyOf", loss=True)
        elif not _is_kept(word, value):
            removed[word] = value
            why = "not in the subset this wire compiles"
            notes.drop(f"{path}.{word}", "schema_keyword_dropped", why)
        elif word in ("properties", "$defs", "definitions"):
            written[word] = {
                name: _project(part, notes, f"{path}.{word}.{name}")
                for name, part in value.items()
            }
        elif word in _UNIONS:
            written[word] = _project_parts(value, notes, f"{path}.{word}")
        else:
            written[word] = _project(value, notes, f"{path}.{word}") if word == "items" else value
    if _is_object(node):
        if node.get("additionalProperties") is not False:
            why = "sent as false: the wire compiles only objects without other keys"
            notes.rewrite(f"{path}.additionalProperties", "schema_keyword_rewritten", why)
        written["additionalProperties"] = False
    return _describe_removed(written, removed)


def _project_parts(parts: list[Any], notes: Notes, path: str) -> list[Any]:
    return [_project(part, notes, f"{path}[{at}]") for at, part in enumerate(parts)]


def _is_kept(word: str, value: Any) -> bool:
    if word == "format":
        return value in _FORMATS
    return value in (0, 1) if word == "minItems" else word in _KEPT


def _describe_removed(written: dict[str, Any], removed: dict[str, Any]) -> dict[str, Any]:
    """Add the removed keywords to the schema's description, where the model can read them."""
    if removed:
        sentence = f"It must also satisfy {json_text(removed)}"
        about = [f"{written['description']}"] if "description" in written else []
        written["description"] = " ".join([*about, sentence])
    return written


def project_strict(tool: Tool, notes: Notes, path: str) -> dict[str, Any] | None:
    """Return the parameters of a strict tool; ``None`` if the tool cannot be decoded strictly."""
    if tool.strict and fits_format(tool.parameters):
        return project_format(tool.parameters, notes, f"{path}.parameters")
    note_strict(tool, path, notes, "the parameters cannot be decoded strictly on this wire")
    return None


def project_input(schema: Mapping[str, Any], notes: Notes, path: str) -> dict[str, Any]:
    """Return the schema for a tool's input; its root becomes an object without unions."""
    removed = {word: schema[word] for word in _UNIONS if word in schema}
    for word in removed:
        why = "the wire takes no union at the root of a tool"
        notes.drop(f"{path}.{word}", "schema_keyword_dropped", why)
    written = {"type": "object", **{word: schema[word] for word in schema if word not in removed}}
    return _describe_removed(written, removed)
