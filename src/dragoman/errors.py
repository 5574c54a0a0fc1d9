"""The error classes, and their category names in three vocabularies.

::

    ProviderError
    ├── AuthenticationError          the key or the permission is wrong
    │   └── BillingError             payment required: the account has no credit
    ├── InvalidModelError            the provider does not know the model
    ├── ModelNotLoadedError          the provider has not loaded the model yet
    ├── RateLimitError               too many requests; see ``retry_after``
    │   └── QuotaExceededError       no credit or quota left: waiting does not help
    ├── UnavailableError             the provider failed or cannot be reached
    │   ├── OverloadedError          the provider is overloaded
    │   ├── NetworkError             the connection failed
    │   ├── TimedOutError            one of the four timeouts expired; see ``which``
    │   └── StreamInterruptedError   the reply ended before it was finished
    ├── InvalidRequestError          the request is invalid, found locally or by the server
    │   ├── BlockedError             a guard withheld the request or the reply
    │   ├── ContextOverflowError     the conversation exceeds the context window
    │   └── UnsupportedFeatureError  the wire or the model lacks a feature
    ├── UnsupportedContentError      the wire or the model cannot read a block
    ├── InvalidResponseError         the reply cannot be understood
    │   └── MalformedToolCallError   a proposed tool call cannot be trusted
    ├── StructuredOutputError        the text does not match ``response_schema``
    └── CallCancelledError           you cancelled the call

``category``, ``error_class`` and ``kind`` name the class of an error in the terms of three
specifications: OpenArmature, the adapter contract, and "Provider runtime and tool intents".
``transient`` is whether a retry of the same call may succeed. Only ``dragoman.Retry`` retries
calls.
"""

from __future__ import annotations

import json
import re
import reprlib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, Self, TypeAlias

__all__ = [
    "AuthenticationError", "BillingError", "BlockedError", "CallCancelledError", "ContextOverflowError",
    "Deadline", "ErrorClass", "InvalidModelError", "InvalidRequestError", "InvalidResponseError",
    "MalformedToolCallError", "ModelNotLoadedError", "NetworkError", "OverloadedError",
    "ProviderError", "QuotaExceededError", "RateLimitError", "StreamInterruptedError",
    "StructuredOutputError", "TimedOutError", "UnavailableError", "UnsupportedContentError",
    "UnsupportedFeatureError", "advise_import", "cut", "explain_attribute", "keep_headers", "quote", "release_frames",
    "scrub", "without_frames",
]  # fmt: skip

Deadline = Literal["connect", "first_event", "idle", "total"]
ErrorClass: TypeAlias = Literal[
    "auth",
    "rate_limit",
    "network",
    "server_error",
    "invalid_request",
    "context_overflow",
    "cancelled",
    "other",
]

# Headers to keep because they help to debug or show how long to wait. This is an allow-list,
# because a list of secret headers would never be complete.
_HEADERS = frozenset({
    "cf-ray", "content-type", "date", "openai-processing-ms", "request-id", "retry-after",
    "retry-after-ms", "x-request-id", "x-should-retry",
})  # fmt: skip
_HEADER_FAMILIES = ("x-ratelimit-", "anthropic-ratelimit-")
REQUEST_IDS = ("request-id", "x-request-id")
"""The headers in which providers send the id of a request, in the order of preference."""
KEPT_HEADERS = "|".join([*sorted(_HEADERS), *[f"{family}[^:\\r]*" for family in _HEADER_FAMILIES]])
"""A pattern for the lower-case names of the headers that ``keep_headers`` keeps."""

# The maximum lengths in characters of provider texts in an error. Texts are truncated before
# patterns are matched.
MAX_QUOTE = 100
MAX_CODE = 200
MAX_MESSAGE = 2_000
MAX_PROVIDER_MESSAGE = 4_000
MAX_HEADER = 1_000
MAX_BODY = 16 * 1024
MAX_SCRUB = 64 * 1024

# Patterns of keys and tokens, since some servers repeat the rejected key ("Incorrect API key
# provided: sk-..."). Every alternative matches as soon as its start does, so the search is linear.
_SECRETS = re.compile(
    r"(?i:\b(?:bearer|basic)\s{1,20}+)[\w.~+/=-]{8,}+"
    r"|\b(?:sk|pk|rk|gsk|xai|key|csk|fw|hf|r8|tgp|dg)[-_][A-Za-z0-9][\w-]{10,}+"
    r"|\bAIza[\w-]{20,}+"
    r"|\beyJ[\w-]{10,}+(?:\.[\w-]*+){0,2}"
)
_HIDDEN = "[hidden]"
_INNER = ("innererror", "inner_error", "details", "metadata", "errors")
_LEAST_PREFIX = 6  # the minimum length at which a truncated secret at the end of a text is masked


