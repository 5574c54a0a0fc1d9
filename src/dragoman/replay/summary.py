"""One line about one record, for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from ..events import ToolIntent
from ..log import (
    BudgetExceeded,
    CallCompleted,
    CallFailed,
    CallStarted,
    ContextProjected,
    ContextSummarised,
    LlmExchangeKept,
    LogPruned,
    LogRecord,
    MessageRecorded,
    ModelSwapped,
    PermissionAnswered,
    PermissionDenied,
    PermissionGranted,
    PermissionRequested,
    ProviderRecovered,
    ProviderUnavailable,
    RoutingSwitched,
    SessionFinished,
    SessionResumed,
    SessionStarted,
    ToolFailed,
    ToolIntentClosed,
    ToolIntentRejected,
    ToolIntentValidated,
    ToolObserved,
    ToolStarted,
    TurnStarted,
)
from ..messages import Assistant, Text

_LONGEST = 160


def describe(record: LogRecord, *, started: bool | None = None) -> str:
    """Return a record in one line; of an unknown type, what it holds.

    ``started`` is whether the intent of the record had begun to run, for records that do not say so themselves.
    """
    payload = record.payload
    if isinstance(payload, ToolIntentClosed) and payload.started is None:
        payload = replace(payload, started=started)
    words = _WORDS.get(type(payload))
    return shorten(words(payload) if words is not None else _write(payload))


def shorten(text: str, longest: int = _LONGEST) -> str:
    """One line of printable text, cut where it gets too long and saying so."""
    # Only as much as can be shown is looked at: a record may hold megabytes.
    line = make_printable(" ".join(text[: 8 * longest].split()))
    return line if len(line) <= longest and len(text) <= 8 * longest else line[: longest - 1] + "…"


def make_printable(text: str) -> str:
    """The text with a sign for every character that is no letter or mark.

    Control characters in a record could otherwise move a terminal's cursor, recolour what stands
    around them, or turn the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else "\ufffd" for each in text])


