"""Classify errors of the anthropic wire: by ``error.type``, then by a table of patterns.

A table row that names no conformance case has no recorded reply; its pattern comes from user
reports.
"""

from __future__ import annotations

from ... import errors as e
from ..errors import ErrorRow, Failure, build_inband_error, row, rows


def inband_error(failure: Failure) -> e.ProviderError:
    """Return the error in a reply with status 200; its ``error.type`` determines its status."""
    # llama.cpp sends the HTTP status in the field ``code``
    return build_inband_error(failure.code, STATUSES.get(failure.kind, 500), failure, ROWS)


STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The HTTP status of each type of error, for errors without one."""


def _kind(word: str, error: type[e.ProviderError]) -> ErrorRow:
    """Return a table row that maps a value of ``error.type`` to an error class."""
    return row("", rf"^\S* {word} ", error)


ROWS: tuple[ErrorRow, ...] = (
    # Errors about an exceeded context window. These rows come before the general row for invalid
    # requests.
    *rows(
        e.ContextOverflowError,
        ("", r"^\S* exceed_context_size_error |context_length_exceeded"),
        ("", r"prompt is too long"),
        ("400 413 422 500", r"context (window|length|size|is too large)|tokens exceeds"),
        # The rule of the adapter contract: any invalid request whose message is about the context.
        # A beta of that name, or ``context_management``, is not about its size (a guess).
        (
            "400 413 422",
            r"^\S* invalid_request_error .{0,400}\bcontext\b(?! beta)(?! management)",
        ),
    ),
    # Errors about missing credit. The server reports some of them as an invalid request.
    _kind("billing_error", e.BillingError),
    row(
        "400 403 429",
        r"credit balance is too low|reached your specified API usage limits",
        e.QuotaExceededError,
    ),
    # The next rows match error.type.
    _kind("(authentication_error|permission_error)", e.AuthenticationError),
    _kind("rate_limit_error", e.RateLimitError),
    _kind("overloaded_error", e.OverloadedError),
    _kind("request_too_large", e.InvalidRequestError),
    row("404", r"^\S* not_found_error file not found", e.InvalidRequestError),
    _kind("not_found_error", e.InvalidModelError),
    _kind("timeout_error", e.TimedOutError),
    # errors about an unknown or loading model, as compatible servers report them
    *rows(
        e.ModelNotLoadedError,
        ("503", r"loading (the )?model|model.{0,40}loading"),
        ("400 404 409 500", r"model.{0,80}not (currently )?loaded|no models? (is )?loaded"),
    ),
    row(
        "400 404 422",
        r"model.{0,120}(not exist|not found)|invalid model name",
        e.InvalidModelError,
    ),
    # Content blocks that are unknown or that the model does not accept. llama.cpp reports them
    # with a 500.
    *rows(
        e.UnsupportedContentError,
        ("400", r"content\.\d+.{0,60}(input tag|does not match any of the expected tags)"),
        # "messages.19.content.27.image.source.base64.data: At least one of the image dimensions
        # exceed max allowed size for many-image requests: 2000 pixels"
        # (anthropics/claude-code#24630, #49537, 2026-04; #4778; seen 2026-11-19)
        ("400", r"image dimensions exceed max allowed size"),
        (
            "400 415 422 500 501",
            r"(image|document|pdf|audio|vision).{0,60}(not support|unsupported|not allowed)",
        ),
        (
            "400 415 422 500 501",
            r"(not support|unsupported).{0,60}(image|document|pdf|audio|vision|multimodal"
            r"|content block)",
        ),
    ),
    # tools, or the schema of a tool, that the model does not support
    row(
        "400", r"not support.{0,40}tool|tools\.\d+\..{0,40}input_schema", e.UnsupportedFeatureError
    ),
    # Overload, including errors that a proxy forwards inside its own error.
    row("429 500 503", r"overloaded|at capacity", e.OverloadedError),
    # The status of an ``api_error`` decides, since aimock sends this type with 401, 404 and 429,
    # too. With a status of an invalid request, the type decides.
    row("400 422", r"^\S* api_error ", e.UnavailableError),
)
