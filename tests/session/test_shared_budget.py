"""Test budgets that several sessions share, which run at the same time."""

import asyncio
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.events import Usage
from dragoman.log import MemoryLog
from dragoman.session import Budget, Outcome, Session, SharedBudget, Spending
from dragoman.sync import Session as SyncSession
from dragoman.tools import tool

from ..listed import Listed
from ..waiting import settle
from .playing import call, of, propose


@tool(side_effect="read")
async def ping() -> str:
    """Return pong."""
    await asyncio.sleep(0)
    return "pong"


def turn(tokens: int, calls: int = 1) -> Any:
    """Return a reply with some calls that uses this many tokens."""
    made = [call("ping", call_id=f"c{number}") for number in range(calls)]
    return propose(*made, usage=Usage(tokens - 1, 1))


async def run_all(
    budget: Any, scripts: list[list[tuple[int, int]]]
) -> tuple[list[Outcome], list[Session]]:
    sessions = [
        Session(
            Listed(*[turn(*each) for each in script], "Done.", name=f"p{at}"), [ping],
            log=MemoryLog(), budget=budget,
        )
        for at, script in enumerate(scripts)
    ]  # fmt: skip
    return list(await asyncio.gather(*[each.run("Go.") for each in sessions])), sessions


@pytest.mark.parametrize(
    ("limits", "name", "most"),
    [
        (Budget(steps=17), "turns", 17),
        (Budget(tokens=170), "tokens", 170),
        (Budget(tool_calls=17), "tool_calls", 17),
    ],
)
async def test_limit_holds_for_all_sessions_together(limits: Budget, name: str, most: int) -> None:
    budget = limits.share()
    outcomes, sessions = await run_all(budget, [[(10, 1)] * 6] * 8)
    assert getattr(budget.spent, name) == most
    assert sum(getattr(each.state.spent, name) for each in sessions) == most
    assert {each.outcome for each in outcomes} == {"exhausted"}


scripts = st.lists(
    st.lists(st.tuples(st.integers(2, 30), st.integers(1, 4)), max_size=5), min_size=1, max_size=6
)


@given(scripts, st.integers(1, 15), st.integers(1, 200), st.integers(1, 20))
def test_shared_limits_hold_in_any_runs(
    script: list[list[tuple[int, int]]], steps: int, tokens: int, calls: int
) -> None:
    budget = Budget(steps=steps, tokens=tokens, tool_calls=calls).share()
    _, sessions = asyncio.run(run_all(budget, script))
    spent = budget.spent
    assert spent.turns <= steps
    assert spent.tool_calls <= calls
    for name in ("turns", "tokens", "tool_calls"):
        assert getattr(spent, name) == sum(getattr(each.state.spent, name) for each in sessions)
    for each in sessions:  # each call that began was within the limit
        records = list(each.log.read(each.id))
        closed = [it for it in of(records, "tool_intent.closed") if "tool calls" in it.reason]
        assert not closed or spent.tool_calls == calls


# the tokens of each turn of a session, and the budgets that it shares, the inner ones first
nested = st.lists(
    st.tuples(
        st.lists(st.integers(1, 9), min_size=1, max_size=3),
        st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
    ),
    min_size=2,
    max_size=6,
)


@given(nested, st.lists(st.integers(1, 30), min_size=3, max_size=3))
@example([([5], [1]), ([5], [1, 0]), ([5], [0, 1])], [100, 10, 100])
def test_sessions_that_share_several_budgets_in_any_order_never_wait_for_each_other(
    sessions: list[tuple[list[int], list[int]]], limits: list[int]
) -> None:
    """Two sessions would wait for ever, if each held what the other one needs."""
    budgets = [Budget(tokens=limit).share() for limit in limits]

    async def run(name: str, turns: list[int], account: SharedBudget) -> None:
        for number, tokens in enumerate(turns):
            if await account.admit() is not None:
                return
            await asyncio.sleep(0)
            account.release(name, Spending(turns=number + 1, tokens=sum(turns[:number]) + tokens))

    async def run_all() -> None:
        running = [
            asyncio.ensure_future(
                run(f"s{at}", turns, SharedBudget(Budget(), [budgets[each] for each in above]))
            )
            for at, (turns, above) in enumerate(sessions)
        ]
        await settle()
        is_done = [each.done() for each in running]
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert all(is_done)

    asyncio.run(run_all())
    for budget, limit in zip(budgets, limits, strict=True):
        assert budget.spent.tokens < limit + 9


async def test_call_beyond_the_limit_does_not_run() -> None:
    outcomes, sessions = await run_all(Budget(tool_calls=2), [[(10, 3)]])
    assert outcomes[0].outcome == "exhausted"
    assert outcomes[0].detail == "the budget of 2 tool calls is used up"
    records = list(sessions[0].log.read(sessions[0].id))
    assert len(of(records, "tool.started")) == 2
    [closed] = of(records, "tool_intent.closed")
    assert closed.reason == "the budget of 2 tool calls is used up"


async def test_resumed_session_counts_what_it_spent_before() -> None:
    log = MemoryLog()
    first = Session(Listed(turn(10), "Done.", name="p"), [ping], log=log, session_id="s1")
    await first.run("Go.")
    budget = Budget(steps=3).share()
    again = await Session.resume(
        Listed(turn(10), "Done.", name="p"), [ping], None, log, "s1", budget=budget
    )
    assert (await again.run("More.")).outcome == "exhausted"
    assert budget.spent.turns == 3


def test_synchronous_sessions_share_a_budget() -> None:
    budget = Budget(steps=3).share()
    for _ in range(2):
        provider = Listed(turn(10), "Done.", name="p")
        SyncSession(provider, [ping], budget=budget).run("Go.")
    assert budget.spent.turns == 3
    assert budget.spent.tool_calls == 2
