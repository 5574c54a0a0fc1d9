"""``dragoman.compare``: ask other models what a log's models were asked, and compare answers."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Unpack

import msgspec

from ..batches import BatchOptions, batch
from ..batches.apis import open_api
from ..batches.spending import parse_budget
from ..errors import UnsupportedFeatureError
from ..log import EventLog, open_log
from ..prices.results import EXACT
from ..provider import Provider, connect
from .cases import Case, read_cases
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

    ``options`` are those of ``batch``. A ``budget`` covers all models and all runs. With
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
    limits, settings = parse_budget(options.get("budget")), options.get("connection") or {}
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
    answers = {row["line"]: read_answer(row) for row in _read(path)}
    judge = Judge(name)
    for line, case in enumerate(cases, 1):
        plan = model.plan(case.messages)
        losses = [f"{item.kind}: {item.rule}" for item in plan.losses]
        refused = [] if plan.refused is None else [f"refused: {plan.refused}"]
        judge.add(case, answers.get(line), [*losses, *refused])
    return judge.report(found.stopped, via)


def _read(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                yield msgspec.json.decode(line, type=dict)


def _leave(limits: Mapping[str, Decimal], others: Sequence[Path]) -> dict[str, Decimal] | None:
    """Return what the answers in other files leave of a budget."""
    left = dict(limits)
    for row in [row for path in others for row in _read(path)]:
        usage = row.get("usage") or {}
        used = {
            "usd": Decimal(str(row.get("cost_usd") or 0)),
            "tokens": Decimal(
                (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)
            ),
            "rows": Decimal(1),
        }
        for name in left:
            left[name] = max(Decimal(0), EXACT.subtract(left[name], used[name]))
    return left or None
