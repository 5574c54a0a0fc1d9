"""Map Dragoman's error classes to HTTP statuses, headers and the terms of each wire."""

from __future__ import annotations

import math
import re
from typing import NamedTuple, TypeVar

from ..errors import (
    MAX_MESSAGE,
    AuthenticationError,
    BillingError,
    CallCancelledError,
    ContextOverflowError,
    InvalidModelError,
    InvalidRequestError,
    InvalidResponseError,
    ModelNotLoadedError,
    NetworkError,
    OverloadedError,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
    StreamInterruptedError,
    StructuredOutputError,
    TimedOutError,
    UnavailableError,
    UnsupportedContentError,
    UnsupportedFeatureError,
    scrub,
)

_STATUSES: dict[type[ProviderError], int] = {
    AuthenticationError: 401,
    BillingError: 402,
    InvalidModelError: 404,
    ModelNotLoadedError: 503,
    RateLimitError: 429,
    OverloadedError: 503,
    NetworkError: 502,
    TimedOutError: 504,
    StreamInterruptedError: 502,
    UnavailableError: 500,
    InvalidRequestError: 400,
    UnsupportedContentError: 400,
    InvalidResponseError: 502,
    StructuredOutputError: 502,
    CallCancelledError: 503,
    ProviderError: 500,
}
# The provider's statuses that are forwarded to the client, by error class.
_KEPT: dict[type[ProviderError], frozenset[int]] = {
    AuthenticationError: frozenset({401, 403}),
    UnavailableError: frozenset({500, 502, 503}),
    InvalidRequestError: frozenset({400, 404, 405, 408, 413, 415, 422}),
}


class Terms(NamedTuple):
    """How a wire expresses an error.

    ``kind`` is the type, the status or the exception of the error. ``opening`` is a prefix for the
    message; some clients recognise an error by it. ``status`` is set if only this wire uses it.
    """

    kind: str = ""
    opening: str = ""
    code: str | None = None
    status: int | None = None


_REFUSED = "invalid_request_error"
_TERMS: dict[str, dict[type[ProviderError], Terms]] = {
    "openai": {
        AuthenticationError: Terms("authentication_error", code="invalid_api_key"),
        InvalidModelError: Terms(_REFUSED, code="model_not_found"),
        ModelNotLoadedError: Terms("server_error", code="model_not_loaded"),
        BillingError: Terms("insufficient_quota", code="billing_error"),
        QuotaExceededError: Terms("insufficient_quota", code="insufficient_quota"),
        RateLimitError: Terms("rate_limit_error", code="rate_limit_exceeded"),
        OverloadedError: Terms("server_error", code="overloaded"),
        # Proxies and agents recognise this error by the vendor's error message, not by the code.
        ContextOverflowError: Terms(
            _REFUSED,
            "This model's maximum context length is exceeded: ",
            "context_length_exceeded",
        ),
        UnsupportedFeatureError: Terms(_REFUSED, code="unsupported_parameter"),
        UnsupportedContentError: Terms(
            _REFUSED, "unsupported content block: ", "unsupported_content"
        ),
        InvalidRequestError: Terms(_REFUSED),
        ProviderError: Terms("server_error"),
    },
    "anthropic": {
        AuthenticationError: Terms("authentication_error"),
        InvalidModelError: Terms("not_found_error"),
        BillingError: Terms("billing_error", status=402),
        QuotaExceededError: Terms("billing_error", status=402),
        RateLimitError: Terms("rate_limit_error"),
        OverloadedError: Terms("overloaded_error", status=529),
        TimedOutError: Terms("timeout_error"),
        ContextOverflowError: Terms(_REFUSED, "prompt is too long: "),
        UnsupportedContentError: Terms(_REFUSED, "unsupported content block: "),
        InvalidRequestError: Terms(_REFUSED),
        ProviderError: Terms("api_error"),
    },
    "gemini": {
        AuthenticationError: Terms("UNAUTHENTICATED"),
        InvalidModelError: Terms("NOT_FOUND"),
        ModelNotLoadedError: Terms("UNAVAILABLE", "the model is loading: "),
        BillingError: Terms("FAILED_PRECONDITION"),
        QuotaExceededError: Terms("RESOURCE_EXHAUSTED", "credits are depleted: "),
        RateLimitError: Terms("RESOURCE_EXHAUSTED"),
        OverloadedError: Terms("UNAVAILABLE", "overloaded: "),
        TimedOutError: Terms("DEADLINE_EXCEEDED"),
        ContextOverflowError: Terms(
            "INVALID_ARGUMENT", "the input token count exceeds the maximum number of tokens: "
        ),
        UnsupportedContentError: Terms("INVALID_ARGUMENT", "input modality is not supported: "),
        InvalidRequestError: Terms("INVALID_ARGUMENT"),
        ProviderError: Terms("INTERNAL"),
    },
    "bedrock": {
        AuthenticationError: Terms("AccessDeniedException"),
        BillingError: Terms("AccessDeniedException"),
        InvalidModelError: Terms("ResourceNotFoundException"),
        ModelNotLoadedError: Terms("ModelNotReadyException"),
        QuotaExceededError: Terms("ServiceQuotaExceededException"),
        RateLimitError: Terms("ThrottlingException"),
        TimedOutError: Terms("ModelTimeoutException"),
        OverloadedError: Terms("ServiceUnavailableException", "overloaded: "),
        ContextOverflowError: Terms("ValidationException", "Input is too long: "),
        UnsupportedContentError: Terms(
            "ValidationException", "This model doesn't support the content block: "
        ),
        UnsupportedFeatureError: Terms("ValidationException", "This model doesn't support it: "),
        InvalidRequestError: Terms("ValidationException"),
        ProviderError: Terms("InternalServerException"),
    },
    # The wires below have no error codes, so clients recognise an error by its message.
    "cohere": {
        InvalidModelError: Terms(opening="model not found: "),
        BillingError: Terms(opening="billing: "),
        QuotaExceededError: Terms(opening="billing: "),
        OverloadedError: Terms(opening="overloaded: "),
        ContextOverflowError: Terms(opening="too many tokens: "),
        UnsupportedFeatureError: Terms(opening="not supported with this model: "),
        UnsupportedContentError: Terms(opening="document is not supported: "),
        ProviderError: Terms(),
    },
    "ollama": {
        InvalidModelError: Terms(opening="model not found: "),
        ModelNotLoadedError: Terms(opening="loading model: "),
        BillingError: Terms(opening="payment required: "),
        QuotaExceededError: Terms(opening="exceeded your current quota: "),
        OverloadedError: Terms(opening="overloaded: "),
        ContextOverflowError: Terms(opening="the prompt is too long: "),
        UnsupportedFeatureError: Terms(opening="unsupported_parameter: "),
        UnsupportedContentError: Terms(opening="unsupported content block: "),
        ProviderError: Terms(),
    },
}
_TERMS["responses"] = _TERMS["openai"]
V = TypeVar("V")


