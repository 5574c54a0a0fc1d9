"""Test a session around a guard: verdicts are on record, and come before permission is asked."""

from typing import Any

import pytest

from dragoman import Guard, Session
from dragoman.errors import BlockedError
from dragoman.log import MemoryLog
from dragoman.middleware.guard import Rules
from dragoman.replay import read_steps
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.tools import tool

RULES = [
    {"code": "deletion", "tools": ["delete_*"]},
    {"code": "looks", "tools": ["look"], "action": "flag"},
]


async def run(log: MemoryLog, name: str) -> list[str]:
    """Run a session whose model calls a tool; return the names of the tools that ran."""
    ran = list[str]()

    @tool(side_effect="write")
    def delete_all() -> str:
        """Delete everything."""
        ran.append("delete_all")
        return "gone"

    @tool(side_effect="none")
    def look() -> str:
        """Look around."""
        ran.append("look")
        return "a river"

    async def approve(*asked: Any) -> bool:
        return True

    model = ScriptedProvider(Answer(tool_calls=[Call(name, {})]), "Done.")
    guard = Guard(model, Rules(RULES), on="intent")
    await Session(guard, [delete_all, look], log=log, session_id="s", approve=approve).run("Go.")
    return ran


async def test_blocked_call_is_neither_asked_about_nor_run() -> None:
    log = MemoryLog()
    with pytest.raises(BlockedError):
        await run(log, "delete_all")
    types = [record.type for record in log.read("s")]
    assert "guard.judged" in types
    assert not [each for each in types if each.startswith(("permission.", "tool."))]
    assert log.verify("s").ok


async def test_flagged_call_runs_and_its_verdict_is_shown_before_it() -> None:
    log = MemoryLog()
    assert await run(log, "look") == ["look"]
    types = [record.type for record in log.read("s")]
    assert types.index("guard.judged") < types.index("tool.started")
    (shown,) = [step.title for step in read_steps(log, "s") if step.type == "guard.judged"]
    assert shown.startswith("guard rules: flag the intent [looks], ")
