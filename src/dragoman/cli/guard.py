"""Implement the command ``dragoman guard``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import click
import msgspec
from msgspec import Struct

from ..calls import GuardJudged
from ..comparison import Case, read_cases
from ..errors import BlockedError
from ..events import Event, RecordedAssembler, Usage
from ..messages import Request, Text, ToolCall
from ..middleware.guard import Rules
from ..provider import Provider
from ..registry import Registry
from ..registry.guards import GuardPlan, add_guards
from ..registry.registry import list_guards
from ..validate.yaml import read_yaml
from .console import Bar, plural, show_json, show_table
from .errors import report_errors, report_mistakes
from .log_place import open_log_at
from .parameters import ExistingFile, Json, add_options, option


class Trial(Struct, frozen=True):
    """The verdicts on one recorded call, and the one that would have blocked it."""

    case: str
    model: str
    verdicts: tuple[GuardJudged, ...]
    blocked: GuardJudged | None = None


@click.group("guard")
def command() -> None:
    """Try the judges of a guard before it is switched on."""


@command.command("try")
@click.argument("file")
@add_options
def try_guard(
    file: str,
    *,
    guard: Annotated[str | None, "Try this guard of models.yaml.", option("NAME")] = None,
    rules: Annotated[ExistingFile, "Try the rules in this YAML file.", option("FILE")] = None,
    config: Annotated[ExistingFile, "Use this file as models.yaml.", option("FILE")] = None,
    as_json: Annotated[Json, "Print each call that was judged, and its verdicts."] = False,
) -> None:
    """Show a guard the recorded calls of FILE, and print what it would have blocked.

    FILE is a log with content: a file, an export (*.jsonl) or a postgresql:// URL. No model is
    called. Judges behind HTTP are asked, so their costs and limits apply. The file of --rules has
    the key rules, as a guard in models.yaml.
    """
    with report_mistakes():
        plan = _find_plan(guard, rules, config)
    with open_log_at(file) as log:
        cases, skipped = read_cases(log)
    with report_errors():
        trials = asyncio.run(_try_cases(cases, plan))
    if as_json:
        show_json({"trials": trials, "skipped": skipped})
    else:
        _show(trials, skipped)


def _find_plan(name: str | None, rules: str | None, config: str | None) -> GuardPlan:
    if rules is not None:
        if name is not None:
            raise click.UsageError("give --guard or --rules")
        judge = Rules(read_yaml(Path(rules)).inners("rules", required=True))
        return GuardPlan(name=rules, judges=(judge,), settings={})
    plans = {plan.name: plan for plan in list_guards(Registry.load(config))}
    if name is None and len(plans) == 1:
        return next(iter(plans.values()))
    if name not in plans:
        known = f"one of {', '.join(plans)}" if plans else "models.yaml has no guards"
        raise click.UsageError(f"name a guard with --guard: {known}; or rules with --rules FILE")
    return plans[name]


class _Recorded(Provider):
    """Answers a request as a recorded call was answered."""

    def __init__(self, case: Case) -> None:
        provider, _, model = case.model.rpartition(":")
        self.name = provider
        self.model = model
        self._answer = case.answer

    async def events(self, request: Request) -> AsyncIterator[Event]:
        out = RecordedAssembler(
            request_id=request.request_id, model=self.model, provider=self.name
        )
        out.begin(None)
        if self._answer.text:
            out.block(Text(self._answer.text))
        for at, (tool, arguments) in enumerate(self._answer.calls):
            call = ToolCall(f"call_{at}", tool, arguments)
            out.call(call, msgspec.json.encode(arguments).decode(), None, is_whole=True)
        out.end("tool_calls" if self._answer.calls else "stop", Usage(), (), None)
        for event in out.take():
            yield event


async def _try_cases(cases: Sequence[Case], plan: GuardPlan) -> list[Trial]:
    """Show a guard each case; after a verdict that blocks, the rest of the call is not judged."""
    trials: list[Trial] = []
    with Bar(slow=True) as bar:
        for done, case in enumerate(cases):
            bar("judging", done, len(cases))
            if plan.judges_model(case.model):
                trials.append(await _try_case(case, plan))
    return trials


async def _try_case(case: Case, plan: GuardPlan) -> Trial:
    request = Request(
        case.messages, tools=case.tools, config=case.config, model=case.model,
        response_schema=case.response_schema, check_calls=False,
    )  # fmt: skip
    reply = add_guards(_Recorded(case), [plan]).open(request)
    is_blocked = False
    async with aclosing(reply):
        try:
            while await reply.next():
                pass
        except BlockedError:
            is_blocked = True
    verdicts = tuple([each for each in reply.history if isinstance(each, GuardJudged)])
    by = [each for each in verdicts if each.action == "block"]
    return Trial(case.id, case.model, verdicts, by[0] if is_blocked and by else None)


def _show(trials: Sequence[Trial], skipped: Counter[str]) -> None:
    rows = Counter(
        (each.judge, each.stage, each.action, each.code or "")
        for trial in trials
        for each in trial.verdicts
        if each.action != "allow"
    )
    if rows:
        table = [[*row, str(count)] for row, count in sorted(rows.items())]
        show_table(["JUDGE", "STAGE", "VERDICT", "CODE", "TIMES"], table, right=["TIMES"])
    for trial in trials:
        if trial.blocked is not None:
            code = f" [{trial.blocked.code}]" if trial.blocked.code else ""
            click.echo(f"blocked: {trial.case} ({trial.model}), its {trial.blocked.stage}{code}")
    blocked = sum(trial.blocked is not None for trial in trials)
    flagged = sum(any(each.action == "flag" for each in trial.verdicts) for trial in trials)
    share = f" ({100 * blocked / len(trials):.1f} %)" if trials else ""
    click.echo(
        f"{plural(len(trials), 'call')} judged: {blocked} blocked{share}, {flagged} flagged"
    )
    for reason, count in sorted(skipped.items()):
        click.echo(f"{plural(count, 'call')} left out: {reason}", err=True)
