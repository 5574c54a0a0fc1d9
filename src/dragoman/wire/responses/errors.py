"""Reading a refusal: the words of the openai wire, and those only this one has."""

from __future__ import annotations

import re
from typing import Any

from ...errors import ProviderError, UnsupportedContentError
from ..errors import Failure, Row, build_error, read_failure, row
from ..openai.errors import ROWS as OPENAI_ROWS
from ..openai.errors import inband_error

ROWS: tuple[Row, ...] = (
    # content: files are refused by their type
    row("400", r"^unsupported_file\b", UnsupportedContentError),
    row("400", r"'input_file' is not supported", UnsupportedContentError),  # llama.cpp
    *OPENAI_ROWS,
)

# Pictures that are broken, too large or not to be found: OpenAI says so in a reply that failed.
_ABOUT_THE_REQUEST = re.compile(r"image|unsupported_file", re.IGNORECASE)


def reply_error(error: Any) -> ProviderError:
    """What an ``error`` inside a 200 means: by the status it names, by its words, else a failing server."""
    failure = read_failure({"error": error})
    if re.fullmatch(r"[45]\d\d", failure.code):
        return build_error(int(failure.code), {}, failure, ROWS)
    if _ABOUT_THE_REQUEST.search(f"{failure.code} {failure.kind}"):
        return build_error(400, {}, failure, ROWS)
    return inband_error(failure)


def read_error_body(body: bytes) -> Failure:
    """An error body; LiteLLM sends it as an event stream when a stream was asked for."""
    head = body.lstrip()
    if head.startswith(b"data:"):
        return read_failure(head[5:].split(b"\n", 1)[0])
    return read_failure(body)
