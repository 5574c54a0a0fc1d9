"""Project JSON Schemas onto the subset that the older ``parameters`` field accepts.

The subset is that of OpenAPI 3.0: no references, no closed objects, ``nullable`` in place of the
type ``null``, and enums of strings only. Every omitted keyword is reported; a keyword that is
rewritten without loss is not. The reply is still checked against the caller's complete schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import quote
from ..codec import Notes
from ..strict import join_tagged_union

_KEPT = frozenset(
    {
        "default", "description", "example", "maxItems", "maxLength", "maxProperties", "maximum",
        "minItems", "minLength", "minProperties", "minimum", "nullable", "pattern",
        "propertyOrdering", "required", "title",
    }
)  # fmt: skip
_BOOKKEEPING = frozenset({"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "$ref"})
# The largest number of inlined references. Two references at each of twenty levels would become a
# million schemas.
_MAX_REFERENCES = 1000
_FORMATS = {
    "string": ("date-time", "enum"),
    "integer": ("int32", "int64"),
    "number": ("float", "double"),
}


def project_schema(schema: Mapping[str, Any], path: str, notes: Notes) -> dict[str, Any]:
    """Return a schema, reduced to the keywords that ``parameters`` accepts.

    Each omitted keyword is noted, with a path that starts with ``path``.
    """
    return _Projector(schema, notes).project(schema, path, ())


class _Projector:
    def __init__(self, root: Mapping[str, Any], notes: Notes) -> None:
        self._root = root
        self._notes = notes
        self._left = _MAX_REFERENCES

    def project(self, schema: Any, path: str, above: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(schema, Mapping):  # true and false are valid schemas, too
            if schema is not True:
                self._note_loss(path, f"the schema {quote(schema)} has no place in this field")
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            target = self._find(reference)
            self._left -= 1
            if target is None or reference in above or self._left < 0:
                self._note_loss(
                    f"{path}.$ref",
                    f"{reference} cannot be written out: any object is allowed there",
                )
                return {"type": "object"}
            above = (*above, reference)
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
            return self.project(schema, path, above)
        made: dict[str, Any] = {}
        for key, value in join_tagged_union(schema).items():
            self._keyword(made, key, value, path, above)
        self._check_format(made, path)
        return made

    def _keyword(
        self, made: dict[str, Any], key: str, value: Any, path: str, above: tuple[str, ...]
    ) -> None:
        where = f"{path}.{key}"
        if key in _KEPT or key == "format":
            made[key] = value
        elif key == "type":
            self._type(made, value)
        elif key in ("enum", "const"):
            self._enum(made, value if key == "enum" else [value], where)
        elif key == "properties" and isinstance(value, Mapping):
            made[key] = {
                name: self.project(inner, f"{where}.{name}", above)
                for name, inner in value.items()
            }
        elif key == "items" and isinstance(value, Mapping | bool):
            made[key] = self.project(value, where, above)
        elif key in ("anyOf", "oneOf", "allOf") and isinstance(value, list):
            self._options(made, key, value, where, above)
        elif key not in _BOOKKEEPING:
            self._note_loss(where, f"this field does not know {key}")

    def _type(self, made: dict[str, Any], value: Any) -> None:
        kinds = [
            kind for kind in (value if isinstance(value, list) else [value]) if kind != "null"
        ]
        if value == "null" or (isinstance(value, list) and "null" in value):
            made["nullable"] = True
        if len(kinds) == 1:
            made["type"] = kinds[0]
        elif kinds:
            made["anyOf"] = [{"type": kind} for kind in kinds]

    def _enum(self, made: dict[str, Any], values: Any, where: str) -> None:
        words = (
            [value for value in values if value is not None] if isinstance(values, list) else None
        )
        if not words or not all(isinstance(word, str) for word in words):
            self._note_loss(where, "this field takes only texts as an enum")
            return
        made.setdefault("type", "string")
        made["enum"] = words
        if len(words) < len(values):
            made["nullable"] = True

    def _options(
        self,
        made: dict[str, Any],
        key: str,
        options: list[Any],
        where: str,
        above: tuple[str, ...],
    ) -> None:
        some = [
            option
            for option in options
            if not (isinstance(option, Mapping) and option.get("type") == "null")
        ]
        if len(some) < len(options):
            made["nullable"] = True
        projected = [
            self.project(option, f"{where}[{at}]", above) for at, option in enumerate(some)
        ]
        if len(projected) == 1:
            made.update({name: value for name, value in projected[0].items() if name not in made})
        elif key == "allOf" or "anyOf" in made:
            self._note_loss(where, "this field cannot combine schemas")
        else:
            if key == "oneOf":
                self._note_loss(where, "sent as anyOf: more than one may match")
            made["anyOf"] = projected

    def _check_format(self, made: dict[str, Any], path: str) -> None:
        if "format" in made and made["format"] not in _FORMATS.get(str(made.get("type")), ()):
            self._note_loss(
                f"{path}.format",
                f"this field does not know the format {quote(made.pop('format'))}",
            )

    def _find(self, reference: str) -> Mapping[str, Any] | None:
        node: Any = self._root
        if not reference.startswith("#"):
            return None
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list):
                node = dict(enumerate(node)).get(int(name)) if name.isdecimal() else None
            else:
                node = node.get(name) if isinstance(node, Mapping) else None
        return node if isinstance(node, Mapping) else None

    def _note_loss(self, path: str, detail: str) -> None:
        self._notes.rewrite(path, "schema_keyword_dropped", detail, loss=True)
