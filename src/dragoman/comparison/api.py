"""``dragoman.compare``: ask other models what a log's models were asked, and compare answers."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Unpack

import msgspec

from ..batches import BatchOptions, batch
from ..batches.apis import open_api
from ..batches.output import SavedRow, read_saved
from ..batches.spending import parse_budget
from ..errors import UnsupportedFeatureError
from ..log import EventLog, open_log
from ..prices.results import EXACT
from ..provider import Provider, connect
from .cases import Case, ModelAnswer, read_cases
from .report import Comparison, Judge, TargetReport, read_answer


async def compare(
    log: EventLog | str | os.PathLike[str],
    to: str | Provider | Sequence[str | Provider],
    out: str | os.PathLike[str] = "comparison",
    *,
    sessions: Sequence[str] = (),
    limit: int | None = None,
    **options: Unpack[BatchOptions],
) -> Comparison:
    """Ask each model of ``to`` what the models of a log were asked; compare the answers.

    Every recorded call is one request, with the messages, the tools and the settings of the log.
    No tool is executed: a tool call of an answer is only compared. ``out`` is a folder with one
    file of answers per model; a run that was interrupted continues with these files. ``sessions``
    limits the comparison to some sessions, and ``limit`` to the first calls.

    ``options`` are the options of ``batch``. A ``budget`` covers all models and all runs. With
    ``via="provider"``, only models whose provider has a batch API are asked through it.
    """
    targets = [to] if isinstance(to, str | Provider) else list(to)
    names = [each if isinstance(each, str) else f"{each.name}:{each.model}" for each in targets]
    paths = [Path(out) / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}.jsonl" for name in names]
    if not targets or len(set(paths)) < len(paths):
        raise ValueError(f"to: must name at least one model, and none twice, not {names}")
    if isinstance(log, EventLog):
        cases, skipped = read_cases(log, *sessions)
    else:
        with open_log(os.fspath(log), readonly=True) as opened:
            cases, skipped = read_cases(opened, *sessions)
    if limit is not None and len(cases) > limit:
        skipped["beyond the limit"] += len(cases) - limit
        cases = cases[:limit]
    limits = parse_budget(options.get("budget"))
    settings = options.get("connection") or {}
    reports: list[TargetReport] = []
    for name, target, path in zip(names, targets, paths, strict=True):
        # With ``fresh``, the files of the models that follow are about to be deleted.
        earlier = paths[: paths.index(path)] if options.get("fresh") else paths
        options["budget"] = _leave(limits, [each for each in earlier if each != path])
        model = connect(target, retries=0, **settings) if isinstance(target, str) else target
        try:
            reports.append(await _ask(name, model, cases, path, options))
        finally:
            if isinstance(target, str):
                await model.close()
    models = Counter([case.model for case in cases])
    return Comparison(
        cases=len(cases), models=dict(models), skipped=dict(skipped), targets=tuple(reports)
    )


async def _ask(
    name: str, model: Provider, cases: Sequence[Case], path: Path, options: BatchOptions
) -> TargetReport:
    """Ask one model for all cases, and compare its answers."""
    via = options.get("via", "model")
    if via == "provider":
        try:
            open_api(model)
        except UnsupportedFeatureError:
            via = "model"
    given: BatchOptions = {**options, "via": via}
    found = await batch([case.to_row() for case in cases], path, model, **given)
    answers = _read_answers(path)
    judge = Judge(name)
    for line, case in enumerate(cases, 1):
        plan = model.plan(case.messages)
        losses = [f"{item.kind}: {item.rule}" for item in plan.losses]
        refused = [] if plan.refused is None else [f"refused: {plan.refused}"]
        judge.add(case, answers.get(line), [*losses, *refused])
    return judge.report(found.stopped, via)


def _read_answers(path: Path) -> dict[int, ModelAnswer]:
    """Return the answers in an output file, by case number."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    rows = [msgspec.json.decode(line, type=dict) for line in lines]
    return {row["line"]: read_answer(row) for row in rows}


def _leave(limits: Mapping[str, Decimal], others: Sequence[Path]) -> dict[str, Decimal] | None:
    """Return the part of a budget that the answers in other files have not used."""
    left = dict(limits)
    for path in [each for each in others if each.exists()]:
        with path.open("rb") as file:
            rows = [row for _, row in read_saved(file) if isinstance(row, SavedRow)]
        for row in rows:
            used = {"usd": row.cost_usd or Decimal(0), "tokens": Decimal(row.tokens)}
            for name in left:
                rest = EXACT.subtract(left[name], used.get(name, Decimal(1)))
                left[name] = max(Decimal(0), rest)
    return left or None
