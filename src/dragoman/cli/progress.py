"""Show the progress of a download: a bar at a terminal with ``rich``, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Any

import click

from ..local import find_model, pull_model
from .console import console
from .errors import report_errors

_INTERVAL = 2.0  # seconds between two progress lines without a terminal


class DownloadProgress:
    """Show the progress of a download on standard error, until the context manager exits."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._screen = console(err=True)
        self._bar: Any = None
        self._task: Any = None
        self._shown = ("", 0.0)  # the step that was shown last, and the time when it was shown

    def __call__(self, doing: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` bytes are downloaded."""
        if self._screen is None:
            self._show_line(doing, done, total)
            return
        if self._bar is None:
            self._bar = _make_bar(self._screen)
            self._bar.start()
        if doing != self._shown[0]:
            self._shown = (doing, 0.0)
            self._task = self._bar.add_task(f"{doing} {self._name}", total=total or None)
        self._bar.update(self._task, completed=done, total=total or None)

    def _show_line(self, doing: str, done: int, total: int) -> None:
        is_new, is_over = doing != self._shown[0], 0 < total <= done
        if not (is_new or is_over) and time.monotonic() < self._shown[1] + _INTERVAL:
            return
        self._shown = (doing, time.monotonic())
        share = (
            f"{done * 100 // total} % of {total / 1e6:,.0f} MB"
            if total
            else f"{done / 1e6:,.0f} MB"
        )
        click.echo(f"{doing} {self._name}: {share}", err=True)

    def __enter__(self) -> DownloadProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _make_bar(screen: Any) -> Any:
    # lazy import: rich is slow to import
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=screen, transient=True)


def fetch_default_model(name: str) -> None:
    """Download the default model before its first use, with a progress bar.

    Do nothing if another model is named.
    """
    scheme, _, rest = name.partition(":")
    default = find_model(None)
    if (
        scheme != "local"
        or rest not in ("", default.name)
        or default.path.exists()
        or default.entry is None
    ):
        return
    click.echo(
        f"Fetching {default.entry.model}, the embedded model, once "
        f"({default.entry.size / 1e6:,.0f} MB)",
        err=True,
    )
    with report_errors(), DownloadProgress(default.name) as progress:
        pull_model(default.name, progress=progress)
