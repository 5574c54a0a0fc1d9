"""Records of model calls, which ``Observe``, the log, the gateway and OpenTelemetry share.

Every attempt to call a model produces a ``CallStarted``, then a ``CallCompleted`` or a
``CallFailed``. The choice of a group is recorded as a ``RoutingChosen``, a change of route as a
``RoutingSwitched``, and a change of the circuit breaker as a ``ProviderUnavailable`` or a
``ProviderRecovered``, and the verdict of a guard as a ``GuardJudged``. The JSON of a record
contains its ``type``, and the log stores the record under the same type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from operator import attrgetter
from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import force_setattr

from .errors import REQUEST_IDS, ErrorClass, scrub
from .events import FinishReason, Usage
from .messages import AssistantBlock, Request, RuntimeConfig, Tool, ToolChoice
from .prices import Cost, Unpriced

__all__ = [
    "IS_WORKER", "STOP_REASONS", "TURN", "CallCompleted", "CallFailed", "CallNote", "CallRecord",
    "CallStarted", "GuardJudged", "Inbound", "Operation", "ProviderRecovered", "ProviderUnavailable",
    "RoutingChosen", "RoutingSwitched", "Scope", "StopReason", "Trigger", "count_usage",
    "find_stop_reason", "price_usage", "read_headers", "redact",
]  # fmt: skip

TURN = "dragoman.turn"
"""The key in ``Request.metadata`` for the id of the session turn that a call belongs to."""

IS_WORKER = "dragoman.is_worker"
"""The key in ``Request.metadata`` whose value ``"true"`` marks an auxiliary call, such as one that
summarises the conversation."""

Operation: TypeAlias = Literal["chat", "embed", "rerank", "pass"]
StopReason: TypeAlias = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "content_filter"
]
Scope: TypeAlias = Literal["model_specific", "provider_wide"]
# The adapter contract has no trigger for network errors other than those of DNS, so we add one.
Trigger: TypeAlias = Literal[
    "5_consecutive_failures", "auth_error", "dns_error", "network_error", "multi_model_failures"
]

STOP_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    # The adapter contract has no stop reason for a content filter, so we add one: "end_turn" would
    # be wrong.
    "content_filter": "content_filter",
}
"""The adapter contract's stop reason for each ``finish_reason`` of a complete reply."""


def find_stop_reason(finish_reason: FinishReason | None, stop_sequence: str | None) -> StopReason:
    """Return the stop reason of a complete reply."""
    if finish_reason == "stop" and stop_sequence is not None:
        return "stop_sequence"
    return STOP_REASONS[finish_reason or "stop"]


# --- records of calls --------------------------------------------------------------------------


