"""Repeat a recorded run with another model, up to the first difference. No tool runs."""

from __future__ import annotations

import json
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from ..events import ToolIntent
from ..log import CallStarted, EventLog, MemoryLog, MessageRecorded, PermissionDenied
from ..messages import Assistant, RuntimeConfig, System, User
from ..permission import Decision, Policy, Proposal, Verdict
from ..provider import Provider
from ..replay import recorded_tools, shorten
from ..session import Session
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


class _RecordedRun(Struct):
    """A recorded run: each goal with the model's turns after it, and the denied calls."""

    system: str | None = None
    config: RuntimeConfig = RuntimeConfig()
    goals: list[tuple[User, list[Move]]] = []
    denied: dict[str, PermissionDenied] = {}


async def rerun(log: EventLog, session: str, provider: Provider) -> Rerun:
    """Send a run's goals and recorded tool results to another model until a reply differs."""
    run = _read_run(log, session)
    if not run.goals:
        raise click.UsageError(f"{session} has no goal to repeat; choose another session")
    model = f"{provider.name}:{provider.model}"

    def decide(proposal: Proposal, verdict: Verdict) -> Decision:
        denied = run.denied.get(_key(proposal.tool_name, proposal.input))
        if denied is None:
            return Decision(True, "recorded run")
        return Decision(False, denied.by, denied.reason)

    again = Session(
        provider, recorded_tools(log, session), Policy(), MemoryLog(), system=run.system,
        config=run.config,
        approve=decide,
    )  # fmt: skip
    turns = 0
    for goal, moves in run.goals:
        for at, recorded in enumerate(moves):
            step = await again.step(goal if at == 0 else None)
            turns += 1
            made = _make_move(step.response.message) if step.response is not None else Move("")
            is_last = not recorded.calls and not made.calls
            if recorded.calls != made.calls or (
                is_last and recorded.text.strip() != made.text.strip()
            ):
                return Rerun(session, model, turns, True, recorded, made)
    return Rerun(session, model, turns, False)


def show_rerun(found: Rerun) -> None:
    """Print how many turns are the same, and the first turn that differs."""
    if found.recorded is None or found.made is None:
        click.echo(f"{found.model} does the same in all {found.turns} turns")
        return
    same = plural(found.turns - 1, "turn")
    click.echo(f"{found.model} does the same in {same} and differs in turn {found.turns}:")
    click.echo(click.style(f"- {found.recorded.describe()}", fg="red"))
    click.echo(click.style(f"+ {found.made.describe()}", fg="green"))


def _read_run(log: EventLog, session: str) -> _RecordedRun:
    run, intents = _RecordedRun(goals=[], denied={}), dict[str, ToolIntent]()
    configured = False
    for record in log.read(session):
        payload = record.payload
        if isinstance(payload, CallStarted) and not payload.is_worker and not configured:
            configured, run.config = True, payload.config or RuntimeConfig()
        elif isinstance(payload, ToolIntent):
            intents[payload.id] = payload
        elif isinstance(payload, PermissionDenied) and payload.intent_id in intents:
            intent = intents[payload.intent_id]
            run.denied[_key(intent.tool_name, intent.input)] = payload
        elif isinstance(payload, MessageRecorded) and payload.in_context:
            message = payload.message
            if isinstance(message, System) and run.system is None:
                run.system = message.content
            elif isinstance(message, User) and record.actor == "user":
                run.goals.append((message, []))
            elif isinstance(message, Assistant) and run.goals:
                run.goals[-1][1].append(_make_move(message))
    run.config = replace(run.config, extras={})
    return run


def _make_move(message: Assistant) -> Move:
    return Move(message.text, tuple([(call.name, call.arguments) for call in message.tool_calls]))


def _key(name: str, given: Any) -> str:
    return json.dumps([name, given], sort_keys=True)
