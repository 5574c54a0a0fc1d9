"""Implement the command ``dragoman clients``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Annotated

import click

from ..gateway.clients import (
    ADDRESS,
    LONGEST_REPLY,
    WINDOW,
    Step,
    Target,
    fill_steps,
    read_clients,
)
from .parameters import add_options, option

_MOST_TOKENS = 1_000_000_000


def write_steps(steps: Iterable[Step]) -> str:
    """Return the steps of a program as text: each file with its path, and the commands."""
    parts = [f"# {step.file}\n{step.text}" if step.file else step.run for step in steps]
    return "\n".join(parts)


def write_hint(url: str, models: Iterable[str]) -> str:
    """Return the command that prints the settings of a client for a gateway at this address."""
    model = next((name for name in models if "*" not in name), None)
    words = ["dragoman clients NAME"]
    words += [] if url == ADDRESS else [f"--url {shlex.quote(url)}"]
    words += [] if model is None else [f"--model {shlex.quote(model)}"]
    return f"settings of a client: {' '.join(words)}\nNAME is {', '.join(read_clients())}"


@click.command("clients")
@click.argument("name", required=False)
@add_options
def command(
    name: str | None,
    *,
    url: Annotated[str, "Use this address of the gateway.", option("URL")] = ADDRESS,
    model: Annotated[
        str | None, "Use this model in place of 'clever' and 'gpt-5.5'.", option("NAME")
    ] = None,
    window: Annotated[
        int,
        "Use this context window of the model, in tokens.",
        option("TOKENS", ge=1, le=_MOST_TOKENS),
    ] = WINDOW,
    longest_reply: Annotated[
        int | None,
        f"Limit replies to this number of tokens; by default {LONGEST_REPLY}, or half of a small window.",
        option("TOKENS", ge=1, le=_MOST_TOKENS),
    ] = None,
) -> None:
    """Show how the program NAME is connected to the gateway, or list the known programs.

    Prints the settings and the commands of the page "Coding agents behind the gateway". GET
    /v1/models of the gateway lists the models and their sizes.
    """
    known = read_clients()
    if name is None:
        for client in known.values():
            click.echo(f"{client.name:20} {client.trial}")
        return
    if name not in known:
        raise click.BadParameter(f"{name!r} is not one of {', '.join(known)}", param_hint="NAME")
    target = Target(url, model, window, longest_reply)
    click.echo(write_steps(fill_steps(known[name], target)), nl=False)