def _write(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _join(*parts: str | None, by: str = ", ") -> str:
    return by.join([part for part in parts if part])


def _started(it: SessionStarted) -> str:
    model = _join(it.provider, it.model, by=":")
    place = it.forked_from
    forked = f"forked from {place.session} after record {place.seq}" if place is not None else None
    words = f"session began: {it.goal}" if it.goal else "session began"
    return _join(_join(words, f"({model})" if model else None, by=" "), forked)


def _resumed(it: SessionResumed) -> str:
    count = len(it.open_intents)
    changed = f"changed tools: {', '.join(it.changed_tools)}" if it.changed_tools else None
    opened = f"{count} intents open" if count else None
    again = f"going back to record {it.at}" if it.at is not None else None
    return _join(f"session resumed after record {it.after}", again, opened, it.reason, changed)


def _finished(it: SessionFinished) -> str:
    turns = f"after {it.turns} turn{'s' * (it.turns != 1)}" if it.turns is not None else None
    return _join(_join(f"session {it.outcome}", turns, by=" "), it.detail, by=": ")


def _turn(it: TurnStarted) -> str:
    model = _join(it.provider, it.model, by=":")
    return _join(f"turn {it.number}", f"({model})" if model else None, by=" ")


def _message(it: MessageRecorded) -> str:
    message = it.message
    speaker = type(message).__name__.lower().replace("toolresult", "tool result")
    if isinstance(message, Assistant):
        calls = [f"→ {call.name}" for call in message.tool_calls]
        said = _join(message.text[: 8 * _LONGEST], *calls, by=" ")
    else:
        said = _text(message.content)
    losses = f"[{len(it.warnings)} lost in translation] " if it.warnings else ""
    return f"{speaker}: {losses}{said}"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content[: 8 * _LONGEST]
    return " ".join(
        [block.text[: 8 * _LONGEST] if isinstance(block, Text) else f"[{type(block).__name__}]" for block in content]
    )


def _asked(it: CallStarted) -> str:
    about = f"about {it.estimated_input_tokens} tokens" if it.estimated_input_tokens is not None else None
    reason = f" ({it.retry_reason})" if it.retry_reason else ""
    again = f"attempt {it.attempt + 1}{reason}" if it.attempt else None
    return _join(f"asked {it.provider}:{it.model}", about, again)


def _answered(it: CallCompleted) -> str:
    cached = f" ({it.cached_input_tokens} cached)" if it.cached_input_tokens else ""
    return _join(
        f"{it.provider}:{it.model} answered",
        f"{_count(it.input_tokens)}{cached} in",
        f"{_count(it.output_tokens)} out" + (" (estimated)" if it.estimated else ""),
        f"{it.latency_ms / 1000:.2f} s",
        f"${it.cost_usd}" if it.cost_usd is not None else "price unknown",
        it.stop_reason,
    )


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else str(tokens)


def _call_failed(it: CallFailed) -> str:
    status = f" {it.status}" if it.status is not None else ""
    return f"{it.provider}:{it.model} failed: {it.error_class}{status}: {it.error_message_redacted}"


def _proposed(it: ToolIntent) -> str:
    return f"proposed {it.tool_name}({_write(it.input)[: 8 * _LONGEST]})"


def _closed(it: ToolIntentClosed) -> str:
    how = {True: "closed after it had begun to run, and what it did is not known", False: "closed without running"}
    return f"{it.tool_name or it.intent_id} {'closed' if it.started is None else how[it.started]}: {it.reason}"


def _projected(it: ContextProjected) -> str:
    count = len(it.left_out)
    why = " because the model refused it" if it.reason == "overflow" else ""
    return (
        f"context shortened by {it.rule}{why}: {count} message{'s' * (count != 1)} left out, "
        f"about {it.tokens_before} tokens before, {it.tokens_after} after"
    )


_SCOPES = {
    "session": " for the session",
    "path": " for these paths in the session",
    "prefix": " for commands in the session that begin with",
    "always": " for good",
}


def _decided(word: str) -> Callable[[PermissionGranted | PermissionDenied], str]:
    def say(it: PermissionGranted | PermissionDenied) -> str:
        much = _SCOPES.get(getattr(it, "scope", "once"), "")
        if isinstance(it, PermissionGranted) and it.prefix:
            much += f" {it.prefix!r}"
        if isinstance(it, PermissionGranted) and it.input is not None:
            much += f" with another input, {_write(it.input)[: 4 * _LONGEST]}"
        return _join(
            f"{it.tool_name} {word} by {it.by}{much}" + (f" (rule {it.rule})" if it.rule else ""), it.reason, by=": "
        )

    return say


def _observed(it: ToolObserved) -> str:
    said = _text(it.content)
    facts = _join(
        f"exit {it.exit_code}" if it.exit_code is not None else None,
        "error" if it.is_error else None,
        "truncated" if it.truncated else None,
        f"{it.duration_ms:.0f} ms" if it.duration_ms is not None else None,
    )
    return _join(f"{it.tool_name} gave back", f"({facts})" if facts else None, by=" ") + f": {said}"


_WORDS: dict[type, Callable[[Any], str]] = {
    SessionStarted: _started,
    SessionResumed: _resumed,
    SessionFinished: _finished,
    TurnStarted: _turn,
    MessageRecorded: _message,
    ContextProjected: _projected,
    ContextSummarised: lambda it: (
        f"{it.provider}:{it.model} summarised records {it.first} to {it.last} ({it.messages} messages): {it.text}"
    ),
    ModelSwapped: lambda it: f"model swapped from {it.from_} to {it.to}: {it.reason} ({len(it.losses)} losses)",
    BudgetExceeded: lambda it: f"budget of {it.budget} exceeded: {it.used} of {it.limit} {it.unit or ''}".rstrip(),
    CallStarted: _asked,
    CallCompleted: _answered,
    CallFailed: _call_failed,
    LlmExchangeKept: lambda it: (
        f"{it.provider}'s own reply {f'is not kept: {it.problem}' if it.problem else 'is kept'}"
    ),
    RoutingSwitched: lambda it: f"went from {it.from_} to {it.to}: {it.reason}",
    ProviderUnavailable: lambda it: f"{it.provider} is not asked for a while: {it.trigger_reason}",
    ProviderRecovered: lambda it: f"{it.provider} is asked again after {it.downtime_seconds:.0f} s",
    ToolIntent: _proposed,
    ToolIntentValidated: lambda it: f"{it.tool_name} checked: {_join(it.side_effect, *it.paths)}",
    ToolIntentRejected: lambda it: _join(f"{it.tool_name} rejected: {it.problem}", it.detail, by=": "),
    ToolIntentClosed: _closed,
    PermissionRequested: lambda it: _join(f"asked whether {it.tool_name} may run", it.reason, by=": "),
    PermissionGranted: _decided("allowed"),
    PermissionDenied: _decided("denied"),
    PermissionAnswered: lambda it: _join(
        f"{it.by} {'allowed' if it.allowed else 'denied'} {it.intent_id}", it.reason, by=": "
    ),
    ToolStarted: lambda it: f"{it.tool_name} began to run with {_write(it.input)[: 8 * _LONGEST]}",
    ToolObserved: _observed,
    ToolFailed: lambda it: f"{it.tool_name} could not run to an end: {it.kind}: {it.message}",
    LogPruned: lambda it: f"retention removed session {it.session}: {it.records} records",
}
