"""The closed list of event types, and what each one says.

A payload is a frozen value whose class decides the type: there is no way to write a type that is
not listed here. Reading is tolerant: a record of an unknown type keeps its payload as a ``dict``.

Intent, execution and observation are three types and never one: ``tool_intent.proposed`` is what
the model wanted, ``tool.started`` what the system did (its ``input`` may differ), ``tool.observed``
what the world answered. A denial is ``permission.denied`` and no failure of a tool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct, field

from ..calls import CallCompleted, CallFailed, CallStarted, ProviderRecovered, ProviderUnavailable, RoutingSwitched
from ..errors import quote
from ..events import FinishReason, ToolIntent, Usage
from ..messages import Assistant, LossWarning, Message, System, Tool, ToolResult, User, UserBlock
from .errors import InvalidRecordError, LogCorruptError, UnknownTypeError

Actor: TypeAlias = Literal["user", "agent", "system", "tool", "worker"]
Sensitivity: TypeAlias = Literal["private", "user_controlled", "pseudonymous", "aggregatable"]
SideEffect: TypeAlias = Literal["none", "read", "write", "execute", "network"]


# --- sessions and turns -----------------------------------------------------------------------------


class ForkedFrom(Struct, frozen=True):
    """A record of another session: its session and number, and its hash, which proves all records before it."""

    session: str
    seq: int
    hash: str


class SessionStarted(Struct, frozen=True, omit_defaults=True):
    """A session began.

    ``kind`` is what wrote it: an agent session, the commands ``chat`` and ``ask``, or a gateway.
    ``tool_digests`` has a SHA-256 of the definition (name, description, schema) of each tool, so that a
    tool that changed between two runs, such as one of an MCP server, can be noticed; ``definitions`` are what
    the model is offered. ``forked_from`` is the place in another session that this one continues.
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


class SessionResumed(Struct, frozen=True, omit_defaults=True):
    """A session was resumed after the record ``after``; ``open_intents`` were found unanswered.

    ``epoch`` counts the times a session was started or resumed: the records from here to the next
    ``session.resumed`` are of one runner. ``takeover`` is true when the caller asked to resume the
    session even if it still ran elsewhere. ``changed_tools`` has the new digest of each tool whose
    definition is not the one the session had before, ``definitions`` those definitions. ``at`` is the
    record after which the conversation goes on, if it is not the last one; the messages since then stay
    in the log and are not sent.
    """

    after: int
    open_intents: tuple[str, ...] = ()
    reason: str | None = None
    epoch: int | None = None
    takeover: bool = False
    changed_tools: dict[str, str] = field(default_factory=dict)
    definitions: tuple[Tool, ...] = ()
    at: int | None = None


class SessionFinished(Struct, frozen=True, omit_defaults=True):
    """A session ended; ``exhausted`` means that a budget or the limit of turns did it."""

    outcome: Literal["completed", "failed", "cancelled", "exhausted"]
    detail: str | None = None
    turns: int | None = None


class TurnStarted(Struct, frozen=True, omit_defaults=True):
    """One round began: context projected, the model about to be asked."""

    number: int
    model: str | None = None
    provider: str | None = None


class Routing(Struct, frozen=True, omit_defaults=True):
    """Which model was chosen (``provider:model``), in which way and why.

    ``rule`` is the choice of a fallback, and ``passed_over`` the reason for each candidate that did not answer.
    """

    mode: Literal["manual", "rule", "default"]
    chosen: str
    reason: str = ""
    passed_over: dict[str, str] = field(default_factory=dict)


