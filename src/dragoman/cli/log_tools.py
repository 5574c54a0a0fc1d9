"""Implement the command ``dragoman log tools``."""

from __future__ import annotations

from typing import Annotated

import click

from ..log import rate_tool_calls
from .bills import GROUPS, Grouping
from .console import show_json, show_table, working
from .log_place import LogPlace, open_log_at
from .parameters import Json, add_options, option
from .sessions import find_session


@click.command("tools")
@click.argument("session", required=False)
@add_options
def show_tools(
    session: str | None,
    *,
    where: LogPlace = None,
    by: Annotated[
        str,
        "Count tool calls by a property; a project is the session's folder, or the one that its"
        " metadata names.",
        option(type=click.Choice(GROUPS)),
    ] = "model",
    as_json: Annotated[Json, "Print the rates as JSON."] = False,
) -> None:
    """Show how many tool calls of SESSION or of the log were faulty, per model and server.

    A call is faulty if its arguments are not JSON, if no tool has its name, or if its arguments
    violate the tool's schema. Each rate has its interval of 95 %. Calls that were cut off or
    cancelled do not count.
    """
    with open_log_at(where) as log:
        chosen = find_session(log, session)
        with working("counting"):
            found = rate_tool_calls(log, chosen, Grouping(log, by))
    if as_json:
        rows = [each.to_data() for each in found]
        show_json({f"{by}s": [{by: row.pop("name"), **row} for row in rows]})
    elif not found:
        click.echo("no tool calls", err=True)
    else:
        heads = [by, "server", "calls", "faulty", "invalid JSON", "unknown name", "wrong schema"]
        lines = [
            [each.name, each.server or "-", str(each.calls), *map(str, each.rates.values())]
            for each in found
        ]
        show_table(heads, lines, right=heads[2:])
        click.echo("\nIn parentheses: the 95 % interval of the rate.")
