"""Classify errors of the cohere wire.

The body of an error is one sentence without a code. The error class is chosen by the HTTP status,
then by patterns in the sentence.
"""

from __future__ import annotations

import re

from ... import errors as e
from ..errors import ErrorRow, Failure, build_error, row

ROWS: tuple[ErrorRow, ...] = (
    # This is the only error code that this wire has. It arrives at the end of a stream.
    row("", r"^INVALID_TOOL_GENERATION |invalid tool generation", e.MalformedToolCallError),
    row(
        "400 413 422",
        r"too many tokens|tokens exceeds|(prompt|input|request) is too (long|large)",
        e.ContextOverflowError,
    ),
    row("400 404 422", r"model.{0,120}(not found|not exist|was removed)", e.InvalidModelError),
    row(
        "400 422",
        r"(image|document|audio).{0,40}not supported|not support.{0,24}images?\b",
        e.UnsupportedContentError,
    ),
    row("400 422", r"not (supported|compatible) (for|with|by) ", e.UnsupportedFeatureError),
    # A trial key has a limit per minute, which is worth a retry, and a limit per month, which is
    # not.
    row("429", r"calls / month|monthly|billing", e.QuotaExceededError),
    row("429 500 503", r"overloaded", e.OverloadedError),
)


def inband_error(message: str, kind: str) -> e.ProviderError:
    """Return the error for a stream that begins with status 200 and ends with an error.

    The vendor sends the same messages with status 422 if the reply is one body, so the error gets
    this status. If ``kind`` is a status, as sent by this library's own server, ``kind`` is used.
    """
    status = int(kind) if re.fullmatch(r"[45]\d\d", kind) else 422
    return build_error(status, {}, Failure(message, kind), ROWS)