def explain_attribute(value: object, name: str, others: Mapping[str, str]) -> Any:
    """Raise the error about an attribute that ``value`` does not have.

    ``others`` maps names that other libraries use to what is written here. Call this function from
    ``__getattr__``.
    """
    if name in others:
        kind = type(value).__name__
        raise AttributeError(f"{kind!r} object has no attribute {name!r}; {others[name]}")
    # This raises Python's own error, or the error that a property has raised.
    return object.__getattribute__(value, name)


@contextmanager
def advise_import(message: str) -> Iterator[None]:
    """Replace an ``ImportError`` of a ``with`` block by one that names what to install."""
    try:
        yield
    except ImportError as error:
        raise ImportError(message) from error


def cut(text: str, limit: int = MAX_QUOTE) -> str:
    """Return ``text``, or its first characters and an ellipsis if it is longer than ``limit``."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


_repr = reprlib.Repr()
_repr.maxlevel = 2
_repr.maxstring = _repr.maxother = _repr.maxlong = MAX_QUOTE


def quote(value: object) -> str:
    """Return ``repr(value)`` for use in a message, truncated to about 100 characters."""
    if isinstance(value, str):
        return repr(cut(value))
    try:
        return cut(_repr.repr(value))
    except ValueError:  # Python does not convert integers with thousands of digits to text
        return f"a very large {type(value).__name__}"


def scrub(text: str, secrets: Iterable[str] = (), limit: int | None = MAX_SCRUB) -> str:
    """Return ``text`` without the given secrets and without anything shaped like a key or token.

    Text beyond ``limit`` is cut first; the time taken is linear in what remains.
    """
    if limit is not None:
        text = cut(text, limit)
    # Replace the longest secret first: another secret may be its prefix, and the rest of the
    # longer one would stay visible.
    for secret in sorted(secrets, key=len, reverse=True):
        if secret:
            text = _hide_cut_end(text.replace(secret, _HIDDEN), secret)
    return _SECRETS.sub(_HIDDEN, text)


def _hide_cut_end(text: str, secret: str) -> str:
    """Mask the beginning of a secret that was truncated at the end of the text."""
    if not text.endswith("…"):
        return text
    end = text[-len(secret) - 1 : -1]
    for size in range(min(len(end), len(secret) - 1), _LEAST_PREFIX - 1, -1):
        if end.endswith(secret[:size]):
            return f"{text[: -size - 1]}{_HIDDEN}…"
    return text


def without_frames(error: BaseException) -> BaseException:
    """Remove an error's traceback and causes, because their frames contain headers and keys."""
    error.__context__ = error.__cause__ = None
    if isinstance(error, UnicodeDecodeError):
        error.object = b""
    return error.with_traceback(None)


def release_frames(error: BaseException) -> None:
    """Clear the local variables in the tracebacks of an error and its causes.

    A frame refers to the request, and often to the error, which refers to the frame: only the
    cyclic collector would free them. The lines of the traceback stay.
    """
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__


