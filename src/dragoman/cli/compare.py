"""Implement the command ``dragoman compare``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import click
from msgspec import Struct

from ..batches import BatchError, OutputError
from ..comparison import Comparison, compare, write_page
from ..comparison.page import HEADS, describe_gaps, describe_target
from .completion import ModelName
from .console import Bar, legible, show_json, show_table
from .errors import EXIT_CODES, WrongFile, reject
from .log_place import open_log_at
from .options import BudgetOption, ConcurrencyOption, ModelOptions, PollOption, load_registry
from .parameters import Json, add_options, option
from .progress import fetch_default_model
from .sessions import find_session


class CompareOptions(Struct, kw_only=True):
    """The options of ``dragoman compare``."""

    to: Annotated[
        tuple[str, ...],
        "Ask this model, alias or group; may be repeated.",
        option("MODEL", type=ModelName()),
    ]
    target: ModelOptions
    sessions: Annotated[
        tuple[str, ...],
        "Compare the calls of this session only; may be repeated.",
        option("SESSION", "--session"),
    ] = ()
    out: Annotated[
        Path, "Write the answers of each model to a file in this folder.", option("FOLDER")
    ] = Path("comparison")
    limit: Annotated[int | None, "Compare only the first N calls.", option("N", ge=1)] = None
    budget: BudgetOption = None
    via: Annotated[
        Literal["model", "provider"],
        "Call the models, or use the batch API of each provider that has one.",
    ] = "model"
    poll_seconds: PollOption = 10.0
    concurrency: ConcurrencyOption = 16
    fresh: Annotated[bool, "Delete the answers of earlier runs, and begin again."] = False
    html: Annotated[
        Path | None,
        "Write a page with the differing answers side by side.",
        option("FILE", type=click.Path(dir_okay=False, writable=True, path_type=Path)),
    ] = None
    as_json: Annotated[Json, "Print the comparison as JSON."] = False


@click.command("compare")
@click.argument("place", metavar="LOG")
@add_options
def command(place: str, options: CompareOptions) -> None:
    """Ask other models what the models in LOG were asked, and compare the answers.

    \b
    dragoman compare log.db --to openai:gpt-6-luna --to local:qwen --html report.html

    LOG is a file, an export (*.jsonl) or a postgresql:// URL. Each recorded call is one request,
    with the recorded messages, tools and settings. No tool is executed. The report has the
    agreement of tool calls and of structured answers, the cost, the latency, refusals and losses.

    You can stop the command in any way and run it again: calls with an answer in the folder of
    --out are not sent again. Exit codes: 0 every call was compared, 23 the budget is used up.
    """  # noqa: D301 - Click keeps the lines of a paragraph after a backspace
    if options.target.base_url is None:
        load_registry()  # report a mistake in models.yaml as a usage error with its line
        for name in options.to:
            fetch_default_model(name)
    with open_log_at(place) as log, Bar() as bar, reject(ValueError):
        show = lambda done: bar("asking", done.rows, done.total)
        try:
            found = asyncio.run(
                compare(
                    log, options.to, options.out,
                    sessions=[find_session(log, each) for each in options.sessions],
                    limit=options.limit, budget=options.budget, via=options.via,
                    poll_seconds=options.poll_seconds,
                    concurrency=options.concurrency, fresh=options.fresh,
                    connection=options.target.connect_settings(),
                    on_progress=None if options.as_json else show,
                )
            )  # fmt: skip
        except OutputError as error:
            raise WrongFile(str(error)) from error
        except (BatchError, OSError, ImportError) as error:
            raise click.ClickException(str(error)) from error
    if options.html is not None:
        with reject(OSError, about=f"{options.html} cannot be written: "):
            options.html.write_text(write_page(found), "utf-8")
    show_json(found.to_data()) if options.as_json else _show(found)
    if any(each.stopped == "budget" for each in found.targets):
        raise SystemExit(EXIT_CODES["session_exhausted"])


def _show(found: Comparison) -> None:
    recorded = ", ".join([f"{model} ({count})" for model, count in found.models.items()])
    click.echo(legible(f"{found.cases} recorded calls: {recorded or 'none'}"))
    for reason, count in found.skipped.items():
        click.echo(legible(f"not compared, {count}: {reason}"))
    heads = ["", *[each.model for each in found.targets]]
    columns = [describe_target(each) for each in found.targets]
    show_table(heads, [list(row) for row in zip(HEADS, *columns, strict=True)], right=heads[1:])
    for each in found.targets:
        for line in describe_gaps(each):
            click.echo(legible(f"{each.model}: {line}"))
    click.echo("In parentheses: the 95 % interval.")
