"""Load balancing: the order in which the candidates of a group are tried for a call.

==================  ==========================================================================================
``fallback``        in the order given
``weighted``        smooth weighted round-robin: each candidate is first in proportion to its weight
``least_busy``      the candidate with the fewest calls in flight, divided by its weight, first
``lowest_latency``  the lowest recent time to the first event, times the calls in flight, first
``cheapest``        the lowest estimated price for this call first; candidates without a price last
``most_reliable``   the candidate with the fewest faulty tool calls first, by what its calls have shown
==================  ==========================================================================================

A candidate of weight 0 is a spare: it is tried after all others, in the order given.

A strategy only determines the order. ``Fallback`` skips candidates that cannot serve the call, and
calls the next one if a candidate fails.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, TypeAlias, get_args

from ..events import Usage
from ..messages import Request
from ..prices import Unpriced
from ..provider import Provider
from ..validate.quality import SOUND, Rate
from ..wire.terms import list_asked
from .layer import check_number

StrategyName: TypeAlias = Literal[
    "fallback", "weighted", "least_busy", "lowest_latency", "cheapest", "most_reliable"
]
STRATEGIES: tuple[StrategyName, ...] = get_args(StrategyName)

HALF_LIFE = 30.0
ASSUMED_OUTPUT = 500
"""The assumed number of output tokens of a call without ``max_tokens``."""
SPARE = "spare: no other candidate can answer"
"""Why a candidate of weight 0 is chosen, for the records of a call."""
MIN_SAMPLE = 20
"""How often ``most_reliable`` calls each candidate with tools before it compares them."""
_REMEMBERED = 1000  # how many of the last tool calls of a candidate ``most_reliable`` compares
_FAILED = 2.0  # a failed call is recorded with its duration multiplied by this factor


class Strategy:
    """Determine the order in which candidates are tried; a candidate is identified by its index.

    ``Fallback`` reports the start, the first event and the end of each call. This class keeps the
    order given.
    """

    name: StrategyName = "fallback"
    reason: str = "fallback: the first candidate that can answer and does"
    """Why the first candidate of the order is chosen, for the records of a call."""
    spares: frozenset[int] = frozenset()
    """The candidates of weight 0, which are not in the order."""

    def __init__(self, count: int, **shown: Any) -> None:
        self._running = [0] * count  # the calls in flight to each candidate
        self._shown = shown

    def settings(self) -> Mapping[str, Any]:
        """Return the settings that ``describe`` shows."""
        return {"strategy": self.name, **self._shown}

    def order(
        self, candidates: Sequence[Provider], eligible: Sequence[int], request: Request
    ) -> list[int]:
        """Return the eligible candidates in the order in which they are tried."""
        return sorted(eligible, key=lambda number: self.rank(number, candidates, request))

    def rank(self, number: int, candidates: Sequence[Provider], request: Request) -> Any:
        """Return the sort key of a candidate; the one with the lowest key is tried first."""
        return number

    def explain(self, number: int, request: Request) -> str:
        """Return why a candidate was chosen for a call, for the records of the call."""
        return self.reason

    def began(self, number: int) -> None:
        """Record that a call was sent to a candidate."""
        self._running[number] += 1

    def answered(self, number: int, seconds: float) -> None:
        """Record the time to the first event of a call."""

    def ended(self, number: int, seconds: float, *, failed: bool) -> None:
        """Record the end of a call; ``failed`` is true if it failed before its first event."""
        self._running[number] -= 1

    def judged(self, number: int, outcomes: Mapping[str, int]) -> None:
        """Record a call with tools: how many tool calls of its reply were sound or faulty."""


class _Weighted(Strategy):
    """Smooth weighted round-robin, as in nginx: a candidate's calls are spread evenly."""

    name = "weighted"
    reason = "weighted: its turn by weight"

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__(len(weights), weights=weights)
        self._weights = weights
        self._credit = [0.0] * len(weights)

    def order(
        self, candidates: Sequence[Provider], eligible: Sequence[int], request: Request
    ) -> list[int]:
        for number in eligible:
            self._credit[number] += self._weights[number]
        order = super().order(candidates, eligible, request)
        if order:
            self._credit[order[0]] -= sum([self._weights[number] for number in eligible])
        return order

    def rank(self, number: int, candidates: Sequence[Provider], request: Request) -> Any:
        return -self._credit[number]


class _LeastBusy(Strategy):
    name = "least_busy"
    reason = "least_busy: the fewest calls in flight for its weight"

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__(len(weights))
        self._weights = weights
        # Count the calls to rotate between equally busy candidates; otherwise the first would get
        # all calls at low load.
        self._served = [0] * len(weights)

    def rank(self, number: int, candidates: Sequence[Provider], request: Request) -> Any:
        weight = self._weights[number]
        return self._running[number] / weight, self._served[number] / weight

    def began(self, number: int) -> None:
        super().began(number)
        self._served[number] += 1


