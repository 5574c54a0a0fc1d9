"""Classify errors by the table of the openai wire and by patterns for this wire."""

from __future__ import annotations

import re
from typing import Any

from ...errors import ProviderError, UnavailableError, UnsupportedContentError
from ..errors import ErrorRow, Failure, build_inband_error, read_failure, row
from ..openai.errors import ROWS as OPENAI_ROWS
from ..openai.errors import inband_error

ROWS: tuple[ErrorRow, ...] = (
    # Errors about files of a type that is not accepted.
    row("400", r"^unsupported_file\b", UnsupportedContentError),
    # llama.cpp sends this error for a file that it does not accept.
    row("400", r"'input_file' is not supported", UnsupportedContentError),
    # A WebSocket has reached its maximum age; another one works (vybestack/llxprt-code#2771).
    row("400", r"^websocket_connection_limit_reached\b", UnavailableError),
    *OPENAI_ROWS,
)

# OpenAI reports images that are invalid, too large or not found in a failed reply. These errors
# are classified as invalid requests.
_ABOUT_THE_REQUEST = re.compile(r"image|unsupported_file", re.IGNORECASE)


def reply_error(error: Any) -> ProviderError:
    """Return the error in a reply with status 200, classified by the status, code or type in it.

    An error without a known status, code or type becomes a server error.
    """
    several = isinstance(error, dict) and "errors" in error
    failure = read_failure(error if several else {"error": error})
    if _ABOUT_THE_REQUEST.search(f"{failure.code} {failure.kind}"):
        return build_inband_error(failure.code, 400, failure, ROWS)
    return inband_error(failure)


def read_error_body(body: bytes) -> Failure:
    """Read an error body; LiteLLM sends it as an event stream if a stream was requested."""
    head = body.lstrip()
    if head.startswith(b"data:"):
        return read_failure(head[5:].split(b"\n", 1)[0])
    return read_failure(body)
