"""Read the schema of an answer: a JSON file, or fields such as ``name, age int, tags [str]``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import click

from .options import read_json
from .parameters import option

SchemaOption: TypeAlias = Annotated[
    str | None,
    'Request JSON by a schema file, or by fields: "name, age int, tags [str]".',
    option("FILE|FIELDS", type=click.Path()),
]

_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_FIELD = re.compile(r"([A-Za-z_][\w-]*)(?:\s+(\w+)|\s+\[\s*(\w+)\s*\])?")


def read_schema(text: str, about: str = "--schema") -> Any:
    """Return the JSON Schema in a file, or the schema of an object with the fields in ``text``."""
    if Path(text).is_file():
        return read_json(text)
    if text.endswith(".json") or "/" in text:
        raise click.UsageError(f"{about}: the file {text} does not exist")
    properties: dict[str, Any] = {}
    for field in text.split(","):
        found = _FIELD.fullmatch(field.strip())
        kind = _TYPES.get(found[2] or found[3] or "str") if found else None
        if found is None or kind is None:
            raise click.UsageError(
                f"{about}: {field.strip()!r} is not a field. Write NAME, NAME TYPE or NAME [TYPE]"
                f' with a type of {", ".join(_TYPES)}: "name, age int, tags [str]"'
            )
        if found[1] in properties:
            raise click.UsageError(f"{about}: the field {found[1]!r} is there twice")
        kinds = {"type": kind}
        properties[found[1]] = {"type": "array", "items": kinds} if found[3] else kinds
    closed = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed}
