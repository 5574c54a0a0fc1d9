"""``dragoman agent doctor``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from msgspec import to_builtins

from ..replay import make_printable
from ..tools import list_protections
from .console import show_json


@click.command("doctor")
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="The folder that the agent would work in.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(workspace: Path, *, as_json: bool) -> None:
    """Try the protections of dragoman agent on this machine, and print which are active and which are missing.

    A missing one comes with what to do. Exit code 1 if any is missing. No model is asked.
    """
    found = asyncio.run(list_protections(workspace))
    missing = [each for each in found if not each.active]
    if as_json:
        show_json({"complete": not missing, "protections": to_builtins(found)})
    else:
        for each in found:
            word = click.style("active ", fg="green") if each.active else click.style("missing", fg="red")
            advice = "" if each.active else f"; {each.advice}"
            click.echo(f"{word}  {each.name:26}  {make_printable(each.detail + advice)}")
    if missing:
        raise SystemExit(1)
