"""Repeat a recorded run with another model, up to the first difference. No tool runs."""

from __future__ import annotations

import json
from typing import Any

import click
from msgspec import Struct

from ..comparison import read_cases, sort_calls
from ..log import EventLog
from ..provider import Provider
from ..replay import shorten
from .console import plural


class Move(Struct, frozen=True):
    """The output of a model in one turn: its text and its tool calls."""

    text: str
    calls: tuple[tuple[str, Any], ...] = ()

    def describe(self) -> str:
        """Describe the turn in one line: its tool calls, or its text if it has no calls."""
        calls = [f"{name} {json.dumps(given, ensure_ascii=False)}" for name, given in self.calls]
        return shorten(", ".join(calls) or f"answers: {self.text}", 300)


class Rerun(Struct, frozen=True):
    """The result of a repeated run: how many turns were compared, and the first that differs.

    For that turn, ``recorded`` is the output in the log, and ``made`` the new model's output.
    """

    session: str
    model: str
    turns: int
    differs: bool
    recorded: Move | None = None
    made: Move | None = None


async def rerun(log: EventLog, session: str, provider: Provider) -> Rerun:
    """Send a run's requests to another model until a reply differs."""
    cases, _ = read_cases(log, session)
    if not cases:
        raise click.UsageError(f"{session} has no goal to repeat; choose another session")
    model = f"{provider.name}:{provider.model}"
    for turn, case in enumerate(cases, 1):
        reply = await provider.complete(
            case.messages, case.tools, case.config, case.response_schema, case.tool_choice,
            check_calls=False,
        )  # fmt: skip
        recorded = Move(case.answer.text, case.answer.calls)
        made = Move(reply.text, tuple([(call.name, call.arguments) for call in reply.tool_calls]))
        is_last = not recorded.calls and not made.calls
        if sort_calls(recorded.calls) != sort_calls(made.calls) or (
            is_last and recorded.text.strip() != made.text.strip()
        ):
            return Rerun(session, model, turn, True, recorded, made)
    return Rerun(session, model, len(cases), False)


def show_rerun(found: Rerun) -> None:
    """Print how many turns are the same, and the first turn that differs."""
    if found.recorded is None or found.made is None:
        click.echo(f"{found.model} does the same in all {found.turns} turns")
        return
    same = plural(found.turns - 1, "turn")
    click.echo(f"{found.model} does the same in {same} and differs in turn {found.turns}:")
    click.echo(click.style(f"- {found.recorded.describe()}", fg="red"))
    click.echo(click.style(f"+ {found.made.describe()}", fg="green"))