def _find_class(error: ProviderError, table: dict[type[ProviderError], V]) -> V:
    """Return the table row for the class of an error, or for its nearest base class."""
    return next(table[kind] for kind in type(error).__mro__ if kind in table)


def terms_of(error: ProviderError, wire: str) -> Terms:
    """Return how a wire expresses an error."""
    return _find_class(error, _TERMS[wire])


def status_of(error: ProviderError) -> int:
    """Return the HTTP status for the gateway's client; a provider's redirect becomes a 502."""
    if error.status is not None and 300 <= error.status < 400:
        return 502
    kept = _KEPT.get(type(error), frozenset())
    return (
        error.status
        if error.status in kept and error.status is not None
        else _find_class(error, _STATUSES)
    )


def headers_of(error: ProviderError) -> dict[str, str]:
    """Return the headers that state whether to retry the request, and after how long.

    The SDKs of the vendors give ``retry-after-ms`` and ``x-should-retry`` precedence over the
    status.
    """
    headers = {
        "content-type": "application/json",
        "x-should-retry": "true" if error.transient else "false",
    }
    wait = error.retry_after
    if wait is not None and math.isfinite(wait) and wait >= 0:
        headers["retry-after"] = str(math.ceil(wait))
        headers["retry-after-ms"] = str(math.ceil(wait * 1000))
    return headers


# Matches a URL, or a host with a port. It cannot backtrack, so the time is linear in the length of
# the message.
_ADDRESS = re.compile(r"\bhttps?://\S++|(?<![\w.-])[\w.-]++:\d{2,5}+\b\S*+")


def message_of(error: ProviderError) -> str:
    """Return the provider's error message without keys and internal addresses, for the client."""
    text = error.provider_message or error.message or error.category
    return _ADDRESS.sub("[address]", scrub(text, limit=MAX_MESSAGE))


def message_on(error: ProviderError, wire: str) -> str:
    """Return the error message with the prefix by which clients of a wire recognise the error."""
    opening, message = terms_of(error, wire).opening, message_of(error)
    return message if opening in message else opening + message
