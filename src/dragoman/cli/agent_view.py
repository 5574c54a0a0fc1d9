"""Show a session while it runs: what is proposed, allowed and run, and its results, line by line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from ..events import Event, MessageComplete, TextDelta, ThinkingDelta, ToolIntent
from ..log import (
    BudgetExceeded,
    CallFailed,
    ContextProjected,
    LogRecord,
    MessageRecorded,
    ModelSwapped,
    PermissionDenied,
    PermissionGranted,
    RoutingSwitched,
    SessionResumed,
    SessionStarted,
    ToolFailed,
    ToolIntentClosed,
    ToolIntentRejected,
    ToolObserved,
    ToolStarted,
)
from ..replay import make_printable, shorten
from ..session import Outcome
from ..tools import Sandbox
from .console import console, legible
from .screen import MarkdownScreen

_SHOWN_LINES = 12  # of what came back; the log has all of it
_WIDE = 110


def describe_action(name: str, arguments: dict[str, Any]) -> str:
    """An action in one line: the command, the path, or the arguments."""
    if set(arguments) == {"command"}:
        return f"{name} {arguments['command']}"
    if "path" in arguments:
        rest = {key: value for key, value in arguments.items() if key not in ("path", "old", "new")}
        return f"{name} {arguments['path']}" + (f" {json.dumps(rest, ensure_ascii=False)}" if rest else "")
    return f"{name} {json.dumps(arguments, ensure_ascii=False)}" if arguments else name


class AgentView:
    """Shows records as they are written, or, as JSON, the records themselves."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._fresh = True  # is the cursor at the beginning of a line?
        self._was_thinking = False
        self._screen: MarkdownScreen | None = None  # open while the model writes, at a terminal
        self._warned: set[str] = set()

    def show_event(self, event: Event) -> None:
        """Show text and thinking as they arrive: as Markdown at a terminal, else as plain text."""
        if self.as_json:
            return
        if isinstance(event, TextDelta | ThinkingDelta) and event.text:
            if self._screen is None and (screen := console()) is not None:
                self._screen = MarkdownScreen(screen)
            if self._screen is not None:
                self._screen.show(event)
            else:
                self._show_text(event.text, is_thinking=isinstance(event, ThinkingDelta))
        elif isinstance(event, MessageComplete):
            self._break()

    def show_record(self, record: LogRecord) -> None:
        """Show what happened, once it is on record."""
        if self.as_json:
            click.echo(record.line.decode())
            return
        payload = record.payload
        show = _LINES.get(type(payload))
        if show is not None:
            word, colour, text = show(payload)
            self.say(word, text, colour)
        if isinstance(payload, ToolObserved):
            self._show_content(payload)
        elif isinstance(payload, MessageRecorded):
            for loss in payload.warnings:
                if loss.code not in self._warned:  # it would come again with every turn
                    self._warned.add(loss.code)
                    self.say("note", str(loss), "yellow")

    def say(self, word: str, text: str, colour: str | None = None) -> None:
        """Print one line with a label."""
        self._break()
        click.echo(f"{click.style(f'{word:>9}', fg=colour)}  {legible(shorten(text, 300))}")

    def show_block(self, text: str, *, is_diff: bool = False) -> None:
        """Print several indented lines, with a sign for every character that would not show."""
        self._break()
        for line in text.expandtabs(4).split("\n"):
            colour = _DIFF_COLOURS.get(line[:1]) if is_diff else None
            click.echo(f"{'':>9}  {click.style(make_printable(line), fg=colour)}")

    def note(self, text: str) -> None:
        """Print a remark; with ``--json``, on standard error, because standard output holds records only."""
        if self.as_json:
            click.echo(legible(f"note: {text}"), err=True)
        else:
            self.say("note", text, "yellow")

    def warn_of_sandbox(self, sandbox: Sandbox) -> None:
        """Print that commands are not confined, if they are not; with ``--json`` the records contain it."""
        if sandbox.program is None and not self.as_json:
            self.note(f"commands are not confined: {sandbox.reason}; see dragoman agent doctor")

    def show_outcome(self, outcome: Outcome) -> None:
        """Print how it ended, what it cost, and how to see it again."""
        if self.as_json:
            return
        spent = outcome.spent
        text = f"{outcome.outcome}{f': {outcome.detail}' if outcome.detail else ''}"
        colour = "green" if outcome.outcome == "completed" else "red"
        self.say("finished", f"{text} ({spent.turns} turns, {spent.tokens} tokens, {spent.describe_cost()})", colour)
        self.say("", f"dragoman replay {outcome.session}")

    def _show_text(self, text: str, *, is_thinking: bool) -> None:
        if is_thinking != self._was_thinking:
            self._break()
        self._was_thinking = is_thinking
        click.echo(click.style(legible(text), dim=True) if is_thinking else legible(text), nl=False)
        self._fresh = text.endswith("\n")

    def _break(self) -> None:
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.close()
        if not self._fresh:
            click.echo()
            self._fresh = True

    def _show_content(self, seen: ToolObserved) -> None:
        if not isinstance(seen.content, str) or not seen.content.strip():
            return
        lines = seen.content.strip("\n").split("\n")
        shown = [line if len(line) <= _WIDE else f"{line[: _WIDE - 1]}…" for line in lines[:_SHOWN_LINES]]
        if len(lines) > _SHOWN_LINES:
            shown.append(f"… {len(lines) - _SHOWN_LINES} more lines")
        is_diff = seen.content.startswith(("--- ", "diff --git "))
        for line in shown:
            colour = _DIFF_COLOURS.get(line[:1]) if is_diff else None
            click.echo(click.style(legible(f"{'':>9}  {line}"), dim=True if colour is None else None, fg=colour))


