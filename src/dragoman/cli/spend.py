"""Implement the command ``dragoman spend``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import click

from ..database import is_postgres, open_database
from ..errors import InvalidRequestError
from ..gateway.spend_page import describe_amounts, write_csv
from ..gateway.sums import (
    GROUPS,
    MOST_LINES,
    SCHEMA,
    BillRow,
    Period,
    check_bill,
    read_period,
    select_bill,
)
from .console import show_json, show_table
from .errors import reject
from .parameters import Json, add_options, option


@click.command("spend")
@add_options
def command(
    *,
    place: Annotated[
        str,
        "Read the store of dragoman serve --state, a SQLite file or a postgresql:// URL.",
        option("PLACE", "--state", envvar="DRAGOMAN_STATE", show_envvar=True),
    ],
    start: Annotated[
        str | None,
        "Begin with this day (UTC); by default the first of this month.",
        option("DATE", "--from"),
    ] = None,
    end: Annotated[
        str | None, "End with this day (UTC), included; by default today.", option("DATE", "--to")
    ] = None,
    by: Annotated[
        str, f"Group by some of {', '.join(GROUPS)}, separated by commas.", option("GROUPS")
    ] = "team",
    as_csv: Annotated[bool, "Print the bill as CSV.", option(flags="--csv")] = False,
    as_json: Annotated[Json, "Print the bill as JSON."] = False,
) -> None:
    """Show what the calls of a gateway cost, by team, user, key, tag, model, vendor or day.

    The gateway sums up its calls by hour and day if it has an admin key (--admin). A cost that is
    not known never counts as zero: the column "unpriced" has the number of these calls.
    """  # fmt: skip
    if not is_postgres(place) and not Path(place).is_file():
        raise click.UsageError(f"--state: {place} does not exist")
    groups = [name for name in by.split(",") if name]
    try:
        period = read_period(start, end)
        check_bill(period, groups, {}, time.time())
    except InvalidRequestError as error:
        raise click.UsageError(f"--{error.message}") from None
    # the SQLite and PostgreSQL drivers raise different exceptions
    with reject(Exception, about="--state: "):
        rows = _read(place, period, groups)
    if as_json:
        show_json([{**row.labels, **describe_amounts(row)} for row in rows])
    elif as_csv:
        click.echo(write_csv(rows, groups), nl=False)
    else:
        heads = ["requests", "failed", "in", "out", "usd", "unpriced"]
        lines = [[*row.labels.values(), *map(str, describe_amounts(row).values())] for row in rows]
        show_table([*groups, *heads], lines, right=heads)
    if len(rows) == MOST_LINES:
        click.echo(f"the first {MOST_LINES} lines are shown; group by fewer labels", err=True)


def _read(place: str, period: Period, by: list[str]) -> list[BillRow]:
    base = open_database(place, SCHEMA)
    try:
        return select_bill(base, period, by, {}, range(MOST_LINES))
    finally:
        base.close()
