"""The two styles in which clients of the Gemini wire write names and base64."""

from __future__ import annotations

import re
from typing import Any

# Values that contain client data: their keys are not field names of the wire.
_DATA = frozenset(
    [
        "args",
        "response",
        "parameters",
        "parametersJsonSchema",
        "responseSchema",
        "responseJsonSchema",
        "labels",
        "responseFormat",
    ]
)
_UNDERSCORE = re.compile("_([a-z0-9])")


def to_camel(value: Any) -> Any:
    """Return a body with camel-case field names; clients send both styles."""
    if isinstance(value, list):
        return [to_camel(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for name, item in value.items():
        camel = _UNDERSCORE.sub(lambda found: found[1].upper(), name) if "_" in name else name
        made[camel] = item if camel in _DATA else to_camel(item)
    return made


def to_standard_base64(data: str) -> str:
    """Return base64 in the standard alphabet, padded; clients also use the URL-safe alphabet."""
    if "-" not in data and "_" not in data and len(data) % 4 == 0:
        return data
    data = data.replace("-", "+").replace("_", "/").rstrip("=")
    return data + "=" * (-len(data) % 4)
