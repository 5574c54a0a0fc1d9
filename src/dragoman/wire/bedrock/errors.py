"""Classify errors of the bedrock wire: by status, then by exception name, then by patterns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ... import errors as e
from ...events import read_object
from ..errors import ErrorRow, Failure, build_inband_error, read_failure, row, rows
from ..json import string_of

_STATUSES = {
    "validationexception": 400,
    "accessdeniedexception": 403,
    "resourcenotfoundexception": 404,
    "modeltimeoutexception": 408,
    "modelstreamerrorexception": 500,
    "throttlingexception": 429,
    "internalserverexception": 500,
    "serviceunavailableexception": 503,
}

ROWS: tuple[ErrorRow, ...] = (
    row("", r"^ServiceQuotaExceededException |tokens per day", e.QuotaExceededError),
    row("", r"^ModelNotReadyException ", e.ModelNotLoadedError),
    row(
        "400 413",
        r"(input|prompt) is too long|input tokens exceed|context (window|length)"
        r"|expected maxLength",
        e.ContextOverflowError,
    ),
    *rows(
        e.InvalidModelError,
        ("400", r"model identifier is invalid|on-demand throughput|model.{0,80}not found"),
        ("404", r"model|^ResourceNotFoundException "),
    ),
    row(
        "400",
        r"support.{0,40}(content block|s3Uri|image)|(image|document|video).{0,60}support",
        e.UnsupportedContentError,
    ),
    row("400", r"n.t support|toolSpec\.inputSchema", e.UnsupportedFeatureError),
    row("429 500 503", r"overloaded|capacity|unable to process", e.OverloadedError),
)


def read_refusal(body: bytes, headers: Mapping[str, str] | None = None) -> Failure:
    """Read an error reply.

    The exception's name is in the header ``x-amzn-errortype`` or in ``__type``, and may have a
    suffix, as in ``ValidationException:http://...``.
    """
    failure = read_failure(body)
    lower = {name.lower(): value for name, value in (headers or {}).items()}
    record = read_object(body.decode("utf-8", "replace")) or {}
    # The AWS gateway in front of the service writes its message into the field ``Message``.
    if not failure.message and isinstance(text := record.get("Message"), str):
        failure = replace(failure, message=text)
    name = lower.get("x-amzn-errortype") or string_of(record.get("__type")) or failure.code
    return replace(failure, code=name.partition(":")[0].rpartition("#")[2])


def inband_error(name: str, record: Any) -> e.ProviderError:
    """Return the error for an exception in a stream; the exception's name decides the status."""
    failure = replace(read_failure(record), code=name[:1].upper() + name[1:])
    return build_inband_error("", _STATUSES.get(name.lower(), 500), failure, ROWS)
