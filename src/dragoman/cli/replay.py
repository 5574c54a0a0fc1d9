"""Implement the command ``dragoman replay``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from itertools import takewhile
from typing import Annotated

import click
import msgspec

from .. import replay
from ..log import ChainReport, EventLog
from ..provider import Provider
from .console import echo_json, plural, working
from .cost import write_amount
from .errors import EXIT_CODES, report_errors
from .log_place import LogPlace, open_log_at
from .options import ModelOptions, open_model
from .parameters import Json, add_options, option
from .rerun import Rerun, rerun, show_rerun
from .sessions import find_session

_COLOURS = {"user": "cyan", "agent": "blue", "tool": "magenta", "system": None, "worker": "blue"}


@click.command("replay")
@click.argument("session")
@add_options
def command(
    session: str,
    *,
    where: LogPlace = None,
    other: Annotated[
        str | None, "Print the differences from another session.", option("SESSION", "--diff")
    ] = None,
    diff_log: Annotated[
        str | None, "Read the session of --diff from this log.", option("PLACE")
    ] = None,
    model: Annotated[
        str | None, "Send the requests to another model; no tool runs.", option("MODEL", "--rerun")
    ] = None,
    target: ModelOptions,
    full: Annotated[bool, "Print the complete data of each step."] = False,
    pause: Annotated[bool, "Wait for a key after each step; q ends the replay."] = False,
    as_json: Annotated[Json, "Print each step, or each difference, as a line of JSON."] = False,
) -> None:
    """Show SESSION step by step from its log. Nothing is executed and no model is called.

    The hash chain is verified first; if it is broken, only the steps before the break are shown. A
    line that begins with ! marks a contradiction in the records, such as a tool that ran without a
    decision.

    With --rerun, MODEL gets the goals and the recorded observations, and the first turn that
    differs is shown; no tool runs, but the model is called and billed. Exit codes: 0 the same, 22
    a difference.
    """
    with open_log_at(where) as log:
        session = find_session(log, session)
        if other is not None:
            _compare(log, session, diff_log or where, other, as_json=as_json)
            return
        if model is not None:
            _rerun(log, session, model, target, as_json=as_json)
            return
        with working("verifying the chain"):
            report = log.verify(session)
        steps = _sound_steps(log, session, report)
        if as_json:
            for step in steps:
                echo_json(msgspec.json.encode(step))
        elif _show(steps, full=full, pause=pause) and report.ok:
            _show_totals(replay.count_totals(log, session))
    _judge(report)


def _rerun(
    log: EventLog, session: str, model: str, target: ModelOptions, *, as_json: bool
) -> None:
    async def ask(provider: Provider) -> Rerun:
        async with provider:
            return await rerun(log, session, provider)

    _judge(log.verify(session))
    with report_errors():
        found = asyncio.run(ask(open_model(model, target).provider))
    if as_json:
        echo_json(msgspec.json.encode(found))
    else:
        show_rerun(found)
    if found.differs:
        raise SystemExit(EXIT_CODES["runs_differ"])


def _sound_steps(log: EventLog, session: str, report: ChainReport) -> Iterator[replay.ReplayStep]:
    """Yield the steps before the first broken link of the hash chain."""
    end = report.first.seq if report.first is not None else None
    if end is None:
        return replay.read_steps(log, session)
    return takewhile(lambda step: step.seq < end, replay.read_steps(log, session))


def _judge(report: ChainReport) -> None:
    if report.first is not None:
        broken = click.style("BROKEN", fg="red")
        click.echo(f"{broken}: {report.first}. What follows proves nothing.", err=True)
        raise SystemExit(EXIT_CODES["log_broken"])


# --- showing steps -----------------------------------------------------------------------------


def _show(steps: Iterator[replay.ReplayStep], *, full: bool, pause: bool) -> bool:
    """Print the steps; return false if the user stopped before the end."""
    for step in steps:
        if step.type == "turn.started":
            click.echo()
        actor = click.style(f"{step.actor:<6}", fg=_COLOURS.get(step.actor))
        title = f"  {step.title}" if step.intent else step.title
        click.echo(f"{step.seq:>5}  {step.at:%H:%M:%S}  {actor}  {title}")
        for note in step.notes:
            click.echo(click.style(f"     ! {replay.make_printable(note)}", fg="red"))
        if full:
            text = msgspec.json.format(msgspec.json.encode(step.data), indent=2).decode()
            for line in text.splitlines():
                click.echo(f"       {replay.make_printable(line)}")
        if pause and sys.stdin.isatty() and click.getchar() in ("q", "\x03"):
            return False
    return True


def _show_totals(totals: replay.Totals) -> None:
    cost = f"${write_amount(totals.cost_usd)}"
    if totals.unpriced:
        cost += f" and {plural(totals.unpriced, 'call')} of unknown cost"
    click.echo(
        f"\n{totals.turns} turns, {totals.calls} calls answered, {totals.failed_calls} failed, "
        f"{totals.input_tokens} tokens in, {totals.output_tokens} out, {cost}; "
        f"{totals.proposed} proposed, {totals.allowed} allowed, {totals.denied} denied, "
        f"{totals.ran} ran. The hash chain is intact."
    )


# --- comparing with another model --------------------------------------------------------------


def _compare(log: EventLog, session: str, where: str | None, other: str, *, as_json: bool) -> None:
    with open_log_at(where) as second:
        other = find_session(second, other)
        with working("comparing"):
            reports = [log.verify(session), second.verify(other)]
            changes = replay.compare_runs(
                _sound_steps(log, session, reports[0]), _sound_steps(second, other, reports[1])
            )
    for change in changes:
        echo_json(msgspec.json.encode(change)) if as_json else _show_change(change)
    if not as_json:
        click.echo(plural(len(changes), "difference") if changes else "the runs are the same")
    for report in reports:
        _judge(report)
    if changes:
        raise SystemExit(EXIT_CODES["runs_differ"])


def _show_change(change: replay.Change) -> None:
    if change.a is not None and change.b is not None:
        numbers = f"{change.a.seq}/{change.b.seq}"
        click.echo(click.style(f"~ {numbers:>9}  {change.a.type}", fg="yellow"))
        for found in change.where:
            click.echo(f"             {replay.make_printable(str(found))}")
    elif change.a is not None:
        click.echo(click.style(f"- {change.a.seq:>9}  {change.a.title}", fg="red"))
    elif change.b is not None:
        click.echo(click.style(f"+ {change.b.seq:>9}  {change.b.title}", fg="green"))
