"""Download the default model, and show the progress of downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..local import find_model, list_models, pull_model
from .console import Bar, notify
from .errors import report_errors

_COLUMNS = ("{task.description}", "BarColumn", "DownloadColumn", "TimeRemainingColumn")
_INTERVAL = 2.0  # seconds between two progress lines without a terminal


@contextmanager
def show_download(name: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of a download; the ``with`` block receives the function to call."""
    with Bar(*_COLUMNS, interval=_INTERVAL) as bar:

        def show(doing: str, done: int, total: int) -> None:
            step = f"{doing} {name}"
            share = f"{done * 100 // total} % of " if total else ""
            line = f"{step}: {share}{(total or done) / 1e6:,.0f} MB"
            bar(step, done, total, line, each_step=True)

        yield show


def fetch_default_model(name: str, *, embeds: bool = False) -> None:
    """Download the default model before its first use, with a progress bar.

    Do nothing if another model is named. With ``embeds`` it is the default embedding model.
    """
    scheme, _, rest = name.partition(":")
    default = find_model(None, embeds=embeds)
    is_named = scheme == "local" and rest in ("", default.name)
    if not is_named or default.path.exists() or default.entry is None:
        return
    size = f"{default.entry.size / 1e6:,.0f} MB"
    notify(f"Fetching {default.entry.model}, the embedded model, once ({size})")
    better = next((model.name for model in list_models() if model.calls_tools), None)
    if better is not None and not embeds:
        advice = f"For better answers: dragoman local pull {better}, then use local:{better}."
        notify(f"It is {default.entry.about}. {advice}")
    with report_errors(), show_download(default.name) as progress:
        pull_model(default.name, progress=progress)
