"""Test a session with a real server: a forced tool call, and a final text."""

import os
from pathlib import Path
from typing import Any, Literal

import pytest

from dragoman import DropOldToolResults, RuntimeConfig, Window, connect
from dragoman.local import LocalProvider, find_model
from dragoman.log import MemoryLog, SqliteLog
from dragoman.messages import ToolResult
from dragoman.permission import Policy, Rule
from dragoman.session import Budget, ContextPolicy, Session
from dragoman.tokens import estimate_input_tokens
from dragoman.tools import tool
from dragoman.transport import Timeouts

from ..session.playing import ALL, check_evidence, of, types
from ..session.test_deferred import TASK, office

asked: list[str] = []


@tool(side_effect="read")
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Get the weather of a city."""
    asked.append(city)
    return f"In {city} it rains."


async def test_session_runs_with_a_real_server(tiny: Path, tmp_path: Path) -> None:
    asked.clear()
    policy = Policy([Rule("allow", tool="get_weather")])
    cool = RuntimeConfig(temperature=0, max_tokens=400)
    short = RuntimeConfig(temperature=0, max_tokens=4)
    with SqliteLog(tmp_path / "log.db") as log:
        async with connect(f"local:{tiny}") as model:
            # The weights of the model are random, so it is forced to call the tool once and
            # then to answer.
            session = Session(
                model, [get_weather], policy, log, session_id="s1", config=cool,
                tool_choice="required",
                budget=Budget(steps=1),
            )  # fmt: skip
            outcome = await session.run("What is the weather in Paris?")
            assert outcome.outcome == "exhausted"
            again = await Session.resume(
                model, [get_weather], policy, log, "s1", config=short, tool_choice="none"
            )
            outcome = await again.run()
        records = list(log.read("s1"))
        assert log.verify().ok
    steps = check_evidence(records)
    assert [chain[-1] for chain in steps.values()] == ["tool.observed"] * len(steps)
    [intent] = of(records, "tool_intent.proposed")
    assert intent.tool_name == "get_weather"
    assert intent.source.provider == "local"
    assert asked == [intent.input["city"]]
    shown = [message for message in again.messages if isinstance(message, ToolResult)]
    assert [result.text for result in shown] == [f"In {asked[0]} it rains."]
    assert outcome.outcome in ("completed", "exhausted")  # the reply may be truncated at 4 tokens
    assert types(records)[-1] == "session.finished"
    assert of(records, "message.recorded")[-1].message.text.strip()
    assert outcome.spent.tokens > 20


TURNS = 40
WINDOW = 16_000
PATIENT = Timeouts(first_event=None, idle=None, total=None)  # the machine may be busy
HAS_CALLER = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1" and find_model("qwen").path.exists()
# Number of sentences per page, and the policy with the share of the context window at which old
# results are dropped. A single slow core reads 4 tokens per second, so filling the whole window
# takes two hours.
SIZES: dict[str, tuple[int, ContextPolicy]] = {
    "early": (0, DropOldToolResults(share=0.08, target=0.03)),
    "whole": (18, DropOldToolResults()),
}


needs_caller = pytest.mark.skipif(
    not HAS_CALLER, reason="slow, and needs dragoman local pull qwen (1.1 GB)"
)


@pytest.mark.exhaustive
@needs_caller
async def test_small_model_finds_one_of_1000_deferred_tools_and_calls_it() -> None:
    tools = office()
    log = MemoryLog()
    config = RuntimeConfig(temperature=0, max_tokens=80)
    async with LocalProvider("qwen", context=WINDOW, timeouts=PATIENT) as model:
        session = Session(
            model, tools, ALL, log, session_id="s1", config=config, budget=Budget(steps=2)
        )
        await session.run(TASK)
        # A model this small would call the tool again and again, so it is made to answer.
        again = await Session.resume(
            model, tools, ALL, log, "s1", config=config, tool_choice="none"
        )
        outcome = await again.run()
    records = list(log.read("s1"))
    called = [each.tool_name for each in of(records, "tool.observed")]
    assert outcome.outcome == "completed"
    assert called == ["search_tools", "archive_refund_7"]
    replies = of(records, "llm.call_completed")
    everything = estimate_input_tokens([], [each.description for each in tools]) * len(replies)
    assert sum(each.input_tokens for each in replies) * 10 <= everything


@pytest.mark.exhaustive
@needs_caller
@pytest.mark.parametrize("size", SIZES)
async def test_forty_turns_of_a_small_model_fit_its_context_window(
    size: str, tmp_path: Path
) -> None:
    sentences, first = SIZES[size]

    @tool(side_effect="read")
    def read_page(number: int) -> str:
        """Read one page of the book."""
        text = (
            "The fox crossed the river and wrote down what it saw on the other side. " * sentences
        )
        return f"Page {number}. {text}The next page is {number + 1}."

    policy = Policy([Rule("allow", tool="read_page")])
    config = RuntimeConfig(temperature=0, max_tokens=40)
    settings: dict[str, Any] = {"config": config, "context": [first, Window()]}
    with SqliteLog(tmp_path / "log.db") as log:
        async with LocalProvider("qwen", context=WINDOW, timeouts=PATIENT) as model:
            session = Session(
                model, [read_page], policy, log, session_id="s1", **settings,
                budget=Budget(steps=TURNS),
            )  # fmt: skip
            goal: str | None = (
                "Read the book page by page with read_page, from page 1 on. Go on until I say stop."
            )
            while (turns := session.state.spent.turns) < TURNS:
                step = await session.step(goal)
                # A model this small sometimes answers with text instead of a tool call.
                goal = (
                    "Go on: call read_page with the number of the next page."
                    if step.outcome
                    else None
                )
                used = step.response.usage if step.response is not None else None
                print(
                    turns + 1,
                    used and (used.input_tokens, used.cached_input_tokens, used.output_tokens),
                    flush=True,
                )
            # Use the same settings, so that the server finds the conversation in its prompt cache.
            again = await Session.resume(
                model, [read_page], policy, log, "s1", **settings, budget=Budget(steps=TURNS + 5)
            )
            last = await again.run("Stop. Answer in plain text: which animal is the book about?")
        records = list(log.read("s1"))
        assert log.verify().ok
    check_evidence(records)
    assert len(of(records, "turn.started")) > TURNS
    assert last.outcome == "completed"
    assert of(records, "llm.call_failed") == []
    projected = of(records, "context.projected")
    assert all(each.tokens_after < each.tokens_before <= WINDOW for each in projected)
    assert 0 < len(projected) < TURNS / 4
    replies = of(records, "llm.call_completed")
    assert max(each.input_tokens for each in replies) < WINDOW
    # The server reads only new messages, except after the context was shortened.
    reread = [each for each in replies[1:] if each.cached_input_tokens < each.input_tokens / 2]
    assert len(reread) <= len(projected) + 1
    assert len(of(records, "tool.observed")) > TURNS / 2
    print(
        f"{len(projected)} projections, {len(of(records, 'tool.observed'))} pages, answer "
        f"{last.text!r}"
    )