class Inbound(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The client side of a call through a gateway.

    ``wire`` is the API that the client uses, ``key`` the id of the client's key, and ``name`` the
    model name in its request. ``status`` and ``bytes`` are the HTTP status and the size of the
    reply to the client. ``warnings`` lists the parts of the client's request that could not be
    translated, and ``error`` is the category of the error in the reply, if any.
    """

    wire: str
    key: str | None = None
    name: str | None = None
    status: int = 0
    bytes: int = 0
    warnings: tuple[str, ...] = ()
    error: str | None = None


class _Call(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields that all records of an attempt have in common.

    ``at`` is when the attempt began, in seconds since 1970; ``attempt`` counts from 0. ``request``
    is set only by an ``Observe`` that includes content. ``config`` omits the caller's extras.
    ``server`` is the host and port that the call goes to, if it uses a network.

    ``operation`` is ``chat``, ``embed``, ``rerank``, or ``pass`` for a request that a gateway
    passes on as it is; then ``settings`` has its method and path. For ``embed`` and ``rerank``,
    ``settings`` holds the caller's settings, ``input_count`` the number of texts and
    ``document_count`` the number of documents. An ``Observe`` that includes content also sets
    ``texts``, ``query`` and ``documents``.
    """

    model: str
    provider: str
    request_id: str = ""
    at: float = 0.0
    attempt: int = 0
    retry_reason: str | None = None
    session_id: str | None = None
    turn_id: str | None = None
    stream: bool = False
    config: RuntimeConfig = RuntimeConfig()
    request: Request | None = None
    server: str | None = None
    operation: Operation = "chat"
    settings: dict[str, Any] = field(default_factory=dict)
    input_count: int | None = None
    document_count: int | None = None
    top_k: int | None = None
    texts: tuple[str, ...] | None = None
    query: str | None = None
    documents: tuple[str, ...] | None = None


class CallStarted(_Call, frozen=True, tag="llm.call_started", kw_only=True, omit_defaults=True):
    """One attempt to call a model began.

    ``response_schema`` and ``tool_choice`` are those of the request. In a gateway's log,
    ``tools_digest`` is a SHA-256 of the offered tools, and the first record with it has their
    ``definitions``.
    """

    estimated_input_tokens: int | None = None
    is_worker: bool = False
    response_schema: dict[str, Any] | None = None
    tool_choice: ToolChoice | None = None
    tools_digest: str | None = None
    definitions: tuple[Tool, ...] = ()
    type: ClassVar[str] = "llm.call_started"


class _End(_Call, frozen=True, kw_only=True, omit_defaults=True):
    """The common fields of ``CallCompleted`` and ``CallFailed``.

    A missing count or cost means unknown, not zero. ``input_tokens`` includes cached and
    cache-written tokens, as in ``Usage``; ``estimated`` marks counts that the provider did not
    report, ``from_cache`` a reply that a cache repeated, which costs nothing, and ``terms`` are
    those of ``Usage``. ``cost_usd`` is computed here from the price of ``priced_as``
    (``"vendor:model"``); if it is missing, ``cost_unknown`` is the reason. ``stated_cost_usd`` is
    the cost that the provider reported. In the log a cost is an exact decimal number.

    ``first_event_ms`` and ``latency_ms`` are measured from ``at``. ``response_model`` is the
    provider's own name for the model that answered, ``provider_request_id`` the provider's id for
    the request, ``rate_limits`` the reply headers about rate limits, and ``inbound`` the client
    side of a call through a gateway. ``tool_outcomes`` counts the sound and the faulty tool calls
    of the reply, by the classes of ``dragoman.validate.quality``.
    """

    finish_reason: FinishReason | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    estimated: bool = False
    from_cache: bool = False
    search_units: int | None = None
    billed_input_tokens: int | None = None
    billed_output_tokens: int | None = None
    cost_usd: Decimal | None = None
    pricing_version: str | None = None
    cost_unknown: str | None = None
    priced_as: str | None = None
    stated_cost_usd: Decimal | None = None
    terms: tuple[str, ...] = ()
    first_event_ms: float | None = None
    response_model: str | None = None
    provider_request_id: str | None = None
    rate_limits: dict[str, str] = field(default_factory=dict)
    inbound: Inbound | None = None
    tool_outcomes: dict[str, int] = field(default_factory=dict)

    @property
    def usage(self) -> Usage:
        """The token counts of the call, as a ``Usage``."""
        return Usage(**{name: getattr(self, name) for name in _USAGE})


class CallCompleted(_End, frozen=True, tag="llm.call_completed", kw_only=True, omit_defaults=True):
    """An attempt succeeded.

    For an embedding or a ranking, ``response_id`` is the id of the reply, ``dimensions`` the
    length of the vectors and ``result_count`` the number of ranked documents.
    """

    stop_reason: StopReason
    latency_ms: float
    produced_tool_calls: int = 0
    produced_thinking_blocks: int = 0
    content: tuple[AssistantBlock, ...] | None = None
    response_id: str | None = None
    dimensions: int | None = None
    result_count: int | None = None
    type: ClassVar[str] = "llm.call_completed"
    is_complete: ClassVar[bool] = True


class CallFailed(_End, frozen=True, tag="llm.call_failed", kw_only=True, omit_defaults=True):
    """An attempt failed or was cancelled. ``retry_count`` is the number of earlier attempts.

    Tokens and cost are set if the reply had begun, because the provider bills what it generated.
    They are not set for a rejected attempt. ``category`` is OpenArmature's name for the error, and
    ``wait_seconds`` the pause before the next attempt, if there was one. API keys in the error
    message are masked.
    """

    error_class: ErrorClass
    error_message_redacted: str
    retry_count: int = 0
    latency_ms: float | None = None
    category: str | None = None
    status: int | None = None
    wait_seconds: float | None = None
    type: ClassVar[str] = "llm.call_failed"
    is_complete: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.error_message_redacted, str):
            force_setattr(self, "error_message_redacted", scrub(self.error_message_redacted))