_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_Line = tuple[str, str | None, str]


def _observed(it: ToolObserved) -> _Line:
    size = len(it.content) if isinstance(it.content, str) else 0
    facts = ["an error"] if it.is_error and it.exit_code is None else []
    facts += [f"exit code {it.exit_code}"] if it.exit_code is not None else []
    facts += [f"{size} characters" if isinstance(it.content, str) else f"{len(it.content)} blocks"]
    facts += [f"{it.duration_ms / 1000:.1f} s"] if it.duration_ms is not None else []
    facts += ["cut to its limit"] if it.truncated else []
    return "result", "yellow" if it.is_error else "green", f"{it.tool_name}: {', '.join(facts)}"


def _by(it: PermissionGranted | PermissionDenied) -> str:
    who = f"rule: {it.rule}" if it.by == "policy" and it.rule else it.by
    given = it.input if isinstance(it, PermissionGranted) else None
    edited = f", with {json.dumps(given, ensure_ascii=False)}" if given is not None else ""
    return f"{it.tool_name}, by {who}{edited}" + (f": {it.reason}" if it.reason else "")


def _resumed(it: SessionResumed) -> _Line:
    changed = f"; changed since then: {', '.join(it.changed_tools)}" if it.changed_tools else ""
    return "resumed", "yellow" if changed else None, f"{it.reason or ''}{changed}"


def _started(it: ToolStarted) -> _Line:
    sandbox = it.context.get("sandbox")
    where = f" (sandbox: {sandbox})" if sandbox else ""
    return "running", None, f"{describe_action(it.tool_name, it.input)}{where}"


def _projected(it: ContextProjected) -> _Line:
    count = f"{len(it.left_out)} message{'s' * (len(it.left_out) != 1)}"
    return "context", "yellow", f"{it.rule}: {count} left out, {it.tokens_before} to {it.tokens_after} tokens"


_LINES: dict[type, Callable[[Any], _Line]] = {
    SessionStarted: lambda it: ("session", None, f"{it.provider}:{it.model} with {', '.join(it.tools)}"),
    SessionResumed: _resumed,
    ToolIntent: lambda it: ("proposed", "cyan", describe_action(it.tool_name, it.input)),
    ToolIntentRejected: lambda it: ("rejected", "red", f"{it.tool_name}: {it.detail}"),
    ToolIntentClosed: lambda it: ("closed", "red", f"{it.tool_name or it.intent_id}: {it.reason}"),
    PermissionGranted: lambda it: ("allowed", "green", _by(it)),
    PermissionDenied: lambda it: ("denied", "red", _by(it)),
    ToolStarted: _started,
    ToolObserved: _observed,
    ToolFailed: lambda it: ("failed", "red", f"{it.tool_name}: {it.kind}: {it.message}"),
    CallFailed: lambda it: ("error", "red", it.error_message_redacted),
    RoutingSwitched: lambda it: ("routing", "yellow", f"{it.from_} to {it.to}: {it.reason}"),
    ContextProjected: _projected,
    ModelSwapped: lambda it: ("model", "yellow", f"{it.from_} to {it.to}: {it.reason}"),
    BudgetExceeded: lambda it: ("budget", "red", f"{it.budget}: {it.used} of {it.limit} {it.unit or ''}"),
}
