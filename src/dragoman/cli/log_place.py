"""The option ``--log``, and how commands open the log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeAlias

import click

from ..errors import scrub
from ..log import EventLog, LogError, LogLockedError, find_place, open_log
from .console import legible
from .errors import EXIT_CODES, report_errors
from .parameters import option

_PATIENCE = 1.0  # how many seconds to wait for another process that writes the log

LogPlace: TypeAlias = Annotated[
    str | None,
    (
        "Use this log: a file, an export (*.jsonl) or a postgresql:// URL. The default is "
        "$DRAGOMAN_LOG, or log.db in your data folder."
    ),
    option("PLACE", "--log"),
]


@contextlib.contextmanager
def open_log_at(where: str | None, *, readonly: bool = True) -> Iterator[EventLog]:
    """Open the log at the value of ``--log``; convert its errors to messages and exit codes."""
    try:
        with report_errors(), open_patiently(find_place(where), readonly=readonly) as log:
            yield log
    except LogError as error:
        problem = legible(scrub(str(error)), err=True)
        click.echo(f"{click.style('error', fg='red')}: {problem}", err=True)
        raise SystemExit(EXIT_CODES["log_unusable"]) from None


def open_patiently(
    place: str | Path, *, readonly: bool = False, seconds: float = _PATIENCE
) -> EventLog:
    """Open a log; if another process is writing to it, retry for some seconds."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return open_log(place, readonly=readonly)
        except LogLockedError:
            if readonly or time.monotonic() >= deadline:
                raise
            time.sleep(0.05)
