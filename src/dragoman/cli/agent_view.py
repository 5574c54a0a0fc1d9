"""Show a running session line by line: proposals, decisions, runs and results."""

from __future__ import annotations

from typing import Any

import click

from .. import log as logs
from ..events import Event, MessageComplete, TextDelta, ThinkingDelta, ToolIntent
from ..replay import make_headline, make_printable, shorten
from ..session import Outcome
from ..tools import find_sandbox
from .console import console, echo_json, legible
from .screen import MarkdownScreen

_SHOWN_LINES = 12  # maximum number of lines of a result to show; the log has all lines
_WIDE = 110


class AgentView:
    """Show a session at the terminal while it runs or, with ``--json``, print its log records."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._fresh = True  # whether the cursor is at the beginning of a line
        self._was_thinking = False
        # the Markdown display of the reply in progress; used only at a terminal
        self._screen: MarkdownScreen | None = None
        self._warned: set[str] = set()

    def show_event(self, event: Event) -> None:
        """Show text and thinking as they arrive: as Markdown at a terminal, otherwise as text."""
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

    def show_record(self, record: logs.LogRecord) -> None:
        """Print a new log record: as readable lines or, with ``--json``, as JSON."""
        if self.as_json:
            echo_json(record.line)
            return
        payload = record.payload
        headline = make_headline(payload) if type(payload) in _COLOURS else None
        if headline is not None:
            self.say(headline.label, headline.text, _find_colour(payload))
        if isinstance(payload, logs.ToolObserved):
            self._show_content(payload)
        self.note_losses(payload)

    def note_losses(self, payload: Any) -> None:
        """Print each kind of loss of a message once, since it is repeated in every turn."""
        for loss in payload.warnings if isinstance(payload, logs.MessageRecorded) else ():
            if loss.code not in self._warned:
                self._warned.add(loss.code)
                self.note(str(loss))

    def say(self, word: str, text: str, colour: str | None = None) -> None:
        """Print one line that begins with a label."""
        self._break()
        click.echo(f"{click.style(f'{word:>9}', fg=colour)}  {legible(shorten(text, 300))}")

    def show_block(self, text: str, *, is_diff: bool = False) -> None:
        """Print indented lines; replace each unprintable character with a visible sign."""
        self._break()
        for line in text.expandtabs(4).split("\n"):
            colour = _DIFF_COLOURS.get(line[:1]) if is_diff else None
            click.echo(f"{'':>9}  {click.style(make_printable(line), fg=colour)}")

    def note(self, text: str) -> None:
        """Print a note.

        With ``--json`` it goes to standard error, since standard output contains only records.
        """
        if self.as_json:
            click.echo(legible(f"note: {text}"), err=True)
        else:
            self.say("note", text, "yellow")

    def warn_of_sandbox(self) -> None:
        """Warn if commands are not sandboxed."""
        if (sandbox := find_sandbox()).program is None:
            self.note(f"commands are not confined: {sandbox.reason}; see dragoman agent doctor")

    def show_outcome(self, outcome: Outcome) -> None:
        """Print how the session ended, what it cost, and the command that shows it again."""
        if self.as_json:
            return
        spent = outcome.spent
        text = f"{outcome.outcome}{f': {outcome.detail}' if outcome.detail else ''}"
        text += f" ({spent.turns} turns, {spent.tokens} tokens, {spent.describe_cost()})"
        self.say("finished", text, "green" if outcome.outcome == "completed" else "red")
        self.say("", f"dragoman replay {outcome.session}")

    def _show_text(self, text: str, *, is_thinking: bool) -> None:
        if is_thinking != self._was_thinking:
            self._break()
        self._was_thinking = is_thinking
        shown = legible(text)
        click.echo(click.style(shown, dim=True) if is_thinking else shown, nl=False)
        self._fresh = text.endswith("\n")

    def _break(self) -> None:
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.close()
        if not self._fresh:
            click.echo()
            self._fresh = True

    def _show_content(self, seen: logs.ToolObserved) -> None:
        if not isinstance(seen.content, str) or not seen.content.strip():
            return
        lines = seen.content.strip("\n").split("\n")
        if (more := len(lines) - _SHOWN_LINES) > 0:
            lines[_SHOWN_LINES:] = [f"… {more} more lines"]
        is_diff = seen.content.startswith(("--- ", "diff --git "))
        for line in lines:
            colour = _DIFF_COLOURS.get(line[:1]) if is_diff else None
            text = legible(line if len(line) <= _WIDE else f"{line[: _WIDE - 1]}…")
            click.echo(click.style(f"{'':>9}  {text}", dim=colour is None or None, fg=colour))


_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}

# The record types that a running session shows, and the colours of their labels. A replay shows
# all record types.
_COLOURS: dict[type, str | None] = {
    logs.SessionStarted: None,
    logs.SessionResumed: None,
    logs.ToolsChanged: "yellow",
    ToolIntent: "cyan",
    logs.ToolIntentRejected: "red",
    logs.ToolIntentClosed: "red",
    logs.PermissionGranted: "green",
    logs.PermissionDenied: "red",
    logs.ToolStarted: None,
    logs.ToolRestarted: "yellow",
    logs.ToolProgress: None,
    logs.SessionDelegated: None,
    logs.ToolObserved: "green",
    logs.ToolFailed: "red",
    logs.CallFailed: "red",
    logs.RoutingSwitched: "yellow",
    logs.ContextProjected: "yellow",
    logs.ModelSwapped: "yellow",
    logs.BudgetExceeded: "red",
}


def _find_colour(payload: Any) -> str | None:
    if isinstance(payload, logs.SessionResumed) and payload.changed_tools:
        return "yellow"
    if isinstance(payload, logs.ToolObserved) and payload.is_error:
        return "yellow"
    return _COLOURS[type(payload)]
