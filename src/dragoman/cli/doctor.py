"""Implement the command ``dragoman agent doctor``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import click

from ..replay import make_printable
from ..tools import list_protections
from .console import show_json
from .parameters import Folder, Json, add_options


@click.command("doctor")
@add_options
def doctor(
    *,
    workspace: Annotated[Folder, "The folder that the agent would work in."] = Path(),
    as_json: Annotated[Json, "Print the findings as JSON."] = False,
) -> None:
    """Try the protections of dragoman agent on this machine, and print which are active.

    Advice is printed for each missing protection. Exit code 1 means that one is missing. No model
    is called.
    """
    found = asyncio.run(list_protections(workspace))
    missing = [each for each in found if not each.active]
    if as_json:
        show_json({"complete": not missing, "protections": found})
    else:
        for each in found:
            word, colour = ("active", "green") if each.active else ("missing", "red")
            text = each.detail if each.active else f"{each.detail}; {each.advice}"
            state = click.style(f"{word:7}", fg=colour)
            click.echo(f"{state}  {each.name:26}  {make_printable(text)}")
    if missing:
        raise SystemExit(1)