def keep_headers(headers: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """Return the reply headers that help to debug, with lower-case names and without secrets."""
    hidden = [secret for secret in secrets if len(secret) >= MIN_SECRET]
    return {
        cut(name): scrub(value, hidden, limit=MAX_HEADER)
        for raw, value in headers.items()
        if (name := raw.lower()) in _HEADERS or name.startswith(_HEADER_FAMILIES)
    }


MIN_SECRET = 8
"""Minimum length of keys to search for in error texts; shorter ones match ordinary text."""


class ProviderError(Exception):
    """The base class of all errors that a call to a provider can raise.

    ``str(error)`` never contains a key, a prompt or a header. ``provider_message`` is the
    provider's message, ``param`` the field of the request that it names, and ``body`` the first 16
    KiB of its error response, without keys. ``response`` is the part of a reply that arrived
    before the failure, if there is one. ``retry_count`` is the number of attempts that ``Retry``
    made before this one.
    """

    retry_count: int = 0
    category: ClassVar[str] = "provider_unavailable"
    error_class: ClassVar[ErrorClass] = "other"
    kind: ClassVar[str] = "unknown"
    transient: bool = False
    advice: str = ""

    def __init__(
        self,
        message: str = "",
        *,
        status: int | None = None,
        provider: str | None = None,
        model: str | None = None,
        request_id: str | None = None,
        provider_code: str | None = None,
        provider_message: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        response: Any = None,
        advice: str | None = None,
        param: str | None = None,
        body: str | bytes | None = None,
    ) -> None:
        message = cut(message, MAX_MESSAGE)
        super().__init__(message)
        self.message = message
        self.status = status
        self.provider = provider
        self.model = model
        self.request_id = request_id
        self.provider_code = None if provider_code is None else cut(provider_code, MAX_CODE)
        self.provider_message = (
            None if provider_message is None else cut(provider_message, MAX_PROVIDER_MESSAGE)
        )
        self.headers = keep_headers(headers or {})
        self.retry_after = retry_after
        self.response = response
        self.param = None if param is None else scrub(param, limit=MAX_CODE)
        self.body_text: str | None = None
        self.quotable = True
        if body is not None:
            self.keep_body(body)
        # ``advice`` replaces the general advice of the error class. It is empty if the message
        # itself already contains the advice.
        if advice is not None:
            self.advice = advice

    def __str__(self) -> str:
        where = [part for part in (self.provider, self.model) if part]
        parts = [f"{'/'.join(where)}: " if where else "", self.message or self.category]
        if self.status is not None:
            parts.append(f" (HTTP {self.status})")
        if self.provider_message and self.quotable and self.provider_message != self.message:
            line = " ".join(self.provider_message.split())
            parts.append(f". The provider says: {cut(line, 300)}")
        if self.advice:
            parts.append(
                f" {self.advice}" if parts[-1].endswith((".", "?")) else f". {self.advice}"
            )
        return scrub("".join(parts))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    @property
    def body(self) -> Any:
        """The body of the error response as parsed JSON, or as text if it is not JSON.

        It is ``None`` if the response has no body.
        """
        if self.body_text is None:
            return None
        try:
            return json.loads(self.body_text)
        except (ValueError, RecursionError):
            return self.body_text

    @property
    def inner_error(self) -> Any:
        """The provider's nested error, such as the result of a content filter, if there is one."""
        found = self.body
        outer = found.get("error", found) if isinstance(found, dict) else None
        if isinstance(outer, dict):
            return next((outer[name] for name in _INNER if outer.get(name)), None)
        return None

    @property
    def provider_request_id(self) -> str | None:
        """The id that the provider gave the request, from the headers or from the error body.

        It is ``None`` if the provider sent none. Name it when you ask the provider for help.
        """
        found = next((self.headers[name] for name in REQUEST_IDS if name in self.headers), None)
        body = self.body if found is None else None
        stated = body.get("request_id") if isinstance(body, dict) else None
        return cut(stated, MAX_CODE) if isinstance(stated, str) else found

    def attribute(self, provider: str, model: str, request_id: str | None) -> Self:
        """Set the provider, the model and the request id, unless they are set already."""
        self.provider = self.provider or provider
        self.model = self.model or model
        self.request_id = self.request_id or request_id
        return self

    def keep_body(self, body: str | bytes) -> None:
        """Store the beginning of a response body, without anything that looks like a key."""
        text = body[: 2 * MAX_BODY].decode("utf-8", "replace") if isinstance(body, bytes) else body
        self.body_text = scrub(text.strip(), limit=MAX_BODY) or None

    def hide(self, secrets: Iterable[str], prompts: Iterable[str] = ()) -> None:
        """Remove ``secrets`` from this error, and the provider's message if it repeats a prompt.

        vLLM puts the complete rejected request into its error message; such a message stays in
        ``provider_message``, but not in logs and tracebacks.
        """
        # A short key would mask ordinary words: "e" turns "the server" into "th[hidden]
        # s[hidden]rv[hidden]r".
        secrets = [secret for secret in secrets if len(secret) >= MIN_SECRET]
        self.message = scrub(self.message, secrets)
        self.args = (self.message,)
        for name in ("provider_code", "provider_message", "param", "body_text"):
            if (text := getattr(self, name)) is not None:
                setattr(self, name, scrub(text, secrets))
        if self.provider_message is not None and _echoes(self.provider_message, prompts):
            self.quotable = False
        self.headers = {name: scrub(value, secrets) for name, value in self.headers.items()}


def _echoes(message: str, prompts: Iterable[str], window: int = 20) -> bool:
    """Return whether ``message`` repeats a prompt or a part of one.

    The search takes linear time.
    """
    windows = {message[at : at + window] for at in range(len(message) - window + 1)}
    for prompt in prompts:
        prompt = prompt.strip()
        if len(prompt) <= window:
            if len(prompt) >= 4 and prompt in message:
                return True
        elif any(
            prompt[at : at + window] in windows
            for at in range(0, len(prompt) - window + 1, window // 2)
        ):
            return True
    return False


class AuthenticationError(ProviderError):
    """The provider rejected the credentials, or none were given."""

    category = "provider_authentication"
    error_class = "auth"
    kind = "auth"
    advice = "Check the API key and what it is allowed to do."


class BillingError(AuthenticationError):
    """The provider requires payment (HTTP 402): the account has no credit."""

    kind = "quota"
    advice = "Waiting does not help: check the account's credit and billing."


class InvalidModelError(ProviderError):
    """The provider does not serve a model of this name."""

    category = "provider_invalid_model"
    error_class = "invalid_request"
    kind = "bad_request"
    advice = "Check the model's name, and that this account may use it."


class ModelNotLoadedError(ProviderError):
    """The provider knows the model but has not loaded it yet; a later call may succeed."""

    category = "provider_model_not_loaded"
    error_class = "server_error"
    kind = "overloaded"
    transient = True
    advice = "Wait for the server to load the model, or load it."


class RateLimitError(ProviderError):
    """Too many requests or tokens.

    ``retry_after`` is the provider's Retry-After in seconds, or ``None`` if it sent none.
    """

    category = "provider_rate_limit"
    error_class = "rate_limit"
    kind = "rate_limit"
    transient = True
    advice = "Wait and try again, or send less."


class QuotaExceededError(RateLimitError):
    """The account's credit or quota is used up."""

    kind = "quota"
    transient = False
    advice = "Waiting does not help: check the account's plan and billing."


class UnavailableError(ProviderError):
    """The provider reported an internal failure, or could not be reached."""

    category = "provider_unavailable"
    error_class: ClassVar[ErrorClass] = "server_error"
    transient = True
    advice = "Try again, or use another provider."


class OverloadedError(UnavailableError):
    """The provider is overloaded."""

    error_class = "rate_limit"
    kind = "overloaded"


class NetworkError(UnavailableError):
    """The connection failed: DNS lookup, TLS, or a refused or reset connection.

    ``is_unreached`` is true if no server accepted the connection, and ``is_unresolved`` if the
    host name could not be resolved.
    """

    is_unreached: bool = False
    is_unresolved: bool = False
    error_class = "network"
    advice = "Check the base URL and the network."


class TimedOutError(UnavailableError):
    """A timeout expired; ``which`` is connect, first_event, idle or total."""

    error_class = "network"
    kind = "timeout"
    advice = "Try again, or allow more time with timeouts=."

    def __init__(self, message: str = "", *, which: Deadline = "total", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.which = which


class StreamInterruptedError(UnavailableError):
    """The reply ended before its end mark; ``response`` has the part that arrived."""

    error_class = "network"
    kind = "stream_interrupted"
    advice = "The partial reply is in error.response; try again for a complete one."


class InvalidRequestError(ProviderError):
    """The request is invalid; it was not sent unless ``status`` is set."""

    category = "provider_invalid_request"
    error_class: ClassVar[ErrorClass] = "invalid_request"
    kind = "bad_request"


class BlockedError(InvalidRequestError):
    """A guard withheld the request or the reply; ``response`` has what was released before.

    ``provider_code`` is the code of the verdict. The message does not quote what was withheld.
    """

    advice = "Change the request, or ask the operator of the guard about this code."


class ContextOverflowError(InvalidRequestError):
    """The conversation does not fit the model's context window."""

    error_class = "context_overflow"
    kind = "context_length"
    advice = "Shorten the conversation, or use a model with a larger window."


class UnsupportedFeatureError(InvalidRequestError):
    """The wire or the model does not support a setting of the request."""

    kind = "unsupported_feature"
    advice = "Leave the setting out, or use a model that has it."


class UnsupportedContentError(ProviderError):
    """The wire or the model cannot read a content block of the request."""

    category = "provider_unsupported_content_block"
    error_class = "invalid_request"
    kind = "unsupported_feature"
    advice = "Send it in another form, or use a model that reads it."


class InvalidResponseError(ProviderError):
    """The reply violates the rules of the wire; ``response`` has the part that could be read."""

    category = "provider_invalid_response"
    advice = "Check that the server at the base URL speaks this wire."


class MalformedToolCallError(InvalidResponseError):
    """A proposed tool call is unreadable, names an unknown tool or violates its schema."""

    kind = "malformed_tool_call"
    advice = "No intent was made of it; the call as it arrived is in error.response."


class StructuredOutputError(ProviderError):
    """The text of the reply is not JSON, or violates ``response_schema``."""

    category = "structured_output_invalid"
    advice = "The text is in error.output_content; ask again, or with a simpler schema."

    def __init__(
        self,
        message: str = "",
        *,
        response_schema: Mapping[str, Any] | None = None,
        output_content: str = "",
        error_message: str = "",
        finish_reason: str | None = None,
        usage: Any = None,
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.response_schema = response_schema
        self.output_content = output_content
        self.error_message = error_message
        self.finish_reason = finish_reason
        self.usage = usage


class CallCancelledError(ProviderError):
    """``cancel()`` was called while ``complete()`` was waiting."""

    category = "cancelled"
    error_class = "cancelled"
    advice = "Call again if the answer is still wanted."
