"""Show a reply while it streams: as plain text, or as Markdown at a terminal."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import click

from ..blocking import SyncEventStream
from ..events import Event, MessageComplete, TextDelta, ThinkingDelta, ToolUseEnd, ToolUseStart
from ..messages import LossWarning
from .console import console, legible, notify

_PAUSE = 0.06  # minimum number of seconds between two redraws


def describe_call(event: ToolUseEnd) -> str:
    """Return a proposed call with its arguments as text, or why the call is invalid."""
    if event.intent is None:
        return f"not a usable proposal: {event.problem}: {event.detail}"
    given = event.intent.input
    arguments = json.dumps(given, ensure_ascii=False, indent=2 if len(given) > 1 else None)
    return f"proposed, not executed: {event.intent.tool_name}({arguments})"


@contextlib.contextmanager
def stop_on_interrupt(stream: SyncEventStream) -> Iterator[None]:
    """Let Ctrl-C cancel the reply, whose last event then has the finish reason ``cancelled``.

    A second Ctrl-C interrupts the program.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGINT, before)
        stream.cancel()

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class PlainScreen:
    """Show text on standard output as it arrives, and thinking on standard error."""

    def __init__(self) -> None:
        self._column = 0  # column of the cursor, which shows whether a line has begun

    def show(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            click.echo(legible(event.text), nl=False)
            self._column = 0 if event.text.endswith("\n") else 1
        elif isinstance(event, ThinkingDelta):
            click.echo(click.style(legible(event.text, err=True), dim=True), nl=False, err=True)
        elif isinstance(event, ToolUseEnd):
            self._break()
            click.echo(legible(describe_call(event)))
        elif isinstance(event, MessageComplete):
            if event.finish_reason == "cancelled":
                click.echo(" (stopped)", nl=False)
                self._column = 1
            self._break()
            show_ending(event.warnings, event.finish_reason)

    def close(self) -> None:
        self._break()

    def _break(self) -> None:
        if self._column:
            click.echo()
        self._column = 0


def show_ending(warnings: Sequence[LossWarning], finish_reason: str) -> None:
    """Print warnings about lost content, and the finish reason if it is unusual."""
    for warning in warnings:
        notify(f"warning: {warning}")
    if finish_reason not in ("stop", "tool_calls", "cancelled"):
        notify(f"(ended: {finish_reason})")


class MarkdownScreen:
    """Show Markdown at a terminal. Only the paragraph that is still growing is redrawn.

    Finished blocks are printed permanently, so that a reply longer than the window scrolls like
    ordinary text.
    """

    def __init__(self, screen: Any) -> None:
        from rich.live import Live  # lazy import: an optional dependency that is slow to import
        from rich.markdown import Markdown
        from rich.text import Text

        self._screen = screen
        self._markdown = Markdown
        self._text = Text
        self._live = Live(
            console=screen, transient=True, auto_refresh=False, vertical_overflow="ellipsis"
        )
        self._growing = ""
        self._thinking = ""
        self._drawn = 0.0
        self._live.start()

    def show(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self._settle_thinking()
            self._growing += legible(event.text)
            done = find_end(self._growing)
            if done:
                self._print(self._growing[:done])
                self._growing = self._growing[done:]
            self._draw(self._markdown, self._growing)
        elif isinstance(event, ThinkingDelta):
            self._thinking += legible(event.text)
            self._draw(self._text, self._thinking, style="dim italic")
        elif isinstance(event, ToolUseStart):
            self._settle()
            name = self._text(f"{legible(event.tool_name)} …", style="dim")
            self._live.update(name, refresh=True)
        elif isinstance(event, ToolUseEnd):
            self._settle()
            self._screen.print(self._text(legible(describe_call(event)), style="bold yellow"))
        elif isinstance(event, MessageComplete):
            self.close()
            if event.finish_reason == "cancelled":
                self._screen.print(self._text("(stopped)", style="dim"))
            show_ending(event.warnings, event.finish_reason)

    def close(self) -> None:
        self._settle()
        self._live.stop()

    def _draw(self, kind: Any, text: str, **style: str) -> None:
        """Redraw the growing block, at a limited rate even if the model is fast."""
        now = time.monotonic()
        if now - self._drawn >= _PAUSE:
            self._drawn = now
            self._live.update(kind(text, **style), refresh=True)

    def _settle_thinking(self) -> None:
        thought, self._thinking = self._thinking, ""
        if thought:
            self._live.update(self._text(""), refresh=True)
            self._screen.print(self._text(thought.strip(), style="dim italic"))

    def _settle(self) -> None:
        self._settle_thinking()
        text, self._growing = self._growing, ""
        self._live.update(self._text(""), refresh=True)
        self._print(text)

    def _print(self, text: str) -> None:
        if text.strip():
            self._live.update(self._text(""), refresh=True)
            self._screen.print(self._markdown(text))


Screen: TypeAlias = PlainScreen | MarkdownScreen
"""An output that shows the events of a reply; ``close`` restores the terminal."""


def open_screen() -> Screen:
    """Return a Markdown screen at a terminal with ``rich`` installed, otherwise a plain one."""
    screen = console()
    return PlainScreen() if screen is None else MarkdownScreen(screen)


def find_end(text: str) -> int:
    """Return where the last finished Markdown block ends: at a blank line outside code blocks."""
    end = at = 0
    fence = ""
    for line in text.splitlines(keepends=True):
        at += len(line)
        mark = line.strip()[:3]
        if mark in ("```", "~~~") and (not fence or mark == fence):
            fence = "" if fence else mark
        elif not fence and not line.strip() and line.endswith("\n"):
            end = at
    return end
