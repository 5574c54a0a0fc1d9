"""Convert field names and base64 data, which clients of the Gemini wire write in two styles."""

from __future__ import annotations

import re
from typing import Any

# Fields that contain the client's own data. The keys in this data are not converted.
_DATA = frozenset(
    {
        "args", "response", "parameters", "parametersJsonSchema", "responseSchema",
        "responseJsonSchema", "labels", "responseFormat",
    }
)  # fmt: skip
_UNDERSCORE = re.compile("_([a-z0-9])")


def to_camel(value: Any) -> Any:
    """Convert the field names of a body to camel case; clients may also send snake case."""
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
    """Convert URL-safe base64, which clients may send, to the standard alphabet with padding."""
    if "-" not in data and "_" not in data and len(data) % 4 == 0:
        return data
    data = data.replace("-", "+").replace("_", "/").rstrip("=")
    return data + "=" * (-len(data) % 4)
