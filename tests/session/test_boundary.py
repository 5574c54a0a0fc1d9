"""Test that layers below the session do not run a tool that they receive, and shorten no result.

That they import no code that runs tools follows from the list of layers (``test_layers.py``).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import Fallback, Observe, Provider, RateLimit, Retry
from dragoman.log import SqliteLog
from dragoman.middleware import Record
from dragoman.permission import Policy
from dragoman.session import Session
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.tools import FunctionTool, ProcessTool, Toolbox, workspace_tools
from dragoman.tools.runtime import ExecutableTool, Observation
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS

from ..listed import Listed, speak
from ..server import stream_of
from .playing import call, propose, served, text

# --- tools that fail the test if they run ------------------------------------------------------

fired: list[str] = []


class Bomb(ExecutableTool):
    """Act as a tool that fails the test if it runs."""

    async def execute(self, arguments: Any) -> Observation:
        fired.append(self.name)
        raise AssertionError("it ran")


def bash(command: str) -> str:
    """Run a command."""
    fired.append(command)
    raise AssertionError("it ran")


ARMED = Toolbox([FunctionTool(bash), Bomb(dragoman.Tool("boom"))])
PROPOSAL = propose(call("bash", call_id="1", command="ls"), call("boom", call_id="2"))


def listed() -> Provider:
    return Listed(PROPOSAL)


def simulated() -> Provider:
    return ScriptedProvider(Answer(tool_calls=[Call("bash", {"command": "ls"}), Call("boom")]))


KINDS: dict[str, Callable[[Path], Provider]] = {
    "http": lambda _: served("openai", PROPOSAL),
    "listed": lambda _: listed(),
    "sim": lambda _: simulated(),
    "retry": lambda _: Retry(listed()),
    "fallback": lambda _: Fallback([listed(), simulated()]),
    "limited": lambda _: RateLimit(listed(), max_concurrency=1),
    "observed": lambda _: Observe(listed(), lambda event: None),
    "recorded": lambda folder: Record(listed(), folder / "cassettes"),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_no_provider_executes_a_tool(kind: str, tmp_path: Path) -> None:
    fired.clear()
    async with KINDS[kind](tmp_path) as model:
        stream = model.stream("Go.", list(ARMED))
        events = [event async for event in stream]
        proposed = [
            event.intent.tool_name
            for event in events
            if isinstance(event, dragoman.ToolUseEnd) and event.intent
        ]
        assert proposed == ["bash", "boom"]
        assert fired == []


def test_tool_description_contains_nothing_executable(tmp_path: Path) -> None:
    process = ProcessTool(dragoman.Tool("p"), ["true"])
    tools = Toolbox([Bomb(dragoman.Tool("boom")), *workspace_tools(tmp_path), process])

    def walk(value: Any) -> None:
        assert not callable(value)
        inner = value.values() if isinstance(value, dict) else value
        for each in inner if isinstance(value, dict | list | tuple) else ():
            walk(each)

    for description in tools.describe():
        assert type(description) is dragoman.Tool
        walk([getattr(description, name) for name in description.__struct_fields__])


@pytest.mark.parametrize("wire", sorted(CODECS))
async def test_an_adapter_does_not_truncate_a_tool_result(wire: str) -> None:
    whole = "line of output\n" * 20_000
    asked = dragoman.Assistant(tool_calls=[dragoman.ToolCall("call_1", "look", {})])
    messages = [dragoman.User("Go."), asked, dragoman.ToolResult("call_1", whole)]
    transport = FixtureTransport((500, {}, [b"{}"]))
    url = "http://127.0.0.1:9/v1"
    model = dragoman.connect("m", wire=wire, base_url=url, transport=transport, api_key="k")
    with pytest.raises(dragoman.ProviderError):
        await model.complete(messages, [dragoman.Tool("look")], {"max_tokens": 9})
    assert json.dumps(whole)[1:-1].encode() in transport.requests[0].body


async def test_raw_chunks_of_a_stream_are_not_logged(log: SqliteLog, tmp_path: Path) -> None:
    session = Session(served("openai", speak(text("Done."))), [], Policy([]), log)
    assert (await session.run("Go.")).text == "Done."
    log.export(tmp_path / "all.jsonl")
    written = (tmp_path / "all.jsonl").read_text()
    for word in ("choices", "delta", "data:"):
        assert word not in written


# --- losses ------------------------------------------------------------------------------------


async def test_loss_is_logged_once_with_the_id_of_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = Session(ScriptedProvider(Answer("Hello.", thinking="So.")))
    await session.run("Say hello.")
    [said] = [each for each in session.state.messages if each.provider]
    for name in ("first", "second"):
        stream = (200, {}, [stream_of("Yes.")])
        other = dragoman.connect(
            "m", base_url="http://x.test/v1", name=name, transport=FixtureTransport(stream, stream)
        )
        await session.swap(other)
        await session.run("Again.")
        await session.run("And again.")
        [line] = [record.getMessage() for record in caplog.records]
        assert line.startswith(f"{name}/m {session.id} {said.message_id}: messages[1].content[0]")
        assert "thinking" in line
        caplog.clear()
