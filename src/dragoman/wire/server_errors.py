"""Map Dragoman's error classes to HTTP statuses and headers, for all wires."""

from __future__ import annotations

import math
import re
from typing import TypeVar

from ..errors import (
    MAX_MESSAGE,
    AuthenticationError,
    BillingError,
    CallCancelledError,
    InvalidModelError,
    InvalidRequestError,
    InvalidResponseError,
    ModelNotLoadedError,
    NetworkError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    StreamInterruptedError,
    StructuredOutputError,
    TimedOutError,
    UnavailableError,
    UnsupportedContentError,
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
V = TypeVar("V")


def find_class(error: ProviderError, table: dict[type[ProviderError], V]) -> V:
    """Return the table row for the class of an error, or for its nearest base class."""
    return next(table[kind] for kind in type(error).__mro__ if kind in table)


def status_of(error: ProviderError) -> int:
    """Return the HTTP status for the gateway's client; a provider's redirect becomes a 502."""
    if error.status is not None and 300 <= error.status < 400:
        return 502
    kept = _KEPT.get(type(error), frozenset())
    return (
        error.status
        if error.status in kept and error.status is not None
        else find_class(error, _STATUSES)
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


def message_with(error: ProviderError, opening: str) -> str:
    """Return the error message with the prefix by which clients of a wire recognise the error."""
    message = message_of(error)
    return message if opening in message else opening + message