class MessageRecorded(Struct, frozen=True, omit_defaults=True):
    """A message of the conversation, whole, and what its wire could not carry.

    What only the caller of a provider knows is here too: the message's own id, the choice of the
    model, the cost (or ``cost_unknown``, the reason why there is none), and ``tool_ids``, which maps
    every call id of the message, verbatim, to our own: the intent's, if the call became one. A message
    that is kept as evidence and not shown to the model again, such as half a reply, has ``in_context``
    false. A reply that its provider paused, and continues when it is sent back, is ``paused``.
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


class ModelSwapped(Struct, frozen=True, omit_defaults=True, rename={"from_": "from"}):
    """The conversation went on with another model (``provider:model``), at the price of ``losses``."""

    from_: str
    to: str
    reason: str
    losses: tuple[LossWarning, ...] = ()


class LeftOut(Struct, frozen=True, omit_defaults=True):
    """A message that is no longer sent as it is: the number of its record, and its estimated tokens.

    ``instead`` is the text that is sent as the content of a tool's result; without it, nothing is sent.
    """

    seq: int
    tokens: int
    instead: str | None = None


class ContextProjected(Struct, frozen=True, omit_defaults=True):
    """A context policy changed what is sent of the conversation; the log itself keeps every message.

    ``reason`` is ``share``, when the estimate passed the policy's share of the window, or ``overflow``, when the
    model refused the conversation. ``note`` is the text of a user's message that is sent in the place of the
    messages that are left out; ``summary`` is the id of the ``context.summarised`` that it contains.
    """

    rule: str
    reason: Literal["share", "overflow"]
    left_out: tuple[LeftOut, ...]
    tokens_before: int
    tokens_after: int
    window: int | None = None
    note: str | None = None
    summary: str | None = None


class ContextSummarised(Struct, frozen=True, omit_defaults=True):
    """A model summarised the messages in the records ``first`` to ``last``, in the call ``request_id``."""

    text: str
    first: int
    last: int
    messages: int
    provider: str
    model: str
    request_id: str


class BudgetExceeded(Struct, frozen=True, omit_defaults=True):
    """A limit of the session was reached."""

    budget: Literal["turns", "tokens", "cost", "time"]
    limit: Decimal
    used: Decimal
    unit: str | None = None
    detail: str | None = None


# --- model calls ------------------------------------------------------------------------------------


class LlmExchangeKept(Struct, frozen=True, omit_defaults=True):
    """What a provider sent in one call, as its own JSON, kept because the session was told to.

    A ``reply`` that cannot be recorded (too long, say) is left out, and ``problem`` says why.
    """

    request_id: str
    provider: str
    model: str
    reply: Any = None
    problem: str | None = None


# --- tools ------------------------------------------------------------------------------------------


class ToolIntentValidated(Struct, frozen=True, omit_defaults=True):
    """An intent names a tool there is and its input fits; what running it would do to the world."""

    intent_id: str
    tool_name: str
    side_effect: SideEffect
    paths: tuple[str, ...] = ()


class ToolIntentRejected(Struct, frozen=True, omit_defaults=True):
    """An intent cannot be run as it stands. Neither a decision about it nor a failure of a tool."""

    intent_id: str
    tool_name: str
    problem: Literal["unknown_tool", "invalid_arguments"]
    detail: str = ""


class ToolIntentClosed(Struct, frozen=True, omit_defaults=True):
    """An intent has no other end: it was open when the session stopped, or was given up.

    ``started`` says whether it had begun to run, so that what it did is not known; ``None`` in older records.
    """

    intent_id: str
    reason: str
    tool_name: str | None = None
    started: bool | None = None


class PermissionRequested(Struct, frozen=True, omit_defaults=True):
    """Somebody has to decide about an intent."""

    intent_id: str
    tool_name: str
    reason: str = ""
    rule: str | None = None


class PermissionGranted(Struct, frozen=True, omit_defaults=True):
    """An intent may run; ``by`` says who or what allowed it (say ``actor="user"`` when a person did).

    ``input`` is what it runs with, if the answer changed what was proposed. ``scope`` is what else the answer
    allows in the session: the tool, the same paths, or commands that begin with ``prefix``.
    """

    intent_id: str
    tool_name: str
    by: str
    rule: str | None = None
    reason: str = ""
    scope: Literal["once", "session", "path", "prefix"] = "once"
    prefix: str | None = None
    input: dict[str, Any] | None = None


class PermissionDenied(Struct, frozen=True, omit_defaults=True):
    """An intent may not run. A decision, not an error."""

    intent_id: str
    tool_name: str
    by: str
    rule: str | None = None
    reason: str = ""


class PermissionAnswered(Struct, frozen=True, omit_defaults=True):
    """Another process answered a question of a session; the session records what came of it.

    It is not a record of that session, whose only writer is its runner, but of the session ``NAME.answers``.
    """

    intent_id: str
    allowed: bool
    by: str
    reason: str = ""
    scope: Literal["once", "session", "path", "prefix"] = "once"
    prefix: str | None = None
    input: dict[str, Any] | None = None


class ToolStarted(Struct, frozen=True, omit_defaults=True):
    """A tool began to run with ``input``; ``context`` holds how (folder, sandbox, limits)."""

    intent_id: str
    tool_name: str
    input: dict[str, Any]
    context: dict[str, Any] = field(default_factory=dict)


class ToolObserved(Struct, frozen=True, omit_defaults=True):
    """What a tool gave back, error results included: the tool ran and this is what it said."""

    intent_id: str
    tool_name: str
    content: str | tuple[UserBlock, ...]
    is_error: bool = False
    truncated: bool = False
    exit_code: int | None = None
    duration_ms: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


class ToolFailed(Struct, frozen=True, omit_defaults=True):
    """A tool could not be run to an end, so that there is nothing to observe."""

    intent_id: str
    tool_name: str
    kind: str
    message: str
    duration_ms: float | None = None


class LogPruned(Struct, frozen=True, omit_defaults=True):
    """Retention removed a whole session; ``head`` is the hash its chain ended in."""

    session: str
    records: int
    first_id: str
    last_id: str
    head: str
    before: datetime


Payload: TypeAlias = (
    SessionStarted
    | SessionResumed
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
    | ToolStarted
    | ToolObserved
    | ToolFailed
    | LogPruned
)


# --- the list ---------------------------------------------------------------------------------------


_Class: TypeAlias = type[Struct]


class Entry(Struct, frozen=True):
    """One event type: the class of its payload, and who and how private it is unless you say otherwise."""

    type: str
    payload: _Class
    actor: Actor
    sensitivity: Sensitivity


_ENTRIES = (
    Entry("session.started", SessionStarted, "user", "private"),
    Entry("session.resumed", SessionResumed, "system", "private"),
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
    Entry("tool.started", ToolStarted, "tool", "private"),
    Entry("tool.observed", ToolObserved, "tool", "private"),
    Entry("tool.failed", ToolFailed, "tool", "private"),
    Entry("log.pruned", LogPruned, "system", "private"),
)
CATALOGUE: Mapping[str, Entry] = {entry.type: entry for entry in _ENTRIES}
_BY_CLASS: dict[type, Entry] = {entry.payload: entry for entry in _ENTRIES}
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    entry.type: msgspec.json.Decoder(entry.payload) for entry in _ENTRIES
}
_SPEAKERS: dict[type, Actor] = {System: "system", User: "user", Assistant: "agent", ToolResult: "tool"}
_OBSERVED = (CallStarted, CallCompleted, CallFailed, RoutingSwitched, ProviderUnavailable, ProviderRecovered)
# The envelope of a record has the type, the session and the turn. Messages are records of their own: what a call
# record may carry of them would bypass the sensitivity of its type.
_NOT_STORED = ("type", "session_id", "turn_id", "request", "content")
# Keys in order make the bytes a function of the value; a cost stays a number and stays exact.
_encoder = msgspec.json.Encoder(order="sorted", decimal_format="number")


def encode_payload(payload: Payload) -> tuple[Entry, bytes]:
    """Find a payload's event type and write it as canonical JSON, or say which field does not fit."""
    entry = _BY_CLASS.get(type(payload))
    if entry is None:
        raise UnknownTypeError(f"payload: {type(payload).__name__} is not the payload of any event type")
    try:
        data = _encode(payload)
        # Structs take anything when they are built; reading back is what checks every field.
        _DECODERS[entry.type].decode(data)
    except UnicodeEncodeError:
        raise InvalidRecordError(
            f"payload of {entry.type}: holds text that is not Unicode (half a surrogate)"
        ) from None
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRecordError(f"payload of {entry.type}: {_name_field(error)}") from None
    if b"null" in data and _holds_nan(msgspec.to_builtins(payload)):
        raise InvalidRecordError(f"payload of {entry.type}: holds a number that JSON cannot (NaN or infinite)")
    return entry, data


