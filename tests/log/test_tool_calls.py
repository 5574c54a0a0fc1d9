"""The quality of tool calls: their faults on every wire, and in logs."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dragoman as d
from dragoman.calls import CallCompleted
from dragoman.cli import main
from dragoman.log import EventLog, MemoryLog, SqliteLog, rate_tool_calls, read_tool_calls
from dragoman.sim import Answer, Call, ScriptRule, SimServer
from dragoman.tools import tool
from dragoman.wire import SERVER_CODECS


@tool(side_effect="none")
def look(word: str) -> str:
    """Look up a word."""
    return word


CALLS = {
    "sound": Call("look", {"word": "sea"}),
    "schema_mismatch": Call("look", {"word": 3}),
    "unknown_name": Call("glance", {"word": "sea"}),
    "invalid_json": Call("look", '{"word": "sea"'),
}


def answer(request: d.Request) -> Answer:
    """Answer a user's message with the calls that it names, and anything else with a text."""
    last = request.messages[-1]
    named = last.text.split() if isinstance(last, d.User) else []
    calls = [CALLS[name] for name in named if name in CALLS]
    finish: Any = "length" if "length" in named else None
    return Answer("" if calls else "done", tool_calls=calls, finish=finish)


def count(log: EventLog) -> dict[str, int]:
    total: Counter[str] = Counter()
    for _, outcomes in read_tool_calls(log):
        total.update(outcomes)
    return dict(total)


# On these wires arguments are JSON objects, so a server cannot send invalid JSON.
OBJECTS = {"gemini", "ollama"}


@pytest.mark.parametrize("wire", sorted(SERVER_CODECS))
async def test_faults_of_a_session_are_counted_on_every_wire(
    dragoman_sim: Callable[..., SimServer], wire: str
) -> None:
    url = dragoman_sim(ScriptRule(answer)).base_urls[wire]
    wanted = {"sound": 2, "schema_mismatch": 1, "unknown_name": 1}
    goals = ["sound schema_mismatch", "unknown_name sound"]
    if wire not in OBJECTS:
        goals += ["invalid_json", "length invalid_json"]
        wanted["invalid_json"] = 1
    with MemoryLog() as log:
        async with d.connect("m", wire=wire, base_url=url, api_key="k") as model:
            for goal in goals:
                session = d.Session(model, [look], None, log, config={"max_tokens": 99})
                try:
                    await session.run(goal)
                except d.MalformedToolCallError:
                    assert goal.startswith("length")
        assert count(log) == wanted
        assert [each.server for each in rate_tool_calls(log)] == [url.split("/")[2]]


def test_log_tools_prints_the_rates(tmp_path: Path) -> None:
    path = str(tmp_path / "log.db")
    facts = {"model": "m", "provider": "p", "stop_reason": "tool_use", "latency_ms": 1.0}
    with SqliteLog(path) as log:
        for server, outcomes in (
            ("a:80", {"sound": 19, "unknown_name": 1}),
            ("b:80", {"sound": 5}),
        ):
            log.append_sync("s", CallCompleted(**facts, server=server, tool_outcomes=outcomes))
    run = lambda *words: CliRunner().invoke(main, ["log", "tools", "--log", path, *words]).stdout
    first, second = json.loads(run("--json"))["models"]
    assert first["model"] == "p:m"
    assert first["server"] == "a:80"
    assert first["calls"] == 20
    assert first["faulty"] == first["unknown_name"]
    assert first["faulty"] == {
        "count": 1, "total": 20, "share": 0.05, "interval": [0.0089, 0.2361]
    }  # fmt: skip
    assert second["server"] == "b:80"
    assert second["faulty"]["count"] == 0
    assert "5.0% (0.9%-23.6%)" in run()
    assert json.loads(run("--by", "provider", "--json"))["providers"][0]["provider"] == "p"
