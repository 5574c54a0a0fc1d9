"""Name response schemas, and write the prompt instruction for wires without a schema field."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from .json import json_text, sorted_json


def schema_name(schema: Mapping[str, Any]) -> str:
    """Return a stable name for a schema: its title if that is a valid name, otherwise a digest."""
    title = schema.get("title")
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", title).strip("_")[:64] if isinstance(title, str) else ""
    return name or "schema_" + hashlib.sha256(bytes(sorted_json(dict(schema)))).hexdigest()[:12]


def closed_object(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


INSTRUCTION = (
    "Reply with nothing but one JSON value that satisfies this JSON Schema, without code fences:"
)


def schema_directive(schema: Mapping[str, Any], instruction: str = INSTRUCTION) -> str:
    """Return the prompt instruction that asks the model for JSON.

    The schema keeps the order of its properties, because the model fills them in that order.
    """
    return f"{instruction}\n{json_text(schema)}"
