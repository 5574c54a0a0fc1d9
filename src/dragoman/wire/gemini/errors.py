"""Classify errors of the Gemini wire by a table of patterns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ... import errors as e
from ...events import read_json
from ..errors import (
    ErrorRow,
    Failure,
    build_inband_error,
    read_failure,
    read_retry_after,
    row,
    rows,
)
from ..json import dig, entries_of


def read_refusal(body: bytes | Mapping[str, Any]) -> Failure:
    """Read an error body, which is an object or an array with one object.

    The field ``details`` contains the cause of the error.
    """
    data: Any = body
    if isinstance(body, bytes):
        try:
            data = read_json(body)
        except ValueError:
            return read_failure(body)
    failure = read_failure(data)
    record = data[0] if isinstance(data, list) and data else data
    details = entries_of(dig(record, "error", "details"))
    reason = _find_text(details, "reason")
    delay = _find_text(details, "retryDelay")
    return Failure(
        failure.message,
        reason or failure.kind or failure.code,
        " ".join([failure.kind, *_quotas(details)]).strip(),
        read_retry_after({"retry-after": delay}),
        failure.param,
        failure.body,
    )


def _find_text(details: Iterable[dict[str, Any]], name: str) -> str:
    return next((each[name] for each in details if isinstance(each.get(name), str)), "")


def _quotas(details: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of the exceeded quotas; a name contains the period of its quota."""
    names = []
    for detail in details:
        names += [each.get("quotaId") for each in entries_of(detail.get("violations"))]
        names.append(dig(detail, "metadata", "quota_limit"))
    return [name for name in names if isinstance(name, str)]


def inband_error(error: Any) -> e.ProviderError:
    """Return the error in a reply with status 200, classified by its code or status name.

    An error without a known code or status name becomes a server error.
    """
    failure = read_refusal({"error": error})
    code = str(dig(error, "code"))
    status = next((status for word, status in _STATUSES if word in failure.kind), 500)
    return build_inband_error(code, status, failure, ROWS)


_STATUSES = (
    ("UNAUTHENTICATED", 401),
    ("PERMISSION_DENIED", 403),
    ("NOT_FOUND", 404),
    ("RESOURCE_EXHAUSTED", 429),
    ("INVALID_ARGUMENT", 400),
    ("FAILED_PRECONDITION", 400),
    ("UNAVAILABLE", 503),
    ("DEADLINE_EXCEEDED", 504),
)


ROWS: tuple[ErrorRow, ...] = (
    row("", r"token count.{0,60}exceeds the maximum number of tokens", e.ContextOverflowError),
    # The server answers 400 to an invalid API key. Only the message, or the reason in ``details``,
    # shows that the key is the problem.
    row("400", r"API_KEY_INVALID|API key (not valid|not found|expired)", e.AuthenticationError),
    # The message of every 429 mentions quota and billing, even if the limit resets in seconds. The
    # name of the quota shows its period.
    *rows(
        e.QuotaExceededError,
        ("429", r"PerDay|per[_ ]day\b"),
        # A quota of 0 means that the plan does not include the model, so a retry cannot succeed.
        ("429", r"\blimit: 0\b|credits? (are|is) depleted|spending cap"),
    ),
    row(
        "429 503",
        r"overloaded|high demand|MODEL_CAPACITY_EXHAUSTED|no capacity",
        e.OverloadedError,
    ),
    # The server cancelled the request. A caller that cancels does not read the reply.
    row("499", r"", e.UnavailableError),
    row("503", r"model.{0,40}\bloading|\bloading.{0,20}model", e.ModelNotLoadedError),
    # Unknown models and other missing resources. An HTML page means that the base URL is wrong.
    row("400", r"unexpected model name format", e.InvalidModelError),
    row("404", r"cached?[ _]?content|requested URL", e.InvalidRequestError),
    row("404", r"", e.InvalidModelError),
    # The schema of a tool has a part that Gemini does not support; another model may support it.
    row("400", r"tools\[\d+\].function_?declarations", e.UnsupportedFeatureError),
    # Content that the model does not accept, or that the server cannot fetch from its URL.
    *rows(
        e.UnsupportedContentError,
        ("400", r"cannot fetch content from the provided URL"),
        ("400", r"input modality is not (enabled|supported)"),
        ("400", r"unsupported mime ?type|mime ?type.{0,80}not supported"),
        ("400", r"unable to process input (image|video|audio)"),
        ("400 403", r"\b(inline_?data|file_?data)\b|access the File"),
    ),
)
