"""What the OpenAPI document of a gateway states about the requests of a wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

TEXT = {"type": "string"}
COUNT = {"type": "integer"}
FREE: Mapping[str, Any] = {"type": "object"}
LIST = {"type": "array", "items": FREE}
WORD_OR_OBJECT = {"anyOf": [TEXT, FREE]}
TEXT_OR_PARTS = {"anyOf": [TEXT, LIST]}
MESSAGES = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {"role": TEXT, "content": {"anyOf": [TEXT, LIST, {"type": "null"}]}},
    },
}
MODEL = {"type": "string", "description": "The name of a model as this gateway serves it."}
# The fields that most wires name alike.
COMMON: Mapping[str, Any] = {
    "stream": {"type": "boolean"},
    "temperature": {"type": "number"},
    "top_p": {"type": "number"},
    "tools": LIST,
}


class RequestSchema(Struct, frozen=True):
    """The JSON Schema of a wire's requests.

    ``methods`` are what may follow the name of a model in the path, and ``others`` the schemas of
    the wire's other paths.
    """

    body: Mapping[str, Any]
    methods: tuple[str, ...] = ()
    others: Mapping[str, Mapping[str, Any]] = {}


def body_of(*required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of a body, given its required fields and others."""
    return {"type": "object", "required": [*required], "properties": properties}


def body_with_model(*required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of a body that names a model."""
    return body_of("model", *required, model=MODEL, **properties)
