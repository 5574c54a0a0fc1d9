"""One-line summaries of records, used by replay, the trace viewer, the log and a running agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from .. import log as logs
from ..events import ToolIntent
from ..messages import Assistant, Message, Text

_LONGEST = 160


class Headline(NamedTuple):
    """The one-line summary of a record: a label, and a text."""

    label: str
    text: str

    def __str__(self) -> str:
        return f"{self.label} {self.text}" if self.text else self.label


def describe(record: logs.LogRecord, *, started: bool | None = None) -> str:
    """Describe a record in one line; for an unknown record type, show its contents.

    ``started`` is whether the record's intent had begun to run; it is used only for records that
    do not contain this information.
    """
    payload = record.payload
    if isinstance(payload, logs.ToolIntentClosed) and payload.started is None:
        payload = replace(payload, started=started)
    headline = make_headline(payload)
    if headline is None:
        return shorten(_write(payload))
    return shorten(_join(str(headline), _find_content(payload), by=": "))


def make_headline(payload: Any) -> Headline | None:
    """Return the summary of a record, without the goal of a session or the result of a tool.

    Return ``None`` if the type of the record is unknown.
    """
    if type(payload) not in _HEADLINES:
        return None
    label, write = _HEADLINES[type(payload)]
    return Headline(label or _name_speaker(payload.message), write(payload))


def _find_content(payload: Any) -> str | None:
    """Return the goal in a ``session.started`` record, or the content of a tool result.

    Return ``None`` for other records. The terminal shows these texts separately during a run.
    """
    if isinstance(payload, logs.SessionStarted):
        return payload.goal
    return _text(payload.content) if isinstance(payload, logs.ToolObserved) else None


def describe_action(name: str, arguments: dict[str, Any]) -> str:
    """Describe a proposed action in one line: its command, its path, or its arguments."""
    if set(arguments) == {"command"}:
        return f"{name} {_cut(str(arguments['command']))}"
    if "path" in arguments:
        left_out = ("path", "old", "new")
        rest = {key: value for key, value in arguments.items() if key not in left_out}
        name = f"{name} {_cut(str(arguments['path']))}"
        arguments = rest
    return f"{name} {_write(arguments)}" if arguments else name


def shorten(text: str, longest: int = _LONGEST) -> str:
    """Return a text as one printable line, with a mark where it was truncated."""
    # Only the start is processed, since a record may contain megabytes.
    line = make_printable(" ".join(text[: 8 * longest].split()))
    return line if len(line) <= longest and len(text) <= 8 * longest else line[: longest - 1] + "…"


def make_printable(text: str) -> str:
    """Return the text with every unprintable character replaced by a visible sign.

    Control characters in a record could otherwise move a terminal's cursor, change colours, or
    reverse the writing direction.
    """
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else "\ufffd" for each in text])


def _write(value: Any) -> str:
    return _cut(msgspec.json.encode(value).decode())


def _cut(text: str) -> str:
    return text[: 16 * _LONGEST]


def _join(*parts: str | None, by: str = ", ") -> str:
    return by.join([part for part in parts if part])


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


# --- the text of each record -------------------------------------------------------------------


def _started(it: logs.SessionStarted) -> str:
    tools = f"with {', '.join(it.tools)}" if it.tools else None
    place = it.forked_from
    forked = f"forked from {place.session} after record {place.seq}" if place is not None else None
    after = f"after {it.follows.session}" if it.follows is not None else None
    called = f"in a call of {it.called_by.session}" if it.called_by is not None else None
    return _join(_join(it.provider, it.model, by=":"), tools, forked, after, called, by=" ")


def _resumed(it: logs.SessionResumed) -> str:
    count = len(it.open_intents)
    changed = f"changed tools: {', '.join(it.changed_tools)}" if it.changed_tools else None
    opened = f"{_number(count, 'intent')} open" if count else None
    again = f"going back to record {it.at}" if it.at is not None else None
    return _join(f"after record {it.after}", again, opened, it.reason, changed)


def _tools(it: logs.ToolsChanged) -> str:
    offered = f"offered {', '.join(it.tool_digests)}" if it.tool_digests else None
    removed = f"removed {', '.join(it.removed)}" if it.removed else None
    return _join(offered, removed)


def _finished(it: logs.SessionFinished) -> str:
    turns = f"after {_number(it.turns, 'turn')}" if it.turns is not None else None
    return _join(_join(it.outcome, turns, by=" "), it.detail, by=": ")


def _turn(it: logs.TurnStarted) -> str:
    model = _join(it.provider, it.model, by=":")
    return f"{it.number} ({model})" if model else str(it.number)


def _name_speaker(message: Message) -> str:
    return f"{type(message).__name__.lower().replace('toolresult', 'tool result')}:"


def _message(it: logs.MessageRecorded) -> str:
    message = it.message
    if isinstance(message, Assistant):
        calls = [f"→ {call.name}" for call in message.tool_calls]
        content = _join(_cut(message.text), *calls, by=" ")
    else:
        content = _text(message.content)
    losses = f"[{len(it.warnings)} lost in translation] " if it.warnings else ""
    return f"{losses}{content}"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return _cut(content)
    parts = [
        _cut(block.text) if isinstance(block, Text) else f"[{type(block).__name__}]"
        for block in content
    ]
    return " ".join(parts)


def _projected(it: logs.ContextProjected) -> str:
    why = " because the model refused it" if it.reason == "overflow" else ""
    count = _number(len(it.left_out), "message")
    if it.tools:
        count = _number(len(it.tools), "definition")
    return f"{it.rule}: {count} left out{why}, {it.tokens_before} to {it.tokens_after} tokens"


def _summarised(it: logs.ContextSummarised) -> str:
    place = f"{it.provider}:{it.model}, records {it.first} to {it.last} ({it.messages} messages)"
    return f"{place}: {it.text or 'compacted by the provider'}"


def _called(it: logs.CallStarted) -> str:
    tokens = it.estimated_input_tokens
    about = f"about {tokens} tokens" if tokens is not None else None
    reason = f" ({it.retry_reason})" if it.retry_reason else ""
    again = f"attempt {it.attempt + 1}{reason}" if it.attempt else None
    return _join(f"{it.provider}:{it.model}", about, again)


def _answered(it: logs.CallCompleted) -> str:
    cached = f" ({it.cached_input_tokens} cached)" if it.cached_input_tokens else ""
    return _join(
        f"{it.provider}:{it.model}",
        f"{_count(it.input_tokens)}{cached} in",
        f"{_count(it.output_tokens)} out" + (" (estimated)" if it.estimated else ""),
        f"{it.latency_ms / 1000:.2f} s",
        f"${it.cost_usd}" if it.cost_usd is not None else "price unknown",
        it.stop_reason,
    )


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else str(tokens)


def _call_failed(it: logs.CallFailed) -> str:
    status = f" {it.status}" if it.status is not None else ""
    return f"{it.provider}:{it.model}: {it.error_class}{status}: {it.error_message_redacted}"


def _kept(it: logs.LlmExchangeKept) -> str:
    kept = f"not kept: {it.problem}" if it.problem else "the reply is kept"
    return f"{it.provider}:{it.model}, {kept}"


def _judged(it: logs.GuardJudged) -> str:
    what = it.stage if it.part == "text" else it.part
    code = f" [{it.code}]" if it.code else ""
    return f"{it.judge}: {it.action} the {what}{code}, {it.latency_ms:.0f} ms"


_ENDS = {
    True: " after it had begun to run, and what it did is not known",
    False: " without running",
    None: "",
}
_SCOPES = {
    "session": " for the session",
    "path": " for these paths in the session",
    "prefix": " for commands in the session that begin with",
}


def _granted(it: logs.PermissionGranted) -> str:
    beyond = _SCOPES.get(it.scope, "") + (f" {it.prefix!r}" if it.prefix else "")
    edited = f", with {_write(it.input)}" if it.input is not None else ""
    return _join(f"{it.tool_name}, by {_find_source(it)}{beyond}{edited}", it.reason, by=": ")


def _find_source(it: logs.PermissionGranted | logs.PermissionDenied) -> str:
    if it.rule is None:
        return it.by
    return f"rule: {it.rule}" if it.by == "policy" else f"{it.by} (rule {it.rule})"


def _decided(it: logs.PermissionAnswered) -> str:
    decision = "allowed" if it.allowed else "denied"
    return _join(f"{it.by} {decision} {it.intent_id}", it.reason, by=": ")


def _running(it: logs.ToolStarted | logs.ToolRestarted) -> str:
    sandbox = it.context.get("sandbox")
    return describe_action(it.tool_name, it.input) + (f" (sandbox: {sandbox})" if sandbox else "")


def _answered_outside(it: logs.ToolAnswered) -> str:
    return _join(f"the call {it.intent_id}", "an error" if it.is_error else None, _measure(it))


def _measure(it: logs.ToolAnswered | logs.ToolObserved) -> str:
    return f"{len(it.content)} {'characters' if isinstance(it.content, str) else 'blocks'}"


def _show_progress(progress: Any) -> str:
    if isinstance(progress, str):
        return progress
    return msgspec.json.encode(progress).decode()


def _observed(it: logs.ToolObserved) -> str:
    facts = _join(
        "an error" if it.is_error and it.exit_code is None else None,
        f"exit code {it.exit_code}" if it.exit_code is not None else None,
        _measure(it),
        f"{it.duration_ms / 1000:.1f} s" if it.duration_ms is not None else None,
        "cut to its limit" if it.truncated else None,
    )
    return f"{it.tool_name}: {facts}"


# The label and the text of each type of record; the label of a message is its role.
_HEADLINES: dict[type, tuple[str, Callable[[Any], str]]] = {
    logs.SessionStarted: ("session", _started),
    logs.SessionResumed: ("resumed", _resumed),
    logs.ToolsChanged: ("tools", _tools),
    logs.SessionFinished: ("finished", _finished),
    logs.TurnStarted: ("turn", _turn),
    logs.MessageRecorded: ("", _message),
    logs.ContextProjected: ("context", _projected),
    logs.ContextSummarised: ("summary", _summarised),
    logs.ModelSwapped: (
        "model", lambda it: f"{it.from_} to {it.to}: {it.reason} ({len(it.losses)} losses)"
    ),
    logs.BudgetExceeded: (
        "budget", lambda it: f"{it.budget}: {it.used} of {it.limit} {it.unit or ''}".rstrip()
    ),
    logs.CallStarted: ("call", _called),
    logs.CallCompleted: ("reply", _answered),
    logs.CallFailed: ("error", _call_failed),
    logs.LlmExchangeKept: ("raw", _kept),
    logs.GuardJudged: ("guard", _judged),
    logs.RoutingChosen: ("routing", lambda it: f"{it.chosen}: {it.reason}"),
    logs.RoutingSwitched: ("routing", lambda it: f"{it.from_} to {it.to}: {it.reason}"),
    logs.ProviderUnavailable: (
        "routing", lambda it: f"{it.provider} gets no calls now: {it.trigger_reason}"
    ),
    logs.ProviderRecovered: (
        "routing", lambda it: f"{it.provider} gets calls again after {it.downtime_seconds:.0f} s"
    ),
    ToolIntent: ("proposed", lambda it: describe_action(it.tool_name, it.input)),
    logs.ToolIntentValidated: (
        "checked", lambda it: f"{it.tool_name}: {_join(it.side_effect, *it.paths)}"
    ),
    logs.ToolIntentRejected: (
        "rejected", lambda it: _join(it.tool_name, it.problem, it.detail, by=": ")
    ),
    logs.ToolIntentClosed: (
        "closed", lambda it: f"{it.tool_name or it.intent_id}{_ENDS[it.started]}: {it.reason}"
    ),
    logs.PermissionRequested: (
        "question", lambda it: _join(
            f"may {it.tool_name} run{' again' if it.attempt > 1 else ''}", it.reason, by=": "
        )
    ),
    logs.PermissionGranted: ("allowed", _granted),
    logs.PermissionDenied: (
        "denied", lambda it: _join(f"{it.tool_name}, by {_find_source(it)}", it.reason, by=": ")
    ),
    logs.PermissionAnswered: ("answer", _decided),
    logs.ToolAnswered: ("answered", _answered_outside),
    logs.ToolStarted: ("running", _running),
    logs.ToolRestarted: ("running", lambda it: f"{_running(it)}, attempt {it.attempt}"),
    logs.SessionDelegated: ("begun", lambda it: f"{it.tool_name}: session {it.session}"),
    logs.ToolProgress: ("progress", lambda it: f"{it.tool_name}: {_show_progress(it.progress)}"),
    logs.ToolObserved: ("result", _observed),
    logs.ToolFailed: ("failed", lambda it: f"{it.tool_name}: {it.kind}: {it.message}"),
    logs.LogErased: ("erased", lambda it: f"session {it.session}: {len(it.numbers)} records"),
    logs.RecordErased: ("erased", lambda it: f"the content of a {it.was}"),
    logs.LogPruned: ("pruned", lambda it: f"session {it.session}: {it.records} records"),
}  # fmt: skip
