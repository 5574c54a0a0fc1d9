"""A session with the embedded model: a forced tool call, and a final text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman import DropOldToolResults, RuntimeConfig, Window, connect
from dragoman.local import LocalProvider, find_model
from dragoman.log import SqliteLog
from dragoman.messages import ToolResult
from dragoman.permission import Policy, Rule
from dragoman.session import Budget, Session
from dragoman.tools import tool

from ..session.playing import check_evidence, of, types

asked: list[str] = []


@tool(side_effect="read")
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    asked.append(city)
    return f"In {city} it rains."


async def test_session_runs_with_the_embedded_model(tmp_path: Path) -> None:
    asked.clear()
    policy = Policy([Rule("allow", tool="get_weather")])
    cool, short = RuntimeConfig(temperature=0, max_tokens=60), RuntimeConfig(temperature=0, max_tokens=4)
    with SqliteLog(tmp_path / "log.db") as log:
        async with connect("local") as model:
            # It is far too small to decide by itself; so it must call once, and then answer.
            session = Session(
                model, [get_weather], policy, log, session_id="s1", config=cool, tool_choice="required",
                budget=Budget(steps=1),
            )  # fmt: skip
            outcome = await session.run("What is the weather in Paris?")
            assert outcome.outcome == "exhausted"
            again = await Session.resume(model, [get_weather], policy, log, "s1", config=short, tool_choice="none")
            outcome = await again.run()
        records = list(log.read("s1"))
        assert log.verify().ok
    steps = check_evidence(records)
    assert [chain[-1] for chain in steps.values()] == ["tool.observed"] * len(steps)
    [intent] = of(records, "tool_intent.proposed")
    assert (intent.tool_name, intent.source.provider) == ("get_weather", "local")
    assert asked == [intent.input["city"]]
    shown = [message for message in again.messages if isinstance(message, ToolResult)]
    assert [result.text for result in shown] == [f"In {asked[0]} it rains."]
    assert outcome.outcome in ("completed", "exhausted")  # its reply may be cut at 4 tokens
    assert types(records)[-1] == "session.finished"
    assert of(records, "message.recorded")[-1].message.text.strip()
    assert outcome.spent.tokens > 20


TURNS, WINDOW = 40, 16_000
HAS_CALLER = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1" and find_model("qwen").path.exists()


@tool(side_effect="read")
def read_page(number: int) -> str:
    """Read one page of the book."""
    text = "The fox crossed the river and wrote down what it saw on the other side. " * 24
    return f"Page {number}. {text}\nThe next page is {number + 1}: call read_page with it."


@pytest.mark.exhaustive
@pytest.mark.skipif(not HAS_CALLER, reason="takes half an hour, and needs dragoman local pull qwen (1.1 GB)")
async def test_forty_turns_of_a_small_model_fit_its_window(tmp_path: Path) -> None:
    policy = Policy([Rule("allow", tool="read_page")])
    config = RuntimeConfig(temperature=0, max_tokens=60)
    with SqliteLog(tmp_path / "log.db") as log:
        async with LocalProvider("qwen", context=WINDOW) as model:
            session = Session(
                model, [read_page], policy, log, session_id="s1", config=config,
                context=[DropOldToolResults(), Window()], budget=Budget(steps=TURNS),
            )  # fmt: skip
            outcome = await session.run("Read the book page by page with read_page, from page 1 on.")
            while outcome.outcome == "completed" and outcome.spent.turns < TURNS:
                # A model this small stops to talk now and then.
                outcome = await session.run("Go on: call read_page with the number of the next page.")
            again = await Session.resume(model, [read_page], policy, log, "s1", config=config, tool_choice="none")
            last = await again.run("Stop reading. Which animal is the book about?")
        records = list(log.read("s1"))
        assert log.verify().ok
    check_evidence(records)
    assert (outcome.spent.turns, last.outcome) == (TURNS, "completed")
    assert of(records, "llm.call_failed") == []
    projected = of(records, "context.projected")
    assert all(each.tokens_after < each.tokens_before <= WINDOW for each in projected)
    assert len(projected) > 0
    assert max(each.input_tokens for each in of(records, "llm.call_completed")) < WINDOW
    assert len(of(records, "tool.observed")) > TURNS / 2
    print(f"{len(projected)} projections, {len(of(records, 'tool.observed'))} pages, answer {last.text!r}")
