"""Test budgets, which end a session with complete records."""

import asyncio
import math
from decimal import Decimal
from typing import Any

import pytest

from dragoman.events import Usage
from dragoman.log import SqliteLog
from dragoman.prices import Match, PriceRow, PriceTable, Unpriced, cost
from dragoman.session import Budget, Session, Spending
from dragoman.tools import tool

from ..listed import Listed
from .playing import ALL, call, check_evidence, of, propose, types

ROW = PriceRow(
    provider="listed", match=Match(equals=("m",)), input=Decimal(1000), output=Decimal(1000)
)
price = lambda usage, model: cost(usage, model, table=PriceTable((ROW,), version="v1"))


@tool(side_effect="none")
def ping() -> str:
    """Return the text "pong"."""
    return "pong"


@pytest.mark.parametrize(
    ("budget", "name", "used", "turns"),
    [
        (Budget(steps=3), "turns", 3, 3),
        # Each turn uses 15 tokens; the turn that exceeds the limit is completed.
        (Budget(tokens=31), "tokens", 45, 3),
        (Budget(tokens=30), "tokens", 30, 2),
        (Budget(cost_usd="0.03"), "cost", Decimal("0.030"), 2),
        (Budget(cost_usd=0.031), "cost", Decimal("0.045"), 3),
    ],
)
async def test_session_that_exceeds_a_budget_ends_with_complete_records(
    log: SqliteLog, budget: Budget, name: str, used: Any, turns: int
) -> None:
    session = Session(
        Listed(propose(call("ping")), repeat=True), [ping], ALL, log, budget=budget, price=price
    )
    outcome = await session.run("Go.")
    assert outcome.outcome == "exhausted"
    assert outcome.spent.turns == turns
    assert outcome.detail is not None
    assert "used up" in outcome.detail
    records = list(log.read(session.id))
    [exceeded] = of(records, "budget.exceeded")
    assert exceeded.budget == name
    assert exceeded.used == used
    assert types(records)[-3:] == ["message.recorded", "budget.exceeded", "session.finished"]
    check_evidence(records)


async def test_time_budget_ends_a_running_call(log: SqliteLog) -> None:
    session = Session(Listed([asyncio.Event()]), (), ALL, log, budget=Budget(seconds=0.5))
    outcome = await session.run("Go.")
    assert outcome.outcome == "exhausted"
    assert outcome.detail == "the time of 0.5 s is used up"
    records = list(log.read(session.id))
    assert types(records)[-3:] == ["llm.call_failed", "budget.exceeded", "session.finished"]
    assert of(records, "budget.exceeded")[0].budget == "time"
    check_evidence(records)


async def test_cost_budget_rejects_a_model_without_a_price(log: SqliteLog) -> None:
    session = Session(Listed("Hi."), (), ALL, log, budget=Budget(cost_usd=1))
    with pytest.raises(ValueError, match=r"budget.cost_usd: the price of listed:m is not known"):
        await session.run("Go.")
    assert not log.sessions()


async def test_session_with_a_cost_budget_ends_if_a_cost_is_unknown(log: SqliteLog) -> None:
    uncounted = lambda usage, model: (
        price(usage, model) if usage.output_tokens is not None else Unpriced("not counted")
    )
    provider = Listed(propose(call("ping"), usage=Usage()), repeat=True)
    session = Session(provider, [ping], ALL, log, budget=Budget(cost_usd=1), price=uncounted)
    outcome = await session.run("Go.")
    assert outcome.outcome == "exhausted"
    assert outcome.spent.turns == 1
    assert "not known" in (outcome.detail or "")


async def test_tokens_that_the_provider_does_not_count_are_estimated(log: SqliteLog) -> None:
    provider = Listed(propose(call("ping"), usage=Usage()), repeat=True)
    session = Session(provider, [ping], ALL, log, budget=Budget(tokens=40))
    outcome = await session.run("Go and do whatever it is that has to be done.")
    assert outcome.outcome == "exhausted"
    assert outcome.spent.turns < 5


async def test_session_continues_with_a_larger_budget(log: SqliteLog) -> None:
    provider = Listed(propose(call("ping")), propose(call("ping")), "Done.")
    session = Session(provider, [ping], ALL, log, session_id="s1", budget=Budget(steps=1))
    assert (await session.run("Go.")).outcome == "exhausted"
    again = await Session.resume(provider, [ping], ALL, log, "s1", budget=Budget(steps=9))
    assert (await again.run()).text == "Done."
    check_evidence(list(log.read("s1")))


@pytest.mark.parametrize(
    ("name", "values", "complaint"),
    [
        ("steps", [0], "must be above 0"),
        ("steps", [1.5, True, "3"], "must be a whole number"),
        ("tokens", [-1], "must be above 0"),
        ("tokens", [[3]], "must be a whole number"),
        ("seconds", [0, math.nan], "must be above 0"),
        ("seconds", ["3"], "must be a number"),
        ("seconds", [math.inf, 1e300], "must be at most"),
        ("cost_usd", ["much", "NaN", Decimal("sNaN"), Decimal("Infinity"), True],
         "must be a number"),
    ],
)  # fmt: skip
def test_invalid_budget_limit_is_rejected(name: str, values: list[Any], complaint: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"budget.{name}: {complaint}"):
            Budget(**{name: value})


def test_budget_without_limits_is_never_exceeded() -> None:
    assert (
        Budget().find_excess(
            Spending(turns=10**9, tokens=10**12, cost_usd=Decimal(10**9), cost_unknown="x")
        )
        is None
    )
