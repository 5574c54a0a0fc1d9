"""Lessons: quirks that a codec changes after an error, for all requests or for one schema."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from .json import sorted_json

MAX_LESSONS = 256
"""The largest number of lessons that a codec keeps. A program may generate a schema for each call,
so there must be a limit.
"""


class Lesson(Struct, frozen=True):
    """Quirks that were changed after an error reply.

    ``schema`` is the digest of the response schema that the change applies to; ``None`` means
    every request.
    """

    detail: str
    changes: dict[str, Any]
    schema: str | None = None


def digest_of(schema: Mapping[str, Any]) -> str:
    """Return the digest that identifies a schema."""
    return hashlib.sha256(bytes(sorted_json(dict(schema)))).hexdigest()[:12]


def changes_for(lessons: Iterable[Lesson], schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the quirks that rejected requests with this response schema have changed."""
    about = [lesson for lesson in lessons if lesson.schema is not None]
    if schema is None or not about:
        return {}
    digest = digest_of(schema)
    return {
        name: value
        for each in about
        if each.schema == digest
        for name, value in each.changes.items()
    }


def is_about_field(message: str) -> bool:
    """Return whether an error is about the field for structured output, not about the schema.

    Hosted OpenAI names the field in both cases: "Invalid schema for response_format 'x': In
    context=(), 'oneOf' is not permitted", and "'response_format' of type 'json_schema' is not
    supported with this model".
    """
    return bool(re.search(_OF_FIELDS, message)) and not re.search(_OF_SCHEMAS, message)


_OF_FIELDS = (
    r"(?i)un(?:known|recogni[sz]ed|supported|expected|available)|extra (?:input|field)"
    r"|no endpoint|input should be"
    r"|not (?:yet |currently )?(?:support|permit|allow|available|implement|recogni[sz]ed)"
    r"|must be one of"
)
_OF_SCHEMAS = (
    r"(?i)invalid[_ ](?:json[_ ])?schema"
    r"|in context=|grammar|additionalProperties|\$ref|\$defs|\bkeyword"
    r"|\b(?:oneOf|allOf|anyOf|patternProperties|minLength|maxLength)\b"
    r"|schema .{0,40}(?:invalid|contains|too )"
)
