"""Test the context of a tool call: its key, its dependencies, its progress and its cancellation."""

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest

from dragoman.log import MemoryLog
from dragoman.messages import Tool
from dragoman.session import Session
from dragoman.tools import ProcessTool, Toolbox, ToolContext, ToolFailure, tool, workspace_tools
from dragoman.tools.sandbox import Sandbox

from ..listed import Listed
from ..waiting import until
from .playing import ALL, call, check_evidence, of, play, propose

seen: list[ToolContext[Any]] = []
PRINT_KEY = "import os; print(*[os.environ.get('DRAGOMAN_' + n) for n in ('INTENT_ID', 'SESSION_ID', 'ATTEMPT')])"


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@tool(side_effect="write")
async def pay(amount: int, context: ToolContext[str], note: str = "") -> str:
    """Pay an amount."""
    seen.append(context)
    return f"{context.deps} paid {amount}{note}"


@tool(side_effect="read")
def look(context: Annotated[ToolContext[str] | None, "unused"], word: str) -> str:
    """Look up a word."""
    assert context is not None
    seen.append(context)
    for done in range(100):
        context.report({"done": done})
    return word


async def test_tool_receives_the_context_of_its_call() -> None:
    calls = propose(call("pay", amount=5), call("look", word="ox", call_id="call_2"))
    session = Session(
        Listed(calls, "Done.", name="p"), [pay, look], ALL, session_id="s1", deps="ann"
    )
    await session.run("Pay.")
    records = list(session.log.read("s1"))
    proposed = [intent.id for intent in of(records, "tool_intent.proposed")]
    assert [context.intent_id for context in seen] == proposed
    assert {(context.session, context.attempt, context.deps) for context in seen} == {
        ("s1", 1, "ann")
    }
    assert [it.content for it in of(records, "tool.observed")] == ["ann paid 5", "ox"]
    check_evidence(records)
    progress = of(records, "tool.progress")
    assert 1 <= len(progress) <= 100
    assert progress[-1].progress == {"done": 99}, "the latest is never lost"
    seen[0].report("late")
    assert of(list(session.log.read("s1")), "tool.progress") == progress


def test_the_model_does_not_see_the_context() -> None:
    assert set(pay.description.parameters["properties"]) == {"amount", "note"}
    assert pay.description.parameters["required"] == ["amount"]
    assert set(look.description.parameters["properties"]) == {"word"}
    box = Toolbox([pay])
    assert box.validate("pay", {"amount": 5}) is None
    rejected = box.validate("pay", {"amount": 5, "context": None})
    assert rejected is not None
    assert "context" in rejected[1]


async def test_a_call_without_a_session_has_a_context_of_its_own() -> None:
    for _ in range(2):
        await Toolbox([pay]).execute("pay", {"amount": 5})
    first, second = seen
    assert first.intent_id != second.intent_id
    assert first.session == ""
    assert first.deps is None
    first.report("ignored")


@pytest.mark.parametrize("progress", [object(), float("nan"), "x" * 10_001, {1: 2}])
def test_progress_that_cannot_be_recorded_is_rejected(progress: Any) -> None:
    with pytest.raises(ValueError, match="progress"):
        ToolContext[None]("tu_1", "s1").report(progress)


@pytest.mark.parametrize("later", [object(), float("nan"), "\ud800", "x" * 10_001, 2])
async def test_report_is_recorded_as_it_was_when_it_was_made(later: Any) -> None:
    """A tool that goes on to change the value, also to one that cannot be recorded, loses nothing."""

    @tool(side_effect="read")
    async def count(context: ToolContext[None]) -> str:
        """Report a value, and change it before it can be written."""
        progress: dict[str, Any] = {"done": 1, "files": []}
        context.report(progress)
        progress["done"] = later
        progress["files"].append(progress)
        return "counted"

    records = await play(MemoryLog(), Listed(propose(call("count")), "Done.", name="p"), [count])
    assert [it.progress for it in of(records, "tool.progress")] == [{"done": 1, "files": []}]
    assert [it.content for it in of(records, "tool.observed")] == ["counted"]
    check_evidence(records)


async def test_thread_sees_that_its_call_was_cancelled() -> None:
    stopped = threading.Event()

    @tool(side_effect="read")
    def slow(context: ToolContext[None]) -> str:
        """Run until the call is cancelled."""
        seen.append(context)
        while not context.cancelled:
            os.sched_yield()
        context.report("too late")
        stopped.set()
        return ""

    session = Session(Listed(propose(call("slow")), name="p"), [slow], ALL)
    running = asyncio.create_task(session.run("Go."))
    await until(lambda: seen, "the call")
    await session.cancel()
    await running
    await until(stopped.is_set, "the end of the thread")
    records = list(session.log.read(session.id))
    assert of(records, "tool.failed")[0].kind == "cancelled"
    assert not of(records, "tool.progress")


async def test_failed_log_stops_a_run_that_reports_progress() -> None:
    class Full(MemoryLog):
        async def append(self, session: str, payload: Any, **facts: Any) -> Any:
            if type(payload).__name__ == "ToolProgress":
                raise OSError("no space left")
            return await super().append(session, payload, **facts)

    with pytest.raises(OSError, match="no space"):
        await play(Full(), Listed(propose(call("look", word="ox")), "Done.", name="p"), [look])


async def test_programs_receive_the_key_in_their_environment(tmp_path: Path) -> None:
    show = ProcessTool(Tool("show", ""), [sys.executable, "-c", PRINT_KEY])
    [*_, bash] = workspace_tools(tmp_path, sandbox=Sandbox(None, "none here"))
    command = "echo $DRAGOMAN_INTENT_ID $DRAGOMAN_SESSION_ID $DRAGOMAN_ATTEMPT"
    calls = propose(call("show"), call("bash", command=command, call_id="call_2"))
    records = await play(
        MemoryLog(), Listed(calls, "Done.", name="p"), [show, bash], session_id="s1"
    )
    expected = [f"{intent.id} s1 1" for intent in of(records, "tool_intent.proposed")]
    assert [it.content.splitlines()[-1] for it in of(records, "tool.observed")] == expected
    observed = await Toolbox([show]).execute("show", {})
    assert str(observed.content).endswith("None None None\n")


async def test_failure_of_a_tool_with_a_context_is_reported() -> None:
    @tool(side_effect="read", timeout=None)
    async def fail(context: ToolContext[None]) -> str:
        """Fail."""
        context.report("begun")
        raise ToolFailure("lost", context.intent_id)

    records = await play(MemoryLog(), Listed(propose(call("fail")), "Done.", name="p"), [fail])
    assert [it.progress for it in of(records, "tool.progress")] == ["begun"]
    assert of(records, "tool.failed")[0].kind == "lost"
    check_evidence(records)
