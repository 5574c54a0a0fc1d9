"""Test that the definitions of tools that were found leave the context when it is too long."""

from typing import Any

import pytest

from dragoman import Session
from dragoman.log import EventLog, MemoryLog
from dragoman.replay import ReplayProvider, recorded_tools
from dragoman.session import Budget, DropOldToolResults, Window, reduce_records
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.tools import ExecutableTool, tool

from .playing import ALL, check_evidence, of

TOPICS = ("tide", "gene", "court", "metro", "patent")
CONTEXT = [DropOldToolResults(), Window()]


def make_tool(number: int, topic: str) -> ExecutableTool:
    def find(query: str, limit: int = 10) -> str:
        return "ok"

    find.__name__ = f"get_{topic}_{number}"
    find.__doc__ = f"Return {topic} records of region {number} " + "with many details " * 20
    return tool(side_effect="read", deferred=True)(find)


TOOLS = [make_tool(number, topic) for number in range(40) for topic in TOPICS]


def make_model(turns: int, used: int = 0) -> ScriptedProvider:
    """Return a model with a small window that searches for something else in each turn."""
    steps: list[Any] = []
    for number in range(turns):
        query = Call("search_tools", {"query": f"tide region {number}"})
        steps.append(Answer("", tool_calls=[query]))
        if used:  # it calls a tool that an early search found, again and again
            steps.append(Answer("", tool_calls=[Call("get_tide_0", {"query": "x"})]))
    return ScriptedProvider(*steps, "end", capabilities={"max_context_tokens": 8000})


def start(model: ScriptedProvider, log: EventLog | None = None, **settings: Any) -> Session:
    settings = {"context": CONTEXT, "budget": Budget(steps=200), "session_id": "s1", **settings}
    return Session(model, TOOLS, ALL, log or MemoryLog(), **settings)


async def test_long_search_does_not_fill_the_window_with_definitions() -> None:
    log = MemoryLog()
    model = make_model(40)
    outcome = await start(model, log).run("go")
    assert outcome.outcome == "completed"
    assert outcome.spent.turns == 41
    records = list(log.read("s1"))
    check_evidence(records)
    gone = [it for it in of(records, "context.projected") if it.tools]
    assert gone
    assert all(it.rule == "definitions" and it.tokens_after < it.tokens_before for it in gone)
    for request in model.requests:
        assert model.estimate_input_tokens(request.messages, request.tools) <= 8000
    # the tools that the last search found are offered
    last = {tool.name for tool in model.requests[-1].tools}
    assert "get_tide_39" in last


async def test_least_recently_used_definition_leaves_first() -> None:
    model = make_model(30, used=1)
    log = MemoryLog()
    await start(model, log).run("go")
    gone = [it.tools for it in of(list(log.read("s1")), "context.projected") if it.tools]
    assert len(gone) > 1
    # it was called before each search, so all others have to leave before it
    assert all("get_tide_0" not in tools[:-1] for tools in gone)


async def test_resumed_session_offers_what_the_log_says() -> None:
    log = MemoryLog()
    session = start(make_model(40), log, budget=Budget(steps=30))
    assert (await session.run("go")).outcome == "exhausted"
    assert list(reduce_records(log.read("s1")).found) == list(session.state.found)
    again = await Session.resume(
        make_model(5), TOOLS, ALL, log, "s1", context=CONTEXT, budget=Budget(steps=60)
    )
    assert (await again.run()).outcome == "completed"


async def test_run_with_fewer_definitions_can_be_replayed() -> None:
    log = MemoryLog()
    await start(make_model(30), log).run("go")
    again = Session(ReplayProvider(log, "s1"), recorded_tools(log, "s1"), ALL)
    assert (await again.run("go")).text == "end"


@pytest.mark.parametrize("context", [None, CONTEXT])
async def test_definitions_stay_without_a_policy_or_need(context: Any) -> None:
    log = MemoryLog()
    model = make_model(3)
    await start(model, log, context=context).run("go")
    assert of(list(log.read("s1")), "context.projected") == []
    assert len(model.requests[-1].tools) > len(model.requests[1].tools)