_USAGE = (
    "input_tokens", "output_tokens", "cached_input_tokens", "cache_creation_input_tokens",
    "reasoning_tokens",
    "estimated", "from_cache", "stated_cost_usd", "search_units", "billed_input_tokens", "billed_output_tokens",
    "terms",
)  # fmt: skip

_read_usage = attrgetter(*_USAGE)


def count_usage(usage: Usage) -> dict[str, Any]:
    """Return the token counts in ``usage`` as fields of a call record."""
    return dict(zip(_USAGE, _read_usage(usage), strict=True))


def read_headers(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the record fields taken from reply headers: the request id and the rate limits."""
    found = next((headers[name] for name in REQUEST_IDS if name in headers), None)
    limits = {
        name: value
        for name, value in headers.items()
        if "ratelimit" in name or name.startswith("retry-after")
    }
    return {"provider_request_id": found, "rate_limits": limits}


def price_usage(usage: Usage, bill: Cost | Unpriced | None, priced_as: str) -> dict[str, Any]:
    """Return the fields of a call record for ``usage`` and its cost."""
    found = count_usage(usage)
    found["priced_as"] = priced_as
    if bill is not None:
        found["cost_usd"] = bill.total
        found["pricing_version"] = bill.pricing_version
    if isinstance(bill, Unpriced):
        found["cost_unknown"] = bill.reason
    return found


# --- records of routing and availability -------------------------------------------------------


class RoutingSwitched(
    Struct,
    frozen=True,
    tag="routing.switched",
    omit_defaults=True,
    rename={"from_": "from"},
    kw_only=True,
):
    """A call was switched to the next candidate; targets are named ``provider:model``.

    ``reason`` is a rejection before dispatch (``not_configured``, ``provider_unavailable``,
    ``no_vision_support``, ``exceeds_context_window``, ``no_tool_support``,
    ``no_system_prompt_support``, ``no_structured_output_support``) or the kind of error that the
    candidate returned.
    """

    from_: str
    to: str
    reason: str
    error_class: ErrorClass | None = None
    request_id: str | None = None
    type: ClassVar[str] = "routing.switched"


class RoutingChosen(Struct, frozen=True, tag="routing.chosen", omit_defaults=True):
    """A group chose a candidate by its strategy; ``chosen`` is named ``provider:model``.

    A group that tries its candidates in order writes no such record.
    """

    chosen: str
    reason: str
    request_id: str | None = None
    type: ClassVar[str] = "routing.chosen"


class ProviderUnavailable(
    Struct, frozen=True, tag="routing.provider_unavailable", omit_defaults=True
):
    """The circuit breaker suspended calls to a provider, or to one of its models, for a while."""

    provider: str
    scope: Scope
    trigger_reason: Trigger
    models_affected: tuple[str, ...] = ()
    type: ClassVar[str] = "routing.provider_unavailable"


class ProviderRecovered(Struct, frozen=True, tag="routing.provider_recovered", omit_defaults=True):
    """A provider or model works again, so the circuit breaker no longer blocks calls to it."""

    provider: str
    scope: Scope
    downtime_seconds: float
    models_recovered: tuple[str, ...] = ()
    type: ClassVar[str] = "routing.provider_recovered"


class GuardJudged(Struct, frozen=True, tag="guard.judged", omit_defaults=True, kw_only=True):
    """A judge of a ``Guard`` gave its verdict on a request, or on a part of a reply.

    ``stage`` and ``part`` name what was judged, ``sha256`` is the hash of it, and ``characters``
    its length. ``failed`` is true if the judge gave no verdict in time, so that the guard's own
    setting decided. ``code`` is a word, such as the name of a rule. ``reason`` is the judge's own
    text, which is set only by a ``Guard`` that includes content.
    """

    stage: str
    action: str
    judge: str
    part: str = "text"
    version: str | None = None
    code: str | None = None
    reason: str | None = None
    failed: bool = False
    latency_ms: float = 0.0
    cost_usd: Decimal | None = None
    sha256: str = ""
    characters: int = 0
    request_id: str | None = None
    type: ClassVar[str] = "guard.judged"


CallRecord: TypeAlias = (
    CallStarted
    | CallFailed
    | RoutingChosen
    | RoutingSwitched
    | ProviderUnavailable
    | ProviderRecovered
    | GuardJudged
)
"""The history of a reply: its failed attempts, and its switches to other candidates."""

CallNote: TypeAlias = RoutingSwitched | GuardJudged
"""What a gateway records of a call besides its attempts."""


# --- redaction of log messages -----------------------------------------------------------------

# Patterns for what ``scrub`` does not find: e-mail addresses, and secrets after a name such as
# "password". They match in linear time: repetitions are bounded or possessive. They are compiled
# on first use, because most programs never log an error.
_PERSONAL = r"(?<![\w.+%-])[\w.+%-]++@[\w-]++(?:\.[\w-]++)+"
_IS = (
    # The separator between a name and its value in a header, a URL, JSON, or JSON in a string.
    r"s?\\?[\"']?\s{0,9}[:=]\s{0,9}\\?[\"']?"
)
_NAMED = (
    r"(?i)((?:api[-_ ]?key"
    rf"|access[-_ ]?key|secret|password|passwd|authorization|credential|bearer){_IS})(?!\[hidden\])"
    r"(?:(?:bearer|basic|digest|token)\s{1,9}[^\s\"',;&}\\]+|[^\s\"',;&}\\]{4,})"
)
# The name "token" is usually followed by a count and not by a secret, so numbers are kept.
_TOKEN = rf"(?i)(token{_IS})(?!\[hidden\]|[\d.,]{{1,12}}+(?![\w-]))[^\s\"',;&}}\\]{{4,}}"
# Bearer tokens that are shorter than the keys that ``scrub`` finds. They must contain a digit, so
# that "a bearer token is missing" is not redacted.
_BEARER = r"(?i)\b(bearer\s{1,9}(?:token\s{1,9})?\\?[\"']?)(?=[\w.~+/=-]{0,300}?\d)[\w.~+/=-]{4,}"
_IN_URL = r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^\s/@]{1,300}@"
_SHAPES = (
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bxox[abprs]-[\w-]{10,}|\bya29\.[\w.-]{20,}"
    r"|\b[0-9a-fA-F]{32,}\b"
)


def redact(text: str) -> str:
    """Remove keys, tokens, passwords and e-mail addresses from a message meant for a log."""
    text = re.sub(_IN_URL, r"\1[hidden]@", text)
    text = scrub(text)
    text = re.sub(_NAMED, r"\1[hidden]", text)
    text = re.sub(_TOKEN, r"\1[hidden]", text)
    text = re.sub(_BEARER, r"\1[hidden]", text)
    return re.sub(_PERSONAL, "[e-mail]", re.sub(_SHAPES, "[hidden]", text))