class _LowestLatency(Strategy):
    """Order candidates by an exponentially weighted mean of the time to the first event.

    Old measurements lose weight over time. The mean of a candidate that is not used halves every
    ``half_life`` seconds, so that a slow candidate is tried again from time to time; one call
    shows whether it has recovered.
    """

    name = "lowest_latency"
    reason = "lowest_latency: the shortest time to its first event"

    def __init__(self, count: int, clock: Callable[[], float], half_life: float) -> None:
        super().__init__(count, half_life=half_life)
        self._half_life = half_life
        self._clock = clock
        self._mean: list[float | None] = [None] * count
        self._measured = [0.0] * count

    def rank(self, number: int, candidates: Sequence[Provider], request: Request) -> Any:
        mean = self._mean[number]
        if mean is None:
            # A candidate without a measured latency comes first, but receives only one call until
            # it answers.
            return math.inf if self._running[number] else 0.0
        faded: float = 0.5 ** ((self._clock() - self._measured[number]) / self._half_life)
        return mean * faded * (self._running[number] + 1)

    def answered(self, number: int, seconds: float) -> None:
        mean = self._mean[number]
        now = self._clock()
        # A new measurement has a weight of one tenth; after a pause it has more.
        share = max(0.1, 1 - 0.5 ** ((now - self._measured[number]) / self._half_life))
        self._mean[number] = seconds if mean is None else mean + share * (seconds - mean)
        self._measured[number] = now

    def ended(self, number: int, seconds: float, *, failed: bool) -> None:
        super().ended(number, seconds, failed=failed)
        if failed:
            self.answered(number, _FAILED * max(seconds, self._mean[number] or 0.0))


class _Cheapest(Strategy):
    name = "cheapest"
    reason = "cheapest: the lowest price of this request"

    def rank(self, number: int, candidates: Sequence[Provider], request: Request) -> Any:
        # all embedders and rerankers of a group serve one model, so any amount compares them
        used = Usage(input_tokens=1000, search_units=1)
        if isinstance(request, Request):
            tokens = candidates[number].estimate_input_tokens(request.messages, request.tools)
            output = request.config.max_tokens or ASSUMED_OUTPUT
            used = Usage(input_tokens=tokens, output_tokens=output, terms=list_asked(request))
        bill = candidates[number].priced_as.cost(used)
        return (True, Decimal(0)) if isinstance(bill, Unpriced) else (False, bill.total)


class _MostReliable(Strategy):
    """Order candidates by the upper end of the interval of their rate of faulty tool calls.

    Until every candidate was called ``min_sample`` times with tools, the one with the fewest such
    calls is first. A request without tools is sent to the candidates in the order given.
    """

    name = "most_reliable"
    reason = "most_reliable: the fewest faulty tool calls"

    def __init__(self, count: int, min_sample: int) -> None:
        super().__init__(count, min_sample=min_sample)
        self._min_sample = min_sample
        self._faulty: list[deque[bool]] = [deque(maxlen=_REMEMBERED) for _ in range(count)]
        # Count the calls too: a model that never calls a tool would be sampled without end.
        self._asked = [0] * count

    def rank(self, number: int, candidates: Sequence[Provider], request: Request) -> Any:
        if not has_tools(request):
            return number
        if self._asked[number] < self._min_sample:
            return -1.0, self._asked[number] + self._running[number]
        return self._rate(number).high, 0

    def explain(self, number: int, request: Request) -> str:
        if not has_tools(request):
            return f"{self.name}: the request has no tools, so the candidates are in order"
        rate = self._rate(number)
        found = f"{self.name}: {rate.count} of its {rate.total} tool calls were faulty"
        if self._asked[number] < self._min_sample:
            return f"{found}; it was called {self._asked[number]} of {self._min_sample} times"
        return f"{found}, at most {rate.high:.1%} with 95 % confidence"

    def judged(self, number: int, outcomes: Mapping[str, int]) -> None:
        self._asked[number] += 1
        for outcome, count in outcomes.items():
            self._faulty[number].extend([outcome != SOUND] * count)

    def _rate(self, number: int) -> Rate:
        return Rate(sum(self._faulty[number]), len(self._faulty[number]))


def has_tools(request: Any) -> bool:
    """Return whether a request offers tools; one to embed or to rank has none."""
    return isinstance(request, Request) and bool(request.tools)


def make_strategy(
    strategy: str,
    count: int,
    weights: Sequence[float] | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    half_life: float = HALF_LIFE,
    min_sample: int = MIN_SAMPLE,
) -> Strategy:
    """Return a strategy by name; raise ``ValueError`` for an invalid setting."""
    if strategy not in STRATEGIES:
        raise ValueError(
            f"Fallback: strategy must be one of {', '.join(STRATEGIES)}, not {strategy!r}"
        )
    if weights is not None and len(weights) != count:
        raise ValueError(
            f"Fallback: weights must be one number for each of the {count} candidates"
        )
    given = [1.0] * count if weights is None else list(weights)
    for at, weight in enumerate(given):
        if weight != 0:
            check_number("Fallback", f"weights[{at}]", weight, least=0.001, most=1e6)
    if not any(given):
        raise ValueError("Fallback: one of the weights must be above 0; 0 is that of a spare")
    made = _make(strategy, given, clock, half_life, min_sample)
    made.spares = frozenset([at for at, weight in enumerate(given) if weight == 0])
    return made


def _make(
    strategy: str,
    weights: Sequence[float],
    clock: Callable[[], float],
    half_life: float,
    min_sample: int,
) -> Strategy:
    count = len(weights)
    check_number("Fallback", "half_life", half_life, least=0.001, most=1e6)
    check_number("Fallback", "min_sample", min_sample, least=1, most=_REMEMBERED)
    if strategy == "weighted":
        return _Weighted(weights)
    if strategy == "least_busy":
        return _LeastBusy(weights)
    if strategy == "lowest_latency":
        return _LowestLatency(count, clock, half_life)
    if strategy == "most_reliable":
        return _MostReliable(count, min_sample)
    return _Cheapest(count) if strategy == "cheapest" else Strategy(count)
