"""What every wire needs of a response schema: a name for it, and words where the wire has no field for it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from .json import json_text, sorted_json


def schema_name(schema: Mapping[str, Any]) -> str:
    """A stable name for a schema: its title if that can serve, else a digest."""
    title = schema.get("title")
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", title).strip("_")[:64] if isinstance(title, str) else ""
    return name or "schema_" + hashlib.sha256(bytes(sorted_json(dict(schema)))).hexdigest()[:12]


def schema_directive(schema: Mapping[str, Any], wire: str = "") -> str:
    """Return the instruction that asks for JSON in words.

    The wordings differ for history's sake alone: each is part of the bytes that a wire sends, so a change would
    miss every cassette and every prompt cache that holds it. The schema keeps the order of its properties, in
    which the model will fill it.
    """
    return f"{_DIRECTIVES.get(wire, _DIRECTIVE)}\n{json_text(schema)}"


_DIRECTIVE = "Reply with nothing but one JSON value that satisfies this JSON Schema, without code fences:"
_DIRECTIVES = {
    "anthropic": "Answer with one JSON value and nothing else: no code fences, no comment. It must satisfy:",
    "gemini": "Answer with one JSON value and nothing around it. It must satisfy this JSON Schema:",
}
