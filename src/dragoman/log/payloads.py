"""The closed list of event types and their payloads.

A payload is a frozen struct whose class determines the type, so a type that is not listed here
cannot be written. Reading is tolerant: a record of an unknown type keeps its payload as a
``dict``.

Intent, execution and observation are three separate types: ``tool_intent.proposed`` is what the
model requested, ``tool.started`` what the system ran (its ``input`` may differ), ``tool.observed``
what the tool returned. A denial is ``permission.denied``, not a failure of a tool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct, field

from ..calls import (
    CallCompleted,
    CallFailed,
    CallStarted,
    GuardJudged,
    ProviderRecovered,
    ProviderUnavailable,
    RoutingChosen,
    RoutingSwitched,
)  # fmt: skip
from ..errors import quote
from ..events import FinishReason, ToolIntent, Usage
from ..messages import Assistant, LossWarning, Message, System, Tool, ToolResult, User
from .actions import (
    PermissionAnswered,
    PermissionDenied,
    PermissionGranted,
    PermissionRequested,
    SessionDelegated,
    ToolAnswered,
    ToolFailed,
    ToolIntentClosed,
    ToolIntentRejected,
    ToolIntentValidated,
    ToolObserved,
    ToolProgress,
    ToolRestarted,
    ToolStarted,
)
from .errors import InvalidRecordError, LogCorruptError, UnknownTypeError

Actor: TypeAlias = Literal["user", "agent", "system", "tool", "worker"]
Sensitivity: TypeAlias = Literal["private", "user_controlled", "pseudonymous", "aggregatable"]


# --- payloads of sessions and turns ------------------------------------------------------------


class ForkedFrom(Struct, frozen=True):
    """A reference to a record of another session. Its hash covers all records before it."""

    session: str
    seq: int
    hash: str


class PolicyInForce(Struct, frozen=True):
    """The permission rules of a session as plain data, and the SHA-256 of their canonical JSON."""

    rules: dict[str, Any]
    sha256: str


class CalledBy(Struct, frozen=True):
    """A reference to the tool call of another session that runs this one."""

    session: str
    intent_id: str


class SessionStarted(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A session began.

    ``kind`` is its writer: an agent session, the commands ``chat`` and ``ask``, or a gateway.
    ``tool_digests`` has a SHA-256 of the definition (name, description, schema) of each tool,
    which reveals a tool that changed between two runs, such as a tool of an MCP server;
    ``definitions`` are the tools offered to the model. ``forked_from`` is the record of another
    session that this one continues. ``follows`` is the last record of the gateway's session
    before this one. ``called_by`` is the call of another session that a sub-session belongs to.
    ``policy`` has the rules that decide about tool calls.
    """

    goal: str | None = None
    model: str | None = None
    provider: str | None = None
    tools: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    tool_digests: dict[str, str] = field(default_factory=dict)
    kind: Literal["agent", "chat", "ask", "gateway"] = "agent"
    definitions: tuple[Tool, ...] = ()
    forked_from: ForkedFrom | None = None
    follows: ForkedFrom | None = None
    called_by: CalledBy | None = None
    policy: PolicyInForce | None = None


