"""A session with the embedded model, as far as its ability goes: it proposes where it must, and says something."""

from __future__ import annotations

from pathlib import Path

from dragoman import RuntimeConfig, connect
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


async def test_the_embedded_model_proposes_and_the_session_does_the_rest(tmp_path: Path) -> None:
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
