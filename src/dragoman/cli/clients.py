"""Implement the command ``dragoman clients``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import click
import msgspec
from msgspec import Struct

from .parameters import add_options, option

_TABLE = Path(__file__).resolve().parents[1] / "catalog" / "clients" / "agents.yaml"

ADDRESS = "http://127.0.0.1:8100"
"""The address that stands for the gateway's in the table."""


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """A command to run, or a file and its text."""

    run: str = ""
    file: str = ""
    text: str = ""


class Client(Struct, frozen=True, forbid_unknown_fields=True):
    """A program, the steps that connect it to the gateway, and how they were tried.

    ``seen`` is the release that was seen to work, and the day. ``checked`` is the documentation
    that the settings of a program without a command line were checked against, and the day.
    """

    name: str
    steps: tuple[Step, ...]
    seen: str = ""
    checked: str = ""

    @property
    def trial(self) -> str:
        """How the steps were tried, as the page says it."""
        if self.seen:
            return f"Seen to work: {self.seen}."
        return f"Not run; checked against {self.checked}."


def read_clients() -> dict[str, Client]:
    """Return the programs of the table by name."""
    read = msgspec.yaml.decode(_TABLE.read_bytes(), type=tuple[Client, ...])
    return {client.name: client for client in read}


def write_steps(client: Client) -> str:
    """Return the steps of a program as text: each file with its path, and the commands."""
    parts = [f"# {step.file}\n{step.text}" if step.file else step.run for step in client.steps]
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
) -> None:
    """Show how the program NAME is connected to the gateway, or list the known programs.

    Prints the settings and the commands of the page "Coding agents behind the gateway". Replace
    the names of the models and their sizes by those that you serve.
    """
    known = read_clients()
    if name is None:
        for client in known.values():
            click.echo(f"{client.name:12} {client.trial}")
        return
    if name not in known:
        raise click.BadParameter(f"{name!r} is not one of {', '.join(known)}", param_hint="NAME")
    text = write_steps(known[name]).replace(ADDRESS, url.rstrip("/"))
    if model is not None:
        text = text.replace("clever", model).replace("gpt-5.5", model)
    click.echo(text, nl=False)