class SessionResumed(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A session was resumed after the record ``after``; ``open_intents`` had no result yet.

    ``epoch`` counts the times a session was started or resumed: the records from here to the next
    ``session.resumed`` belong to one runner. ``takeover`` is true if the caller resumed the
    session although it might still run elsewhere. ``changed_tools`` has the new digest of each
    tool whose definition changed, and ``definitions`` the new definitions. ``at`` is the record
    after which the conversation continues, if it is not the last one; later messages stay in the
    log and are not sent. ``policy`` has the permission rules if they have changed.
    """

    after: int
    open_intents: tuple[str, ...] = ()
    reason: str | None = None
    epoch: int | None = None
    takeover: bool = False
    changed_tools: dict[str, str] = field(default_factory=dict)
    definitions: tuple[Tool, ...] = ()
    at: int | None = None
    policy: PolicyInForce | None = None


class ToolsChanged(Struct, frozen=True, omit_defaults=True):
    """An MCP server changed its tools; ``definitions`` and ``tool_digests`` have the new ones."""

    definitions: tuple[Tool, ...] = ()
    tool_digests: dict[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


class SessionFinished(Struct, frozen=True, omit_defaults=True):
    """A run of a session ended.

    ``exhausted`` means that a budget or the turn limit ended it, and ``waiting`` that a decision
    or a result must come from outside before it continues.
    """

    outcome: Literal["completed", "failed", "cancelled", "exhausted", "waiting"]
    detail: str | None = None
    turns: int | None = None


class TurnStarted(Struct, frozen=True, omit_defaults=True):
    """A turn began: messages for the model are selected, then the model is called."""

    number: int
    model: str | None = None
    provider: str | None = None


class Routing(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The choice of a model: which was chosen (``provider:model``), how and why.

    The mode ``rule`` means that a group chose the model that answered: ``asked`` is the group, and
    ``passed_over`` has the reason for each candidate that did not answer.
    """

    mode: Literal["manual", "rule", "default"]
    chosen: str
    reason: str = ""
    passed_over: dict[str, str] = field(default_factory=dict)
    asked: str = ""


class MessageRecorded(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A complete message of the conversation, and what its wire could not represent.

    It includes what only the caller of a provider knows: the message's own id, the model chosen,
    and the cost (or ``cost_unknown``, the reason why there is none). ``tool_ids`` maps every call
    id of the message, verbatim, to Dragoman's own id for the call; if the call became an intent,
    this is the id of the intent. ``in_context`` is false for a message that is stored only as
    evidence, such as a partial reply. ``paused`` marks a reply that its provider paused, and
    continues when it is sent back. ``key`` is the key that the caller gave to a goal.
    """

    message: Message
    model: str | None = None
    provider: str | None = None
    request_id: str | None = None
    finish_reason: FinishReason | None = None
    warnings: tuple[LossWarning, ...] = ()
    message_id: str | None = None
    routing: Routing | None = None
    usage: Usage | None = None
    cost_usd: Decimal | None = None
    pricing_version: str | None = None
    cost_unknown: str | None = None
    latency_ms: float | None = None
    tool_ids: dict[str, str] = field(default_factory=dict)
    in_context: bool = True
    priced_as: str | None = None
    paused: bool = False
    key: str | None = None


class ModelSwapped(Struct, frozen=True, omit_defaults=True, rename={"from_": "from"}):
    """The conversation continues with another model (``provider:model``).

    ``losses`` lists what that model does not receive.
    """

    from_: str
    to: str
    reason: str
    losses: tuple[LossWarning, ...] = ()


class LeftOut(Struct, frozen=True, omit_defaults=True):
    """A message that a context policy omits: its record's number, and its estimated tokens.

    If ``instead`` is set, the message is a tool result, and this text is sent as its content;
    otherwise nothing is sent in its place.
    """

    seq: int
    tokens: int
    instead: str | None = None


class ContextProjected(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A context policy changed which messages are sent; the log keeps every message.

    ``reason`` is ``share`` if the estimated tokens exceeded the policy's share of the context
    window, or ``overflow`` if the model rejected the conversation. ``note`` is the text of a user
    message that is sent in place of the omitted messages; ``summary`` is the id of the
    ``context.summarised`` record whose text it contains. ``tools`` are the deferred tools that are
    not offered any more, until a search finds them again.
    """

    rule: str
    reason: Literal["share", "overflow"]
    left_out: tuple[LeftOut, ...]
    tokens_before: int
    tokens_after: int
    window: int | None = None
    note: str | None = None
    summary: str | None = None
    tools: tuple[str, ...] = ()


class ContextSummarised(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A model summarised the messages in the records ``first`` to ``last``.

    ``request_id`` is the id of the model call. A ``native`` summary is a compaction in the reply
    of the provider, which alone can read it, and has no ``text``. The log keeps the messages, and
    they are sent to other models.
    """

    text: str
    first: int
    last: int
    messages: int
    provider: str
    model: str
    request_id: str
    native: bool = False


class BudgetExceeded(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A limit of the session was reached."""

    budget: Literal["turns", "tokens", "cost", "time", "tool_calls"]
    limit: Decimal
    used: Decimal
    unit: str | None = None
    detail: str | None = None


# --- payloads of model calls -------------------------------------------------------------------


class LlmExchangeKept(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a provider sent in one call, as its own JSON; recorded only if the session enables it.

    A ``reply`` that cannot be recorded (for example because of its size) is omitted, and
    ``problem`` gives the reason.
    """

    request_id: str
    provider: str
    model: str
    reply: Any = None
    problem: str | None = None


class LogPruned(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A session was removed because of its age; ``head`` is the last hash of its chain."""

    session: str
    records: int
    first_id: str
    last_id: str
    head: str
    before: datetime


class LogErased(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The content of some records of a session was erased; they keep their numbers and hashes."""

    type: ClassVar[str] = "log.erased"

    session: str
    numbers: tuple[int, ...]
    hashes: tuple[str, ...]
    reason: str = ""


class RecordErased(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The content of this record was erased; ``was`` is its former type.

    The hash of the record is still that of the original.
    """

    type: ClassVar[str] = "record.erased"

    was: str


Payload: TypeAlias = (
    SessionStarted
    | SessionResumed
    | ToolsChanged
    | SessionFinished
    | TurnStarted
    | MessageRecorded
    | ModelSwapped
    | ContextProjected
    | ContextSummarised
    | BudgetExceeded
    | CallStarted
    | CallCompleted
    | CallFailed
    | LlmExchangeKept
    | GuardJudged
    | RoutingChosen
    | RoutingSwitched
    | ProviderUnavailable
    | ProviderRecovered
    | ToolIntent
    | ToolIntentValidated
    | ToolIntentRejected
    | ToolIntentClosed
    | PermissionRequested
    | PermissionGranted
    | PermissionDenied
    | PermissionAnswered
    | ToolAnswered
    | ToolStarted
    | ToolRestarted
    | ToolProgress
    | SessionDelegated
    | ToolObserved
    | ToolFailed
    | LogPruned
    | LogErased
    | RecordErased
)


# --- the list of event types -------------------------------------------------------------------


_Class: TypeAlias = type[Struct]


class Entry(Struct, frozen=True):
    """One event type: its payload class, and the default actor and sensitivity."""

    type: str
    payload: _Class
    actor: Actor
    sensitivity: Sensitivity


_ENTRIES = (
    Entry("session.started", SessionStarted, "user", "private"),
    Entry("session.resumed", SessionResumed, "system", "private"),
    Entry("tools.changed", ToolsChanged, "system", "private"),
    Entry("session.finished", SessionFinished, "system", "private"),
    Entry("turn.started", TurnStarted, "system", "private"),
    Entry("message.recorded", MessageRecorded, "agent", "private"),
    Entry("model.swapped", ModelSwapped, "system", "pseudonymous"),
    Entry("context.projected", ContextProjected, "system", "private"),
    Entry("context.summarised", ContextSummarised, "system", "private"),
    Entry("budget.exceeded", BudgetExceeded, "system", "pseudonymous"),
    Entry("llm.call_started", CallStarted, "agent", "private"),
    Entry("llm.call_completed", CallCompleted, "agent", "pseudonymous"),
    Entry("llm.call_failed", CallFailed, "agent", "pseudonymous"),
    Entry("llm.exchange_kept", LlmExchangeKept, "agent", "private"),
    Entry("guard.judged", GuardJudged, "system", "pseudonymous"),
    Entry("routing.chosen", RoutingChosen, "system", "pseudonymous"),
    Entry("routing.switched", RoutingSwitched, "system", "pseudonymous"),
    Entry("routing.provider_unavailable", ProviderUnavailable, "system", "pseudonymous"),
    Entry("routing.provider_recovered", ProviderRecovered, "system", "pseudonymous"),
    Entry("tool_intent.proposed", ToolIntent, "agent", "private"),
    Entry("tool_intent.validated", ToolIntentValidated, "system", "private"),
    Entry("tool_intent.rejected", ToolIntentRejected, "system", "private"),
    Entry("tool_intent.closed", ToolIntentClosed, "system", "private"),
    Entry("permission.requested", PermissionRequested, "system", "private"),
    Entry("permission.granted", PermissionGranted, "system", "private"),
    Entry("permission.denied", PermissionDenied, "system", "private"),
    Entry("permission.answered", PermissionAnswered, "user", "private"),
    Entry("tool.answered", ToolAnswered, "tool", "private"),
    Entry("tool.started", ToolStarted, "tool", "private"),
    Entry("tool.restarted", ToolRestarted, "tool", "private"),
    Entry("tool.progress", ToolProgress, "tool", "private"),
    Entry("session.delegated", SessionDelegated, "tool", "private"),
    Entry("tool.observed", ToolObserved, "tool", "private"),
    Entry("tool.failed", ToolFailed, "tool", "private"),
    Entry("log.pruned", LogPruned, "system", "private"),
    Entry(LogErased.type, LogErased, "system", "private"),
    Entry(RecordErased.type, RecordErased, "system", "private"),
)
CATALOGUE: Mapping[str, Entry] = {entry.type: entry for entry in _ENTRIES}
_BY_CLASS: dict[type, Entry] = {entry.payload: entry for entry in _ENTRIES}
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    entry.type: msgspec.json.Decoder(entry.payload) for entry in _ENTRIES
}
_OBJECT = msgspec.json.Decoder(dict[str, Any])
# Earlier versions wrote costs that do not fit into a float. Such a number is read as a Decimal.
_ANY_NUMBERS = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_SPEAKERS: dict[type, Actor] = {
    System: "system",
    User: "user",
    Assistant: "agent",
    ToolResult: "tool",
}
_OBSERVED = (
    CallStarted,
    CallCompleted,
    CallFailed,
    GuardJudged,
    RoutingChosen,
    RoutingSwitched,
    ProviderUnavailable,
    ProviderRecovered,
)
# These fields are not part of a call's payload: the record itself has the type, the session and
# the turn, and messages are separate records with their own sensitivity.
_NOT_STORED = ("type", "session_id", "turn_id", "request", "content")
# With sorted keys, equal values have equal bytes. Costs are written as exact numbers.
_encoder = msgspec.json.Encoder(order="sorted", decimal_format="number")


def encode_payload(payload: Payload) -> tuple[Entry, bytes]:
    """Return a payload's event type and its canonical JSON; an error names the invalid field."""
    entry = _BY_CLASS.get(type(payload))
    if entry is None:
        raise UnknownTypeError(
            f"payload: {type(payload).__name__} is not the payload of any event type"
        )
    try:
        data = _encode(payload)
        # Structs are not validated when they are built, so decode the bytes to check every field.
        _DECODERS[entry.type].decode(data)
        # Other programs read a record without its type, and then a cost of 1E+400 is out of range.
        _OBJECT.decode(data)
    except UnicodeEncodeError:
        raise InvalidRecordError(
            f"payload of {entry.type}: contains a string that is not valid Unicode (a lone "
            "surrogate)"
        ) from None
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRecordError(f"payload of {entry.type}: {_name_field(error)}") from None
    if b"null" in data and _holds_nan(msgspec.to_builtins(payload)):
        raise InvalidRecordError(
            f"payload of {entry.type}: contains a number that JSON cannot represent (NaN or "
            "infinite)"
        )
    return entry, data


def _encode(payload: Payload) -> bytes:
    if not isinstance(payload, _OBSERVED):
        return _encoder.encode(payload)
    fields = msgspec.to_builtins(payload, builtin_types=(Decimal,))
    for name in _NOT_STORED:
        fields.pop(name, None)
    return _encoder.encode(fields)


def find_actor(entry: Entry, payload: Payload) -> Actor:
    """Return the default actor of an event; for a message, it depends on the role."""
    return (
        _SPEAKERS[type(payload.message)] if isinstance(payload, MessageRecorded) else entry.actor
    )


def decode_payload(kind: str, data: bytes) -> Payload | dict[str, Any]:
    """Decode a payload; an unknown type, or a known type with unknown fields, stays a ``dict``."""
    decoder = _DECODERS.get(kind)
    if decoder is not None:
        try:
            return cast("Payload", decoder.decode(data))
        except (ValueError, RecursionError):
            pass
    return decode_object(data)


def decode_object(data: bytes) -> dict[str, Any]:
    """Decode a payload as plain data; raise ``LogCorruptError`` if it is not a JSON object."""
    try:
        return _OBJECT.decode(data)
    except (ValueError, RecursionError):
        pass  # read it again, with numbers of any size
    try:
        return _ANY_NUMBERS.decode(data)
    except RecursionError:
        raise LogCorruptError(
            "a payload is nested too deeply to be read; verify() locates it"
        ) from None
    except ValueError as error:
        raise LogCorruptError(
            f"a payload is not a JSON object: {error}; verify() locates it"
        ) from None


def parse_payload(kind: str, data: Mapping[str, Any]) -> Payload:
    """Build the payload of an event type from plain data; reject unknown fields."""
    entry = CATALOGUE.get(kind)
    if entry is None:
        raise UnknownTypeError(f"type: {quote(kind)} is not in the catalogue of event types")
    unknown = sorted(set(data) - set(entry.payload.__struct_encode_fields__))
    if unknown:
        raise InvalidRecordError(f"payload of {kind}: has no field {quote(unknown[0])}")
    try:
        return cast("Payload", msgspec.convert(dict(data), entry.payload))
    except msgspec.ValidationError as error:
        raise InvalidRecordError(f"payload of {kind}: {_name_field(error)}") from None


def _name_field(error: Exception) -> str:
    """Convert msgspec's message ``what - at `$.field``` to ``field: what``."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, TypeError) and "str keys" in str(error):
        return "the keys of an object must be strings"
    what, found, where = str(error).partition(" - at `$.")
    return f"{where.rstrip('`')}: {what}" if found else what


def _holds_nan(value: Any) -> bool:
    # JSON cannot represent infinity and NaN; msgspec would replace them by null without an error.
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(_holds_nan(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_nan(item) for item in value)
    return False
