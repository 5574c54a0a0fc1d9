"""Errors as JSON, for cassettes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .. import errors
from ..errors import ProviderError, scrub
from ..events import Usage
from .request_keys import hide

_KINDS: dict[str, type[ProviderError]] = {
    name: kind for name in errors.__all__ if isinstance(kind := getattr(errors, name), type)
}
_FACTS = (
    "status",
    "provider",
    "model",
    "provider_code",
    "provider_message",
    "headers",
    "retry_after",
)
_MORE_FACTS = (
    "which",
    "response_schema",
    "output_content",
    "error_message",
    "finish_reason",
    "usage",
)


def write_error(error: ProviderError) -> dict[str, Any]:
    """Return an error as JSON values."""
    kind = next(name for each in type(error).__mro__ if (name := each.__name__) in _KINDS)
    facts = {
        name: value
        for name in (*_FACTS, *_MORE_FACTS)
        if (value := getattr(error, name, None)) not in (None, {})
    }
    # The model's output and the caller's schema are stored unchanged, because callers need them;
    # all other fields are masked.
    kept = {name: msgspec.to_builtins(facts[name]) for name in _MORE_FACTS if name in facts}
    record = hide(
        msgspec.to_builtins({name: value for name, value in facts.items() if name not in kept})
    )
    return {
        "class": kind,
        "message": scrub(error.message),
        "quotable": error.quotable,
        **record,
        **kept,
    }


def read_error(data: Mapping[str, Any]) -> ProviderError:
    """Rebuild an error from the JSON values that ``write_error`` returned."""
    facts = dict(data)
    kind = _KINDS.get(facts.pop("class", ""), ProviderError)
    message = facts.pop("message", "")
    quotable = facts.pop("quotable", True)
    if "usage" in facts:
        facts["usage"] = msgspec.convert(facts["usage"], Usage)
    error: ProviderError = kind(message, **facts)
    error.quotable = quotable
    return error
