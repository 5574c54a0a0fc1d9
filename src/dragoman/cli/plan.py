"""Implement the command ``dragoman plan``."""

from __future__ import annotations

from typing import Annotated, Any

import click
import msgspec

from ..wire import SwapPlan
from .completion import ModelName
from .console import legible, show_json
from .errors import EXIT_CODES, report_errors
from .options import ModelOptions, open_model, read_json
from .parameters import Json, add_options, option

_MARKS = {"kept": ("=", "green"), "rewritten": ("~", "yellow"), "dropped": ("-", "red")}


@click.command("plan")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@add_options
def command(
    file: str,
    *,
    model: Annotated[
        str,
        "Show what a change to this model would lose.",
        option("MODEL", "--to", type=ModelName()),
    ],
    target: ModelOptions,
    everything: Annotated[
        bool, "List the parts that stay unchanged, too.", option(flags="--all")
    ] = False,
    as_json: Annotated[Json, "Print the plan as JSON."] = False,
) -> None:
    """Show which parts of the conversation in FILE another model would receive.

    Each part is kept, rewritten or dropped. FILE is a JSON list of messages. Nothing is sent and
    no key is needed.

    Exit code 0 means that the model would receive everything, 31 that something would be lost, and
    32 that the model would refuse the conversation or that it does not fit.
    """
    with report_errors():
        provider = open_model(model, target, planning=True)
        planned = provider.plan(read_conversation(file))
        provider.close()
        if as_json:
            show_json({**msgspec.to_builtins(planned), "fits": planned.fits})
        else:
            show_plan(planned, everything=everything)
    if planned.refused is not None or planned.fits is False:
        raise SystemExit(EXIT_CODES["plan_refused"])
    if planned.losses:
        raise SystemExit(EXIT_CODES["plan_loses"])


def read_conversation(file: str) -> Any:
    """Return the messages of a JSON file: a list of messages, or an object that contains one."""
    data = read_json(file)
    return data["messages"] if isinstance(data, dict) and "messages" in data else data


def show_plan(planned: SwapPlan, *, everything: bool = False) -> None:
    """Print the parts of a plan that are not kept, or all parts.

    Also print whether the conversation fits into the model's context window. If the model would
    refuse the conversation, print only the reason.
    """
    if planned.refused is not None:
        refused = click.style("refused, nothing would be sent", fg="red")
        click.echo(f"{planned.target}: {refused}: {legible(planned.refused)}")
        return
    items = [item for item in planned.items if everything or item.outcome != "kept"]
    width = max([len(item.path) for item in items], default=0)
    for item in items:
        mark, colour = _MARKS[item.outcome]
        line = f"{mark} {item.path:<{width}}  {item.kind:<12} {item.outcome:<9}"
        why = f"  {item.reason} [{item.rule}]" if item.rule else ""
        click.echo(click.style(legible(line), fg=colour) + legible(why))
    count = {outcome: sum(item.outcome == outcome for item in planned.items) for outcome in _MARKS}
    click.echo(
        f"{planned.target}: {count['kept']} kept, {count['rewritten']} rewritten, "
        f"{count['dropped']} dropped"
    )
    if planned.estimated_tokens is not None:
        window = {
            True: "it fits",
            False: "IT DOES NOT FIT",
            None: "the model's window is not known",
        }[planned.fits]
        limit = f" of {planned.context_tokens}" if planned.context_tokens is not None else ""
        click.echo(f"about {planned.estimated_tokens}{limit} tokens: {window}")
