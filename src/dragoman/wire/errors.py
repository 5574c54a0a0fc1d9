"""Read error bodies and Retry-After headers; this code is shared by all wires.

The error class is chosen by the HTTP status, then by the machine-readable code in the body, then
by the wire's table of patterns. A case under ``conformance/cases`` exercises each row of a table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .. import errors as e
from ..events import read_json
from .json import dict_of, dig, json_text


class Failure(Struct, frozen=True):
    """The message, the codes and the retry delay from an error body of any shape."""

    message: str = ""
    code: str = ""
    kind: str = ""
    retry_after: float | None = None
    param: str = ""
    body: str = ""

    @property
    def words(self) -> str:
        """The code, type and message as one text, which the patterns are matched against."""
        return f"{self.code} {self.kind} {self.message}"


class ErrorRow(Struct, frozen=True):
    """One row of a wire's error table: an HTTP status and a pattern determine the error class.

    Each row has a conformance case.
    """

    statuses: frozenset[int] | None
    pattern: str
    error: type[e.ProviderError]

    def fits(self, status: int, failure: Failure) -> bool:
        """Return whether this row matches an HTTP status and an error body."""
        return (self.statuses is None or status in self.statuses) and bool(
            self.compiled().search(failure.words)
        )

    def compiled(self) -> re.Pattern[str]:
        """Return the pattern, compiled on first use.

        Fifty patterns take 5 ms to compile, and most programs see no error.
        """
        return re.compile(self.pattern, re.IGNORECASE)


def row(statuses: str, pattern: str, error: type[e.ProviderError]) -> ErrorRow:
    """Return a row of an error table.

    ``statuses`` lists HTTP statuses, as in ``"400 404"``; if it is empty, any status matches.
    """
    numbers = frozenset(int(status) for status in statuses.split()) if statuses else None
    return ErrorRow(numbers, pattern, error)


def rows(error: type[e.ProviderError], *signs: tuple[str, str]) -> list[ErrorRow]:
    """Return the rows of one error class, each from statuses and a pattern."""
    return [row(statuses, pattern, error) for statuses, pattern in signs]


def read_failure(body: bytes | str | Mapping[str, Any] | list[Any] | None) -> Failure:
    """Read an error body: an object, a text, an array or an HTML page."""
    return replace(_read_failure(body), body=_write_body(body))


def _write_body(body: Any) -> str:
    """Return the start of an error body as text."""
    if isinstance(body, bytes):
        return body[: e.MAX_BODY].decode("utf-8", "replace")
    if body is None or isinstance(body, str):
        return e.cut(body or "", e.MAX_BODY)
    try:
        return e.cut(json_text(body), e.MAX_BODY)
    # the body cannot be encoded as JSON: it has a lone surrogate, or is nested too deeply
    except e.InvalidRequestError:
        return ""


def _read_failure(body: bytes | str | Mapping[str, Any] | list[Any] | None) -> Failure:
    data: Any = body
    if isinstance(body, bytes | str):
        try:
            data = read_json(body)
        except ValueError:
            text = body if isinstance(body, str) else body.decode("utf-8", "replace")
            return Failure(_strip_markup(text))
    if isinstance(data, list):
        data = data[0] if data and isinstance(data[0], dict) else {"message": data}
    if not isinstance(data, dict):
        return Failure("" if data is None else _plain_text(data))
    inner = data.get("error") or _find_base_error(data)
    if not inner and isinstance(several := data.get("errors"), list) and several:
        inner = several[0]
    if isinstance(inner, dict):
        return _from_record({**inner, "request_id": None})
    inner = inner or _find_named_error(data)
    if inner:
        return Failure(_plain_text(inner), _word(data.get("code")), _word(data.get("type")))
    return _from_record(data)


def is_failure(data: bytes) -> bool:
    """Return whether a stream event without content is an error that has no ``error`` field.

    Many servers send error bodies without this field, and proxies forward them as stream events.
    """
    try:
        record = read_json(data)
    except ValueError:
        return False
    if not isinstance(record, dict):
        return False
    if (
        "error" in (record.get("object"), record.get("type"))
        or record.get("detail")
        or record.get("errors")
        or _find_base_error(record)
    ):
        return True
    message = record.get("message")
    if isinstance(message, str) and message and ("code" in record or "status" in record):
        return True
    return _find_named_error(record) is not None


def _find_named_error(record: Mapping[str, Any]) -> str | None:
    """Return an error whose kind is the name of its field, with its text.

    Ollama streams ``{"error parsing tool call": "invalid character..."}`` if gpt-oss writes a
    call that it cannot parse (ollama/ollama#11781, open; #12884, 2026-07; seen 2026-11-19).
    """
    for name, text in record.items():
        if name.startswith("error ") and isinstance(text, str):
            return f"{name}: {text}"
    return None


def _find_base_error(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the error in the field ``base_resp``, which MiniMax sends with status 200."""
    base = dict_of(record.get("base_resp"))
    if not base.get("status_code"):  # zero means success
        return None
    return {
        "message": base.get("status_msg"),
        "code": base["status_code"],
        "type": "base_resp",
    }


def _from_record(record: Mapping[str, Any]) -> Failure:
    message = record.get("message") or record.get("detail") or record.get("reason") or ""
    metadata = dict_of(record.get("metadata"))
    # OpenRouter and other routers put the upstream's error body into a string; often only this
    # body names the cause.
    upstream = metadata.get("raw")
    text = _plain_text(message)
    if (
        isinstance(upstream, str)
        and (upstream := e.cut(upstream, e.MAX_PROVIDER_MESSAGE)) not in text
    ):
        text = f"{text}: {upstream}" if text else upstream
    param = _word(record.get("param"))
    # MiMo writes the reason into the field for the parameter's name
    # (case: openai/reason-in-param).
    if " " in param and param not in text:
        text = f"{text}: {param}" if text else param
        param = ""
    wait: Any = metadata.get("retry_after_seconds")
    return Failure(
        text[: e.MAX_PROVIDER_MESSAGE],
        # Anthropic sends its code as error.details.error_code (anthropic/error-with-details),
        # Databricks as error_code (databricks-demos/dbdemos#218, #220; seen 2026-11-19).
        _word(record.get("code"))
        or _word(dig(record, "details", "error_code"))
        or _word(record.get("error_code")),
        _word(record.get("type")) or _word(record.get("status")),
        min(float(wait), MAX_WAIT) if _is_number(wait) else None,
        param,
    )


def _plain_text(value: Any) -> str:
    """Return a value of an error body as text; some servers send lists and objects."""
    try:
        return e.cut(value if isinstance(value, str) else str(value), e.MAX_PROVIDER_MESSAGE)
    # the value is nested too deeply, or is an integer with thousands of digits
    except (RecursionError, ValueError):
        return ""


def _word(value: Any) -> str:
    if isinstance(value, str):
        return e.cut(value, e.MAX_CODE)
    # An integer above 10^18 is not an error code, and Python refuses to convert very long
    # integers.
    return (
        str(value)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18
        else ""
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def _strip_markup(text: str) -> str:
    if "<" not in text[:200]:
        return text[:2000].strip()
    # The page is split before tags are removed. A single pattern for the complete page takes a
    # second if the page has many tags that are never closed.
    pieces = re.split(r"(?=<(?:script|style)\b)", text[:40000])
    text = " ".join(
        [re.sub(r"(?s)^<(?:script|style)\b.*?</(?:script|style)>", " ", piece) for piece in pieces]
    )
    return " ".join(re.sub(r"<[^<>]{0,2000}>", " ", text).split())[:500]


def build_error(
    status: int,
    headers: Mapping[str, str],
    failure: Failure,
    rows: Sequence[ErrorRow],
    now: float | None = None,
) -> e.ProviderError:
    """Return the error for a failed request.

    The first matching row decides its class; if no row matches, the HTTP status does.
    """
    kind = next((row.error for row in rows if row.fits(status, failure)), None) or _by_status(
        status
    )
    if status == 402 and kind is e.QuotaExceededError:
        kind = e.BillingError
    wait = read_retry_after(headers, now)
    error = kind(
        _SUMMARIES.get(kind) or _summarise(status),
        status=status,
        headers=headers,
        provider_code=failure.code or failure.kind or None,
        provider_message=failure.message or None,
        retry_after=failure.retry_after if wait is None else wait,
        param=failure.param or None,
        body=failure.body or None,
    )
    if kind is e.AuthenticationError and re.search(_PLACE, failure.message, re.IGNORECASE):
        error.advice = "The vendor does not serve this place; another key does not help."
    return error


# "Country, region, or territory not supported" (OpenAI), "User location is not supported" (Gemini)
_PLACE = r"\b(country|region|territory|location)\b.{0,60}\bnot (?:supported|available|allowed)"


def build_inband_error(
    code: str, status: int, failure: Failure, rows: Sequence[ErrorRow]
) -> e.ProviderError:
    """Return the error in a reply that has the HTTP status 200.

    If ``code`` is an HTTP status, as some servers write into the error, it is the error's status.
    Otherwise the error has no status, and ``status`` only decides its class.
    """
    if re.fullmatch(r"[45]\d\d", code):
        return build_error(int(code), {}, failure, rows)
    error = build_error(status, {}, failure, rows)
    error.status = None
    return error


def _summarise(status: int) -> str:
    if status < 400:
        return "the server answered with a redirect, which is not followed"
    return "the provider refused the request" if status < 500 else "the provider failed"


_SUMMARIES: dict[type[e.ProviderError], str] = {
    e.AuthenticationError: "the provider refused the credentials",
    e.BillingError: "the provider demands payment",
    e.InvalidModelError: "the provider does not serve this model",
    e.RateLimitError: "the provider's rate limit is reached",
    e.QuotaExceededError: "the account's quota or credit is used up",
    e.OverloadedError: "the provider is overloaded",
    e.TimedOutError: "the provider gave up waiting",
}


def _by_status(status: int) -> type[e.ProviderError]:
    usual = e.UnavailableError if status >= 500 else e.InvalidRequestError
    return _CLASSES.get(status, usual)


_CLASSES: dict[int, type[e.ProviderError]] = {
    401: e.AuthenticationError,
    402: e.BillingError,
    403: e.AuthenticationError,
    408: e.TimedOutError,
    429: e.RateLimitError,
    504: e.TimedOutError,
    529: e.OverloadedError,
}


MAX_WAIT = 31 * 86400.0
"""The longest Retry-After in seconds. The longest period of a provider's quota is a month."""

_NUMBER = r"(\d+(?:\.\d+)?)"
_DURATION = rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?"
_SECONDS = (86400.0, 3600.0, 60.0, 1.0, 0.001)


def read_retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the Retry-After of a reply in seconds.

    The header may be ``retry-after-ms``, or ``retry-after`` with seconds, a duration such as
    ``"6m0s"``, or an HTTP date.

    A date is compared with the ``Date`` header, so that a wrong local clock does not matter.
    Without this header, ``now`` is used. A longer wait than ``MAX_WAIT`` is read as ``MAX_WAIT``.
    """
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    wait = _read_wait(lower, now)
    return None if wait is None else min(wait, MAX_WAIT)


def _read_wait(lower: Mapping[str, str], now: float | None) -> float | None:
    if (milliseconds := _read_seconds(lower.get("retry-after-ms", ""))) is not None:
        return milliseconds / 1000
    value = lower.get("retry-after", "")
    if (seconds := _read_seconds(value)) is not None:
        return seconds
    if (moment := _read_date(value)) is not None:
        reference = _read_date(lower.get("date", ""))
        reference = now if reference is None else reference
        return None if reference is None else max(0.0, moment - reference)
    return _read_reset(lower, now)


def _read_seconds(text: str) -> float | None:
    if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text):
        return float(text)
    match = re.fullmatch(_DURATION, text) if text and len(text) < 40 else None
    if match is None or not any(match.groups()):
        return None
    return sum(
        float(part) * unit for part, unit in zip(match.groups(), _SECONDS, strict=True) if part
    )


def _read_date(text: str) -> float | None:
    # ``email.utils`` is imported on first use, because it is slow to import and rarely needed.
    from email.utils import parsedate_to_datetime

    try:
        if not text:
            return None
        moment = parsedate_to_datetime(text)
        # An HTTP date is in GMT, even without the suffix.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _read_reset(headers: Mapping[str, str], now: float | None) -> float | None:
    # A 429 from OpenRouter has no Retry-After, but a header with the time at which the limit
    # resets, in epoch milliseconds.
    value = headers.get("x-ratelimit-reset", "")
    if now is None or not re.fullmatch(r"\d{13}", value):
        return None
    return max(0.0, int(value) / 1000 - now)
