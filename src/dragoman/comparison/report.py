"""Compare answers with recorded ones: agreement, cost, latency, refusals and losses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct

from ..errors import MalformedToolCallError, StructuredOutputError
from ..prices.results import EXACT
from ..replay import find_differences
from ..validate.quality import Rate
from .cases import Case, ModelAnswer

RATES = {
    "tool_calls": "same tool calls", "tool_names": "same tools", "structured": "same JSON",
    "text": "same text", "refusals": "refusals", "losses": "losses",
}  # fmt: skip
"""The rates of a report, each with its heading."""


class Divergence(Struct, frozen=True, kw_only=True):
    """A case in which a model answered differently; ``places`` are the paths that differ."""

    case: str
    kind: str
    recorded: Any
    made: Any
    places: tuple[str, ...] = ()


class Amounts(Struct, frozen=True):
    """The cost and the latency of some answers.

    ``latency_ms`` is the median, with its interval of 95 %. ``cost_usd`` is the sum of the known
    costs, and ``unpriced`` the number of answers whose cost is not known.
    """

    cost_usd: Decimal
    unpriced: int
    latency_ms: float | None = None
    latency_interval: tuple[float, float] | None = None


class TargetReport(Struct, frozen=True, kw_only=True):
    """How the answers of one model compare with the recorded ones.

    ``rates`` has ``tool_calls`` (same tools and arguments), ``tool_names`` (same tools),
    ``structured`` (same JSON), ``text`` (same text), ``refusals`` and ``losses`` (calls of which
    the model's wire cannot send a part, by ``plan()``). ``recorded`` and ``made`` are the amounts
    of the same calls, recorded and repeated. ``missing`` is the number of calls without a result,
    since the budget was used up. ``via`` is ``provider`` if a batch API was used.
    """

    model: str
    via: str
    answered: int
    rates: dict[str, Rate]
    recorded: Amounts
    made: Amounts
    losses: dict[str, int] = {}
    errors: dict[str, int] = {}
    missing: int = 0
    stopped: str | None = None
    differences: tuple[Divergence, ...] = ()


class Comparison(Struct, frozen=True, kw_only=True):
    """The comparison of recorded calls with the answers of other models to the same requests.

    ``models`` counts the recorded calls of each model, and ``skipped`` the calls that cannot be
    repeated, by the reason.
    """

    cases: int
    models: dict[str, int]
    skipped: dict[str, int]
    targets: tuple[TargetReport, ...]

    def to_data(self) -> dict[str, Any]:
        """Return the comparison as plain data, each rate with its interval."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        for target, shown in zip(self.targets, data["targets"], strict=True):
            shown["rates"] = {name: rate.to_data() for name, rate in target.rates.items()}
        return data


class Judge:
    """Compare the answers of one model with the recorded ones, case by case."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._counts: dict[str, list[bool]] = {name: [] for name in RATES}
        self._pairs: list[tuple[ModelAnswer, ModelAnswer]] = []
        self._errors: Counter[str] = Counter()
        self._missing = 0
        self._losses: Counter[str] = Counter()
        self._found: list[Divergence] = []

    def add(self, case: Case, made: ModelAnswer | None, losses: Sequence[str]) -> None:
        """Compare the answer to a case; ``losses`` are the losses in the model's plan."""
        self._counts["losses"].append(bool(losses))
        self._losses.update(losses)
        if made is None:
            self._missing += 1
            return
        if made.error is not None:
            self._errors[made.error] += 1
            if made.error == MalformedToolCallError.kind:
                self._counts["tool_calls"].append(False)
                self._counts["tool_names"].append(False)
            self._found.append(
                Divergence(
                    case=case.id, kind="error", recorded=_show(case.answer), made=made.error
                )
            )
            return
        self._losses.update(set(made.warnings) - set(losses))
        self._pairs.append((case.answer, made))
        self._counts["refusals"].append(made.is_refusal)
        self._compare(case, made)

    def _compare(self, case: Case, made: ModelAnswer) -> None:
        recorded = case.answer
        pair: list[Any]
        kind = "text"
        pair = [each.text.strip() for each in (recorded, made)]
        if recorded.calls or made.calls:
            kind = "tool_calls"
            pair = [sort_calls(recorded.calls), sort_calls(made.calls)]
            a, b = [sorted([name for name, _ in each.calls]) for each in (recorded, made)]
            self._counts["tool_names"].append(a == b)
        elif case.response_schema is not None or recorded.read_value() is not None:
            kind = "structured"
            pair = [recorded.read_value(), made.read_value()]
        places = tuple([each.path for each in find_differences(*pair)])
        if kind == "structured" and pair[1] is None:
            places = ("",)  # the new answer is not JSON, whatever the recorded one is
        self._counts[kind].append(not places)
        if places:
            divergence = Divergence(
                case=case.id,
                kind=kind,
                recorded=_show(recorded),
                made=_show(made),
                places=places,
            )
            self._found.append(divergence)

    def report(self, stopped: str | None, via: str) -> TargetReport:
        """Return the report of all cases so far."""
        return TargetReport(
            model=self._model,
            via=via,
            answered=len(self._pairs),
            rates={name: Rate(sum(found), len(found)) for name, found in self._counts.items()},
            recorded=_add_up([old for old, _ in self._pairs]),
            made=_add_up([new for _, new in self._pairs]),
            losses=dict(self._losses),
            errors=dict(self._errors),
            missing=self._missing,
            stopped=stopped,
            differences=tuple(self._found),
        )


def sort_calls(calls: Sequence[tuple[str, Any]]) -> list[Any]:
    """Return tool calls as data in a fixed order, since models order parallel calls differently.

    Arguments are in the order of their names.
    """
    written = [{"name": name, "arguments": arguments} for name, arguments in calls]
    lines = sorted([msgspec.json.encode(call, order="sorted") for call in written])
    return [msgspec.json.decode(line) for line in lines]


def _show(answer: ModelAnswer) -> dict[str, Any]:
    calls = {"tool_calls": sort_calls(answer.calls)} if answer.calls else {}
    value = answer.read_value()
    return {**calls, **({"text": answer.text} if value is None else {"value": value})}


def _add_up(answers: Sequence[ModelAnswer]) -> Amounts:
    total = Decimal(0)
    for answer in answers:
        total = EXACT.add(total, answer.cost_usd or Decimal(0))
    times = sorted([each.latency_ms for each in answers if each.latency_ms is not None])
    unpriced = sum(each.cost_usd is None for each in answers)
    if not times:
        return Amounts(total, unpriced)
    # The interval of a median by ranks, which needs no distribution of the times.
    count = len(times)
    reach = 0.98 * math.sqrt(count)
    low = times[max(0, math.floor(count / 2 - reach))]
    high = times[min(count - 1, math.ceil(count / 2 + reach))]
    return Amounts(total, unpriced, times[count // 2], (low, high))


def read_answer(row: Mapping[str, Any]) -> ModelAnswer:
    """Return the answer in an output row of a batch."""
    cost = row.get("cost_usd")
    error = row.get("error")
    if error is not None and error["category"] == StructuredOutputError.category:
        # The answer does not fit the schema, but it is an answer that can be compared.
        row = {**row, "text": error.get("output", ""), "finish_reason": "stop"}
        error = None
    calls = tuple([(call["name"], call["arguments"]) for call in row.get("tool_calls", ())])
    return ModelAnswer(
        text=row.get("text", ""),
        calls=calls,
        finish_reason=row.get("finish_reason"),
        cost_usd=None if cost is None else Decimal(str(cost)),
        latency_ms=row.get("latency_ms"),
        error=None if error is None else str(error.get("kind") or error["category"]),
        warnings=tuple(row.get("warnings", ())),
    )
