"""Output for people and programs: tables, JSON, spinners and progress bars.

Tables, bars and colours are shown at a terminal, drawn by ``rich`` if it is installed. Pipes and
files get plain lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
import msgspec

_DELAY = 1.0  # seconds before a spinner appears


def console(*, err: bool = False) -> Any:
    """Return a ``rich`` console at a terminal where ``rich`` is installed, otherwise ``None``."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        # lazy import: an optional dependency that is slow to import
        from rich.console import Console
    except ImportError:
        return None
    return Console(stderr=err, highlight=False, emoji=False)


def show_json(value: Any) -> None:
    """Print a value as JSON; decimals are strings, so that they are not rounded."""
    echo_json(json.dumps(msgspec.to_builtins(value), ensure_ascii=False, indent=2))


def echo_json(text: str | bytes) -> None:
    """Print JSON text; at a terminal, escape the characters that the terminal would interpret."""
    text = text.decode() if isinstance(text, bytes) else text
    click.echo(
        _escape_hidden(text, lambda character: f"\\u{ord(character):04x}")
        if sys.stdout.isatty()
        else text
    )


def show_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> None:
    """Print rows as a table with headings; ``right`` names the numeric columns."""
    screen = console()
    if screen is None:
        _show_plain_table(heads, rows, right)
        return
    from rich.table import Table  # lazy import: an optional dependency that is slow to import
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for at, head in enumerate(heads):
        table.add_column(head, justify="right" if at in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text(legible(cell)) for cell in row])
    screen.print(table)


def _show_plain_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]
) -> None:
    for line in format_table(heads, rows, right=[heads[at] for at in right]):
        click.echo(legible(line))


def format_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    width: int | None = None,
) -> list[str]:
    """Return the lines of a table with headings; ``right`` names the numeric columns.

    The columns are in order of importance: the last columns that do not fit into ``width`` are
    omitted, and no cell is wrapped. The first column is always shown.
    """
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(len(heads))]
    shown = len(heads)
    while width is not None and shown > 1 and sum(widths[:shown]) + 2 * (shown - 1) > width:
        shown -= 1
    return [
        "  ".join([
            cell.rjust(size) if head in right else cell.ljust(size)
            for head, cell, size in zip(heads[:shown], row, widths, strict=False)
        ]).rstrip()
        for row in [heads, *rows]
    ]  # fmt: skip


def show_pages(lines: Sequence[str], *, use_pager: bool = True) -> None:
    """Print lines; if they do not fit on the screen, print them through ``$PAGER``.

    The pager is not used if the variable is empty or ``cat``.
    """
    is_long = len(lines) >= shutil.get_terminal_size().lines
    is_watched = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if use_pager and is_long and is_watched and os.environ.get("PAGER", "less") not in ("", "cat"):
        click.echo_via_pager(legible("\n".join(lines)))
        return
    for line in lines:
        click.echo(legible(line))


def legible(text: str, *, err: bool = False) -> str:
    """Escape control characters, since a model could manipulate the terminal with them.

    Text that does not go to a terminal is returned unchanged.
    """
    if not (sys.stderr if err else sys.stdout).isatty():
        return text
    return _escape_hidden(text, lambda character: character.encode("unicode_escape").decode())


def _escape_hidden(text: str, escape: Callable[[str], str]) -> str:
    return "".join(
        [
            character if character in "\n\t" or not _is_hidden(character) else escape(character)
            for character in text
        ]
    )


# Bidirectional control characters, which change the order in which text is shown.
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def _is_hidden(character: str) -> bool:
    """Return whether a terminal interprets a character (C0, C1, bidi) instead of showing it."""
    return unicodedata.category(character) == "Cc" or character in _DIRECTIONS


@contextlib.contextmanager
def working(what: str) -> Iterator[Callable[[], None]]:
    """Show a spinner if the ``with`` block runs for longer than a second.

    The block receives a function that stops the spinner early.
    """
    screen = console(err=True)
    if screen is None:
        yield lambda: None
        return
    status = screen.status(what)
    lock, over = threading.Lock(), threading.Event()

    def start() -> None:
        with lock:
            if not over.is_set():
                status.start()

    def stop() -> None:
        timer.cancel()
        with lock:
            if not over.is_set():
                over.set()
                status.stop()

    timer = threading.Timer(_DELAY, start)
    timer.daemon = True
    timer.start()
    try:
        yield stop
    finally:
        stop()


class Bar:
    """A progress bar on standard error, which appears after a second."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._doing = ""
        self._is_shown = sys.stderr.isatty()

    def __call__(self, doing: str, done: int, total: int) -> None:
        """Show the current step, and how much of it is done."""
        if not self._is_shown or time.monotonic() - self._began < _DELAY:
            return
        screen = console(err=True)
        if screen is None:
            click.echo(f"\r{doing}: {done * 100 // max(total, 1)} %", nl=done >= total, err=True)
            return
        if self._bar is None:
            # lazy import: an optional dependency that is slow to import
            from rich.progress import Progress

            self._bar = Progress(console=screen, transient=True)
            self._bar.start()
        if doing != self._doing:
            self._doing, self._task = doing, self._bar.add_task(doing, total=total)
        self._bar.update(self._task, completed=done)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
