"""Output for people and programs: tables, JSON, spinners and progress bars.

Tables, bars and colours are for people at a terminal, and drawn by ``rich`` where it is installed.
Pipes and files get plain lines.
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

_DELAY = 1.0  # seconds before a wait is worth showing


def console(*, err: bool = False) -> Any:
    """A ``rich`` console if someone is looking and it is installed, else ``None``."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console  # an extra, and slow to import
    except ImportError:
        return None
    return Console(stderr=err, highlight=False, emoji=False)


def show_json(value: Any) -> None:
    """Print data."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print rows under their heads; ``right`` names the columns of numbers."""
    screen = console()
    if screen is None:
        _show_plain_table(heads, rows, right)
        return
    from rich.table import Table  # as above
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for at, head in enumerate(heads):
        table.add_column(head, justify="right" if at in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    screen.print(table)


def _show_plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> None:
    for line in format_table(heads, rows, right=[heads[at] for at in right]):
        click.echo(line)


def format_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), width: int | None = None
) -> list[str]:
    """Return rows under their heads as lines; ``right`` names the columns of numbers.

    Columns are in the order of their importance: those at the end that do not fit ``width`` are left out, and no cell
    is broken over two lines. The first column always stays.
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
    """Print lines; at a terminal that is too small for them, through ``$PAGER`` unless that is empty or ``cat``."""
    is_long = len(lines) >= shutil.get_terminal_size().lines
    is_watched = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if use_pager and is_long and is_watched and os.environ.get("PAGER", "less") not in ("", "cat"):
        click.echo_via_pager("\n".join(lines))
        return
    for line in lines:
        click.echo(line)


def legible(text: str, *, err: bool = False) -> str:
    """Text as a terminal may safely show it: a model could otherwise move the cursor or set the title."""
    if not (sys.stderr if err else sys.stdout).isatty():
        return text
    return "".join(
        character if character in "\n\t" or not _is_hidden(character) else character.encode("unicode_escape").decode()
        for character in text
    )


# Signs that change the direction of text: what is shown would not be what is there.
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def _is_hidden(character: str) -> bool:
    """Return whether a terminal would act on a character instead of showing it: C0, C1 and direction signs."""
    return unicodedata.category(character) == "Cc" or character in _DIRECTIONS


@contextlib.contextmanager
def working(what: str) -> Iterator[Callable[[], None]]:
    """Show that something is going on, once it has taken a second; the value stops it early."""
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
    """How far something has come, on standard error, once it has taken a second."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._doing = ""
        self._is_shown = sys.stderr.isatty()

    def __call__(self, doing: str, done: int, total: int) -> None:
        """Say what is being done and how much of it is."""
        if not self._is_shown or time.monotonic() - self._began < _DELAY:
            return
        screen = console(err=True)
        if screen is None:
            click.echo(f"\r{doing}: {done * 100 // max(total, 1)} %", nl=done >= total, err=True)
            return
        if self._bar is None:
            from rich.progress import Progress  # an extra, and slow to import

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
