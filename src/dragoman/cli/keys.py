"""Implement the command ``dragoman keys``."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import click

from ..registry import load_vendor, remove_key, store_key, stored_keys, vendor_names
from ..validate.fields import suggest
from .console import show_json, show_table
from .errors import report_mistakes
from .parameters import Json, add_options


@click.group("keys")
def command() -> None:
    """Store API keys in the system's keyring, or else in a file that only you can read.

    NAME is a vendor, such as openai, or an environment variable, such as OPENAI_API_KEY. An
    environment variable overrides the stored key. The keyring needs "pip install
    'dragoman[keys]'". `dragoman keys gateway` manages the keys of a gateway's clients.
    """


_GATEWAY = f"{__package__}.gateway_keys"
if find_spec(_GATEWAY):  # the gateway is installed
    command.add_command(import_module(_GATEWAY).command)


@command.command("set")
@click.argument("name")
@click.argument("rest", nargs=-1, metavar="")
def set_key(name: str, rest: tuple[str, ...]) -> None:
    """Store the key of NAME, read from a hidden prompt, or from standard input if it is piped."""
    if rest:  # do not print the extra argument: it may be the key itself
        advice = "leave the key out and type it when asked, or pipe it"
        raise click.UsageError(f"a key as an argument can be seen by others; {advice}")
    variable = _variable(name)
    if sys.stdin.isatty():
        key = click.prompt(f"key for {variable}", hide_input=True, err=True)
    else:
        key = sys.stdin.readline()
    with report_mistakes():
        place = store_key(variable, key.strip())
    where = "the system's keyring" if place == "keyring" else "a file that only you may read"
    click.echo(f"{variable} is stored in {where}")
    if os.environ.get(variable):
        click.echo(f"note: {variable} is also set in the environment, which wins", err=True)


@command.command("list")
@add_options
def list_keys(*, as_json: Annotated[Json, "Print the names of the keys as JSON."] = False) -> None:
    """List the keys and where each is stored; the keys themselves are never shown."""
    vendors: dict[str, list[str]] = {}  # the vendors that use each environment variable
    for vendor in vendor_names():
        if variable := load_vendor(vendor).api_key_env:
            vendors.setdefault(variable, []).append(vendor)
    with report_mistakes():
        stored = stored_keys()
    found: list[dict[str, Any]] = []
    for variable in sorted({*vendors, *stored}):
        places = ["environment"] if os.environ.get(variable) else []
        places += [stored[variable]] if variable in stored else []
        if places:
            source = places[0]
            also = places[1] if len(places) > 1 else None
            used_by = vendors.get(variable, [])
            found.append({"name": variable, "source": source, "also": also, "vendors": used_by})
    if as_json:
        show_json(found)
    elif not found:
        click.echo("no keys; dragoman keys set NAME stores one")
    else:
        rows = []
        for each in found:
            over = f", over that of the {each['also']}" if each["also"] else ""
            rows.append([each["name"], each["source"] + over, ", ".join(each["vendors"])])
        show_table(["NAME", "FROM", "VENDOR"], rows)


@command.command("rm")
@click.argument("name")
@add_options
def remove(
    name: str, *, as_json: Annotated[Json, "Print whether a key was deleted as JSON."] = False
) -> None:
    """Delete the stored key of NAME."""
    variable = _variable(name)
    with report_mistakes():
        removed = remove_key(variable)
    if as_json:
        show_json({"name": variable, "removed": removed})
    elif removed:
        click.echo(f"{variable} is removed")
    else:
        click.echo(f"{variable} was not stored", err=True)
        sys.exit(1)


def _variable(name: str) -> str:
    """Return the environment variable for a vendor's key; return any other name unchanged."""
    if name.lower() not in vendor_names():
        # a variable is written in capital letters; a name like a vendor's is probably misspelt
        near = suggest(name.lower(), vendor_names()) if not name.isupper() else ""
        if near:
            raise click.UsageError(f"{name} is not a known vendor; {near}")
        return name
    variable = load_vendor(name.lower()).api_key_env
    if variable is None:
        raise click.UsageError(f"{name} needs no key")
    return variable
