"""How many of a model's tool calls are sound, and rates with their confidence intervals.

A faulty call belongs to one of three classes: its arguments are not a JSON object
(``invalid_json``), no tool of its name was offered (``unknown_name``), or its arguments violate
the tool's schema (``schema_mismatch``). A call that was cut off at ``max_tokens``, cancelled or
interrupted belongs to none of them and is not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from ..errors import MalformedToolCallError
from ..events import MessageComplete, Response
from ..messages import Request, ToolCall
from . import Expectation

__all__ = ["FAULTS", "SOUND", "Fault", "Rate", "judge_calls", "rate_calls"]

Fault: TypeAlias = Literal["invalid_json", "unknown_name", "schema_mismatch"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
SOUND = "sound"
# the fault for each problem of a tool call that can be read
_FAULT_OF: dict[str, Fault] = {
    "unknown_tool": "unknown_name",
    "invalid_arguments": "schema_mismatch",
}
_Z = 1.959963984540054  # the quantile of the normal distribution for an interval of 95 %


class Rate(Struct, frozen=True):
    """A number of cases among all, with the Wilson score interval of 95 %."""

    count: int
    total: int

    @property
    def share(self) -> float | None:
        """The share of the cases, or ``None`` if there are none at all."""
        return self.count / self.total if self.total else None

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self._bound(-1)

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self._bound(1)

    def to_data(self) -> dict[str, Any]:
        """Return the counts, the share and the interval as plain data."""
        share = None if self.share is None else round(self.share, 4)
        interval = [round(self.low, 4), round(self.high, 4)]
        return {"count": self.count, "total": self.total, "share": share, "interval": interval}

    def __str__(self) -> str:
        if self.share is None:
            return "-"
        return f"{self.share:.1%} ({self.low:.1%}-{self.high:.1%})"

    def _bound(self, sign: int) -> float:
        if self.count == (0 if sign < 0 else self.total):
            return 0.0 if sign < 0 else 1.0  # exact, where the formula has rounding errors
        share = self.count / self.total
        total = self.total
        middle = share + _Z * _Z / (2 * total)
        width = _Z * math.sqrt(share * (1 - share) / total + _Z * _Z / (4 * total * total))
        return (middle + sign * width) / (1 + _Z * _Z / total)


def judge_calls(
    request: Request,
    answer: MessageComplete | Response[Any] | None,
    error: BaseException | None = None,
) -> dict[str, int]:
    """Return how many tool calls of a reply are sound, and how many have which fault.

    ``error`` is the error of the call, if it failed. The result is empty if the request offers no
    tools, or if the reply was cancelled or interrupted.
    """
    if answer is None or not request.tools:
        return {}
    blocks = answer.message.content if isinstance(answer, Response) else answer.final_content
    calls = [block for block in blocks if type(block) is ToolCall]
    reason = answer.finish_reason
    is_unsound = isinstance(error, MalformedToolCallError)
    if not calls or reason == "cancelled" or (reason == "error" and not is_unsound):
        return {}
    expected = Expectation(request if request.check_calls else replace(request, check_calls=True))
    found: Counter[str] = Counter()
    for call in calls:
        if call.arguments is not None:
            problem = expected.tool_problem(call.name, call.arguments)
            found[SOUND if problem is None else _FAULT_OF[problem[0]]] += 1
        elif reason != "length":
            found["invalid_json"] += 1
    return dict(found)


def rate_calls(outcomes: Mapping[str, int]) -> dict[str, Rate]:
    """Return the rate of faulty calls, and the rate of each fault, among all judged calls."""
    total = sum(outcomes.values())
    faulty = Rate(total - outcomes.get(SOUND, 0), total)
    return {"faulty": faulty, **{name: Rate(outcomes.get(name, 0), total) for name in FAULTS}}
