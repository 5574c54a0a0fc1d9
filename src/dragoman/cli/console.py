"""Output for people and programs: tables, JSON, spinners and progress bars.

Tables, bars and colours are shown at a terminal, drawn by ``rich`` if it is installed. Pipes and
files get plain lines.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import sys
import threading
import time
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
    if sys.stdout.isatty():
        text = _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    click.echo(text)


def show_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()
) -> None:
    """Print rows as a table with headings; ``right`` names the numeric columns."""
    screen = console()
    if screen is None:
        for line in format_table(heads, rows, right=right):
            click.echo(legible(line))
        return
    from rich.table import Table  # lazy import: an optional dependency that is slow to import
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text(legible(cell)) for cell in row])
    screen.print(table)


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
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def notify(text: str) -> None:
    """Print a line on standard error, and escape control characters at a terminal."""
    click.echo(legible(text, err=True), err=True)


# Characters that a terminal interprets instead of showing them: control characters (C0 and C1)
# except the new line and the tab, and characters that change the direction of text.
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plural(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 answer`` or ``2 answers``."""
    return f"{number} {noun}{'s' * (number != 1)}"


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
    lock = threading.Lock()
    over = threading.Event()

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
    """Show progress on standard error: a bar at a terminal with ``rich``, plain lines elsewhere.

    A column is the name of a column class of ``rich`` or a format; a ``slow`` bar appears after a
    second. A line is printed every ``interval`` seconds.
    """

    def __init__(self, *columns: str, slow: bool = False, interval: float = math.inf) -> None:
        now = time.monotonic()
        self._columns = columns
        self._screen = console(err=True)
        self._bar: Any = None
        self._start = now + _DELAY if slow else now
        self._interval = interval
        self._next = now + interval
        self._doing = ""

    def __call__(
        self, doing: str, done: int, total: int | None, line: str | None = None,
        *, each_step: bool = False, **fields: str,
    ) -> None:  # fmt: skip
        """Show the current step, and how much of it is done.

        ``line`` is the line to print without a bar, with ``each_step`` also at the start and the
        end of a step; by default, a terminal without ``rich`` shows a percentage.
        """
        now = time.monotonic()
        is_new = doing != self._doing
        is_over = 0 < (total or 0) <= done
        if now < self._start:
            return
        if self._screen is None:
            if line is None and sys.stderr.isatty():
                share = done * 100 // max(total or 0, 1)
                click.echo(f"\r{doing}: {share} %", nl=is_over, err=True)
            elif line is not None and (now >= self._next or (each_step and (is_new or is_over))):
                self._doing = doing
                self._next = now + self._interval
                click.echo(line, err=True)
            return
        if self._bar is None:
            self._bar = _make_bar(self._screen, self._columns)
            self._bar.start()
            self._bar.add_task(doing, **fields)
        self._bar.update(0, description=doing, completed=done, total=total or None, **fields)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _make_bar(screen: Any, columns: Sequence[str]) -> Any:
    from rich import progress  # lazy import: an optional dependency that is slow to import

    make = lambda each: progress.TextColumn(each) if "{" in each else getattr(progress, each)()
    return progress.Progress(*map(make, columns), console=screen, transient=True)
