"""Map Dragoman's error classes to HTTP statuses, headers and the terms of each wire."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from .. import errors as e

_STATUSES: dict[type[e.ProviderError], int] = {
    e.AuthenticationError: 401,
    e.BillingError: 402,
    e.InvalidModelError: 404,
    e.ModelNotLoadedError: 503,
    e.RateLimitError: 429,
    e.OverloadedError: 503,
    e.NetworkError: 502,
    e.TimedOutError: 504,
    e.StreamInterruptedError: 502,
    e.UnavailableError: 500,
    e.InvalidRequestError: 400,
    e.UnsupportedContentError: 400,
    e.InvalidResponseError: 502,
    e.StructuredOutputError: 502,
    e.CallCancelledError: 503,
    e.ProviderError: 500,
}
# The provider's statuses that are forwarded to the client, by error class.
_KEPT: dict[type[e.ProviderError], frozenset[int]] = {
    e.AuthenticationError: frozenset({401, 403}),
    e.UnavailableError: frozenset({500, 502, 503}),
    e.InvalidRequestError: frozenset({400, 404, 405, 408, 413, 415, 422}),
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


ErrorTerms: TypeAlias = Mapping[type[e.ProviderError], Terms]
V = TypeVar("V")


def _find_class(error: e.ProviderError, table: Mapping[type[e.ProviderError], V]) -> V:
    """Return the table row for the class of an error, or for its nearest base class."""
    return next(table[kind] for kind in type(error).__mro__ if kind in table)


NO_TERMS: ErrorTerms = {e.ProviderError: Terms()}


def terms_of(error: e.ProviderError, terms: ErrorTerms) -> Terms:
    """Return how a wire expresses an error, given its terms by error class."""
    return _find_class(error, terms)


# A machine-readable code. It has a lower-case letter, unlike the names of gRPC statuses, and does
# not end like the name of an error type, which providers without codes send.
_CODE = re.compile(r"(?=[^a-z]*+[a-z])[A-Za-z][\w.-]*+(?<!error)(?<!Error)(?<!Exception)")


def code_of(error: e.ProviderError) -> str | None:
    """Return the provider's own machine-readable code for an error, if it sent one."""
    code = error.provider_code
    return code if code is not None and _CODE.fullmatch(code) else None


def code_field(error: e.ProviderError) -> dict[str, str]:
    """Return the provider's own code as the field ``code``, for wires that have no such field.

    SDKs ignore a field that they do not know.
    """
    code = code_of(error)
    return {} if code is None else {"code": code}


def status_of(error: e.ProviderError) -> int:
    """Return the HTTP status for the gateway's client; a provider's redirect becomes a 502."""
    if error.status is not None and 300 <= error.status < 400:
        return 502
    if error.status is not None and error.status in _KEPT.get(type(error), ()):
        return error.status
    return _find_class(error, _STATUSES)


def headers_of(error: e.ProviderError) -> dict[str, str]:
    """Return the headers that state whether to retry the request, and after how long.

    A further header has the id that the provider gave the request, for questions to its support.

    The SDKs of the vendors give ``retry-after-ms`` and ``x-should-retry`` precedence over the
    status.
    """
    headers = {
        "content-type": "application/json",
        "x-should-retry": "true" if error.transient else "false",
    }
    if (given := error.provider_request_id) is not None and given.isascii():
        headers["x-dragoman-provider-request-id"] = "".join(filter(str.isprintable, given))
    wait = error.retry_after
    if wait is not None and math.isfinite(wait) and wait >= 0:
        headers["retry-after"] = str(math.ceil(wait))
        headers["retry-after-ms"] = str(math.ceil(wait * 1000))
    return headers


# Matches a URL, or a host with a port. It cannot backtrack, so the time is linear in the length of
# the message.
_ADDRESS = re.compile(r"\bhttps?://\S++|(?<![\w.-])[\w.-]++:\d{2,5}+\b\S*+")


def message_of(error: e.ProviderError) -> str:
    """Return the provider's error message without keys and internal addresses, for the client."""
    text = error.provider_message or error.message or error.category
    return _ADDRESS.sub("[address]", e.scrub(text, limit=e.MAX_MESSAGE))


def mask_addresses(value: Any) -> Any:
    """Return a JSON value without internal addresses in its texts, for the client."""
    if isinstance(value, dict):
        return {name: mask_addresses(each) for name, each in value.items()}
    if isinstance(value, list):
        return [mask_addresses(each) for each in value]
    return _ADDRESS.sub("[address]", value) if isinstance(value, str) else value


def message_on(error: e.ProviderError, terms: ErrorTerms) -> str:
    """Return the error message with the prefix by which clients of a wire recognise the error."""
    opening = terms_of(error, terms).opening
    message = message_of(error)
    return message if opening in message else opening + message
