"""Download the default model, and show the progress of downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from ..local import find_model, list_models, pull_model
from .console import Bar
from .errors import report_errors

_COLUMNS = ("{task.description}", "BarColumn", "DownloadColumn", "TimeRemainingColumn")
_INTERVAL = 2.0  # seconds between two progress lines without a terminal


@contextmanager
def show_download(name: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of a download; the ``with`` block receives the function to call."""
    with Bar(*_COLUMNS, interval=_INTERVAL) as bar:

        def show(doing: str, done: int, total: int) -> None:
            size = (
                f"{done * 100 // total} % of {total / 1e6:,.0f}" if total else f"{done / 1e6:,.0f}"
            )
            step = f"{doing} {name}"
            bar(step, done, total, f"{step}: {size} MB", each_step=True)

        yield show


def fetch_default_model(name: str, *, embeds: bool = False) -> None:
    """Download the default model before its first use, with a progress bar.

    Do nothing if another model is named. With ``embeds`` it is the default embedding model.
    """
    scheme, _, rest = name.partition(":")
    default = find_model(None, embeds=embeds)
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
    better = next((model.name for model in list_models() if model.calls_tools), None)
    if better is not None and not embeds:
        advice = f"For better answers: dragoman local pull {better}, then use local:{better}."
        click.echo(f"It is {default.entry.about}. {advice}", err=True)
    with report_errors(), show_download(default.name) as progress:
        pull_model(default.name, progress=progress)
