"""The budget of a session or of several, and the count of what was spent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from msgspec import Struct, StructMeta
from msgspec.structs import force_setattr, replace

from ..calls import CallCompleted, CallFailed
from ..events import Usage
from ..log import BudgetExceeded
from ..prices.results import EXACT
from ..validate.fields import rename_settings

MAX_SECONDS = 1e9
"""The maximum of ``Budget.seconds``: longer than any run, and accepted by clocks and
event loops.
"""

_KINDS: tuple[tuple[str, Any, str], ...] = (
    ("steps", int, "a whole number"),
    ("tokens", int, "a whole number"),
    ("tool_calls", int, "a whole number"),
    ("cost_usd", Decimal, "a number"),
    ("seconds", int | float, "a number"),
)


class Spending(Struct, kw_only=True):
    """What a session has used so far, including failed and cancelled calls.

    ``tool_calls`` are those that began to run. Tokens that were not reported are estimated.
    ``cost_usd`` is the sum of the known costs; ``cost_unknown`` names a call without a known cost,
    and the reason.
    """

    turns: int = 0
    tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    cost_unknown: str | None = None
    tool_calls: int = 0

    def add_call(self, call: CallCompleted | CallFailed, estimated_input: int) -> None:
        """Add the usage of a call. A rejected call used nothing."""
        if isinstance(call, CallFailed) and call.usage == Usage():
            return
        asked = call.input_tokens if call.input_tokens is not None else estimated_input
        self.tokens += asked + (call.output_tokens or 0)
        if call.cost_usd is not None:
            self.cost_usd = EXACT.add(self.cost_usd, call.cost_usd)
        else:
            target = f"{call.provider}:{call.model}"
            self.cost_unknown = f"{target}: {call.cost_unknown}" if call.cost_unknown else target

    def describe_cost(self) -> str:
        """Return the cost as text, with a note if the cost of some call is unknown."""
        if self.cost_unknown is None:
            return f"${self.cost_usd.normalize(EXACT):f}"
        return f"${self.cost_usd.normalize(EXACT):f} and more" if self.cost_usd else "cost unknown"


class _AcceptUsd(StructMeta):
    """Accept ``usd``, the name of the setting on the command line, for ``cost_usd``."""

    if not TYPE_CHECKING:  # type checkers use the signature of the class

        def __call__(cls, *arguments, **settings):  # noqa: N805 - the class of a metaclass
            known = cls.__struct_fields__
            if not settings.keys() <= {*known}:
                rename_settings(cls.__name__, settings, known, {"usd": "cost_usd"}, _HINTS)
            return super().__call__(*arguments, **settings)


_HINTS = {
    "max_steps": "write steps=",
    "turns": "write steps=",
    "timeout": "write seconds=",
    "max_tokens": "write tokens=",
}


class _Limits(Struct, frozen=True, omit_defaults=True, metaclass=_AcceptUsd):
    steps: int | None = None
    tokens: int | None = None


class Budget(_Limits, frozen=True, omit_defaults=True, kw_only=True):
    """Limits of a session and its sub-sessions; ``None`` means unlimited.

    A turn that reaches a limit is completed, and no further turn begins. A tool call beyond
    ``tool_calls`` does not run. The time limit counts from the start of each run, and interrupts
    any activity. ``share`` makes a budget for several sessions. A cost limit requires known
    prices: a call with an unknown cost ends the session, because unknown is not zero.
    """

    cost_usd: Decimal | None = None
    seconds: float | None = None
    tool_calls: int | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            steps: int | None = None,
            tokens: int | None = None,
            *,
            cost_usd: Decimal | float | str | None = None,
            seconds: float | None = None,
            tool_calls: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        money: Any = self.cost_usd
        if money is not None:
            force_setattr(self, "cost_usd", _read_money(money))
        for name, kinds, what in _KINDS:
            value: Any = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise ValueError(f"budget.{name}: must be {what}, not {value!r}")
            if not value > 0:
                raise ValueError(f"budget.{name}: must be above 0, or None, not {value!r}")
        if self.seconds is not None and self.seconds > MAX_SECONDS:
            raise ValueError(
                f"budget.seconds: must be at most {MAX_SECONDS:g}, or None, not {self.seconds!r}"
            )

    def share(self) -> SharedBudget:
        """Return a budget with these limits for several sessions together."""
        return SharedBudget(self)

    def find_excess(self, spent: Spending) -> BudgetExceeded | None:
        """Return the event for the first limit that is reached; ``None`` if none is reached."""
        if self.steps is not None and spent.turns >= self.steps:
            return BudgetExceeded(
                budget="turns", limit=Decimal(self.steps), used=Decimal(spent.turns), unit="turns"
            )
        if self.tokens is not None and spent.tokens >= self.tokens:
            return BudgetExceeded(
                budget="tokens",
                limit=Decimal(self.tokens),
                used=Decimal(spent.tokens),
                unit="tokens",
            )
        if (exceeded := self.find_excess_calls(spent)) is not None:
            return exceeded
        if self.cost_usd is None:
            return None
        if spent.cost_unknown is not None:
            detail = f"the cost of a call is not known: {spent.cost_unknown}"
            return BudgetExceeded(
                budget="cost", limit=self.cost_usd, used=spent.cost_usd, unit="USD", detail=detail
            )
        if spent.cost_usd >= self.cost_usd:
            return BudgetExceeded(
                budget="cost", limit=self.cost_usd, used=spent.cost_usd, unit="USD"
            )
        return None

    def find_excess_calls(self, spent: Spending) -> BudgetExceeded | None:
        """Return the event for the limit on tool calls, if it is reached."""
        if self.tool_calls is None or spent.tool_calls < self.tool_calls:
            return None
        return BudgetExceeded(
            budget="tool_calls",
            limit=Decimal(self.tool_calls),
            used=Decimal(spent.tool_calls),
            unit="tool calls",
        )

    def time_exceeded(self) -> BudgetExceeded:
        """Return the event for a reached time limit.

        The time limit can interrupt a turn; the other limits are checked between turns.
        """
        limit = Decimal(str(self.seconds or 0))
        return BudgetExceeded(budget="time", limit=limit, used=limit, unit="seconds")


class SharedBudget:
    """A budget that several sessions share; ``Budget(...).share()`` makes one.

    ::

        budget = Budget(cost_usd=5, tool_calls=1000).share()
        first = Session(model, tools, policy, log, budget=budget)
        second = Session(model, tools, policy, log, budget=budget)

    ``spent`` is the sum over the sessions and their sub-sessions. A limit is kept as in one
    session: a turn that reaches it is completed, and no further turn begins. A turn thus waits
    while those in flight may use up the rest; they are expected to need as much as the largest
    turn so far.
    """

    def __init__(self, limits: Budget, above: Iterable[SharedBudget] = ()) -> None:
        self.limits = limits
        self._above = tuple(dict.fromkeys([each for it in above for each in it.chain()]))
        self._spent = Spending()
        self._by_session: dict[str, Spending] = {}
        # the tokens and the cost of the largest turn; ``None`` before the end of the first one
        self._largest: tuple[int, Decimal] | None = None
        self._in_flight = 0
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._lock = threading.Lock()  # the sessions may run in several event loops

    @property
    def spent(self) -> Spending:
        """The sum of what the sessions have spent."""
        with self._lock:
            return replace(self._spent)

    @property
    def limits_cost(self) -> bool:
        """Whether this budget, or one that it is a part of, limits the cost."""
        return any(each.limits.cost_usd is not None for each in self.chain())

    def __repr__(self) -> str:
        return f"<SharedBudget {self.limits}, spent {self.spent}>"

    # --- what sessions use

    def chain(self) -> Iterator[SharedBudget]:
        """Yield this budget and those that it is a part of."""
        yield self
        yield from self._above

    async def admit(self) -> BudgetExceeded | None:
        """Wait until a turn may begin; return the limit that is reached, if any.

        ``release`` must be called after the turn, unless a limit is reached.
        """
        while True:
            obstacle = self._enter_all()
            if obstacle is None or isinstance(obstacle, BudgetExceeded):
                return obstacle
            await obstacle

    def release(self, session: str, spent: Spending) -> None:
        """End a turn, after which the session has spent this much."""
        for each in self.chain():
            each._set(session, spent, is_turn=True)
            each._leave()

    def count(self, session: str, spent: Spending) -> None:
        """Take note of how much a session has spent so far."""
        for each in self.chain():
            each._set(session, spent)

    def take_call(self, session: str) -> BudgetExceeded | None:
        """Count a tool call that is about to run; return the limit that is reached, if any."""
        taken: list[SharedBudget] = []
        for each in self.chain():
            exceeded = each._take_call(session, 1)
            if exceeded is not None:
                for other in taken:
                    other._take_call(session, -1)
                return exceeded
            taken.append(each)
        return None

    def _enter_all(self) -> BudgetExceeded | asyncio.Future[None] | None:
        """Enter this budget and those that it is a part of, or none of them, as ``_enter`` does.

        A turn that waited for one while it is in another could wait for a turn that does the
        reverse, and neither would begin.
        """
        entered: list[SharedBudget] = []
        for each in self.chain():
            obstacle = each._enter()
            if obstacle is not None:
                for other in entered:
                    other._leave()
                return obstacle
            entered.append(each)
        return None

    # --- this budget alone

    def _enter(self) -> BudgetExceeded | asyncio.Future[None] | None:
        """Count another turn; return the reached limit, or what to wait for, if it must not begin."""
        with self._lock:
            exceeded = self.limits.find_excess(self._spent)
            if exceeded is not None:
                return exceeded
            if not self._in_flight or self._has_room():
                self._in_flight += 1
                return None
            loop = asyncio.get_running_loop()
            freed: asyncio.Future[None] = loop.create_future()
            self._waiting.append((loop, freed))
            return freed

    def _has_room(self) -> bool:
        """Return whether the turns in flight will leave something for another one."""
        limits = self.limits
        if limits.steps is not None and self._spent.turns + self._in_flight >= limits.steps:
            return False
        if limits.tokens is None and limits.cost_usd is None:
            return True
        if self._largest is None:
            return False
        tokens, cost = self._largest
        expected_tokens = self._spent.tokens + self._in_flight * tokens
        if limits.tokens is not None and expected_tokens >= limits.tokens:
            return False
        if limits.cost_usd is None:
            return True
        expected = EXACT.add(self._spent.cost_usd, EXACT.multiply(cost, Decimal(self._in_flight)))
        return expected < limits.cost_usd

    def _leave(self) -> None:
        with self._lock:
            self._in_flight -= 1
            waiting = self._waiting
            self._waiting = []
        for loop, freed in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, freed)

    def _set(self, session: str, spent: Spending, *, is_turn: bool = False) -> None:
        with self._lock:
            known = self._by_session.get(session) or Spending()
            # a call that was taken may not be recorded yet
            new = replace(spent, tool_calls=max(spent.tool_calls, known.tool_calls))
            tokens = new.tokens - known.tokens
            cost = EXACT.subtract(new.cost_usd, known.cost_usd)
            self._by_session[session] = new
            self._spent = replace(
                self._spent,
                turns=self._spent.turns + new.turns - known.turns,
                tokens=self._spent.tokens + tokens,
                cost_usd=EXACT.add(self._spent.cost_usd, cost),
                cost_unknown=new.cost_unknown or self._spent.cost_unknown,
                tool_calls=self._spent.tool_calls + new.tool_calls - known.tool_calls,
            )
            if is_turn:
                most_tokens, most_cost = self._largest or (0, Decimal(0))
                self._largest = max(most_tokens, tokens), max(most_cost, cost)

    def _take_call(self, session: str, number: int) -> BudgetExceeded | None:
        with self._lock:
            if number > 0 and (exceeded := self.limits.find_excess_calls(self._spent)) is not None:
                return exceeded
            known = self._by_session.get(session) or Spending()
            self._by_session[session] = replace(known, tool_calls=known.tool_calls + number)
            self._spent = replace(self._spent, tool_calls=self._spent.tool_calls + number)
        return None


def _resolve(freed: asyncio.Future[None]) -> None:
    if not freed.done():
        freed.set_result(None)


def _read_money(given: Any) -> Decimal:
    try:
        money = Decimal(str(given))
    except InvalidOperation:
        money = Decimal("NaN")
    if not money.is_finite():
        raise ValueError(f"budget.cost_usd: must be a number, not {given!r}")
    return money
