"""The budget of a session, and the count of what the session has spent."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from msgspec import Struct, StructMeta
from msgspec.structs import force_setattr

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
    ("cost_usd", Decimal, "a number"),
    ("seconds", int | float, "a number"),
)


class Spending(Struct):
    """What a session has used so far, including failed and cancelled calls.

    Tokens that were not reported are estimated. ``cost_usd`` is the sum of the known costs;
    ``cost_unknown`` names a call without a known cost, and the reason.
    """

    turns: int = 0
    tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    cost_unknown: str | None = None

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


class Budget(Struct, frozen=True, omit_defaults=True, metaclass=_AcceptUsd):
    """Limits of a session; ``None`` means unlimited.

    A turn that reaches a limit is completed, and no further turn begins. The time limit counts
    from the start of each run, and interrupts any activity. A cost limit requires known prices: a
    call with an unknown cost ends the session, because unknown is not zero.
    """

    steps: int | None = None
    tokens: int | None = None
    cost_usd: Decimal | None = None
    seconds: float | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            steps: int | None = None,
            tokens: int | None = None,
            cost_usd: Decimal | float | str | None = None,
            seconds: float | None = None,
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

    def time_exceeded(self) -> BudgetExceeded:
        """Return the event for a reached time limit.

        The time limit can interrupt a turn; the other limits are checked between turns.
        """
        limit = Decimal(str(self.seconds or 0))
        return BudgetExceeded(budget="time", limit=limit, used=limit, unit="seconds")


def _read_money(given: Any) -> Decimal:
    try:
        money = Decimal(str(given))
    except InvalidOperation:
        money = Decimal("NaN")
    if not money.is_finite():
        raise ValueError(f"budget.cost_usd: must be a number, not {given!r}")
    return money