def _encode(payload: Payload) -> bytes:
    if not isinstance(payload, _OBSERVED):
        return _encoder.encode(payload)
    fields = msgspec.to_builtins(payload, builtin_types=(Decimal,))
    for name in _NOT_STORED:
        fields.pop(name, None)
    return _encoder.encode(fields)


def find_actor(entry: Entry, payload: Payload) -> Actor:
    """Whose event it is unless the caller says: a message is its speaker's."""
    return _SPEAKERS[type(payload.message)] if isinstance(payload, MessageRecorded) else entry.actor


def decode_payload(kind: str, data: bytes) -> Payload | dict[str, Any]:
    """Read a payload; one of an unknown type, or of a shape this version does not know, stays a ``dict``."""
    decoder = _DECODERS.get(kind)
    if decoder is not None:
        try:
            return cast("Payload", decoder.decode(data))
        except (ValueError, RecursionError):
            pass
    return decode_object(data)


def decode_object(data: bytes) -> dict[str, Any]:
    """Read a payload as plain data; ``LogCorruptError`` when it is not a JSON object."""
    try:
        return cast("dict[str, Any]", msgspec.json.decode(data, type=dict))
    except RecursionError:
        raise LogCorruptError("a payload is nested too deeply to be read; verify() names the place") from None
    except ValueError as error:
        raise LogCorruptError(f"a payload is not a JSON object: {error}; verify() names the place") from None


def parse_payload(kind: str, data: Mapping[str, Any]) -> Payload:
    """Make the payload of an event type from plain data; nothing of it is dropped in silence."""
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
    """Say where and what, as ``field: what``, from msgspec's ``what - at `$.field```."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, TypeError) and "str keys" in str(error):
        return "the keys of an object must be text"
    what, found, where = str(error).partition(" - at `$.")
    return f"{where.rstrip('`')}: {what}" if found else what


def _holds_nan(value: Any) -> bool:
    # JSON has no word for these and msgspec writes null for them: a value would change in silence.
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(_holds_nan(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_nan(item) for item in value)
    return False
