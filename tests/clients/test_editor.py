"""The protocol's own library for editors, and a harness, drive ``dragoman agent --acp``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from dragoman.messages import Request, System
from dragoman.sim import Answer, Call, RequestMatch, ScriptedProvider, ScriptRule, SimServer
from tests.gateway.upstream import WIRES
from tests.programs import require

from .running import INSTALLED, find_program, in_full_run, run_program
from .scripted import TEXT, ends_with_result

pytestmark = [pytest.mark.exhaustive, in_full_run]

PROGRAM = Path(__file__).parent / "editor.mjs"
HARNESS = PROGRAM.with_name("harness.mjs")
SERVER = Path(__file__).parents[1] / "tools" / "mcp_server.py"
ADD = Call("my_tools_add", {"a": 2, "b": 3})
EDIT = Call("edit_file", {"path": "a.txt", "old": "one", "new": "two"})


def count(request: Request) -> Answer:
    """Answer with the number of messages other than the system prompt."""
    return Answer(f"{sum(not isinstance(each, System) for each in request.messages)} messages")


def script() -> ScriptedProvider:
    """Return a model that does what the prompt requests."""
    return ScriptedProvider(
        ScriptRule("Done.", RequestMatch(where=ends_with_result)),
        ScriptRule(Answer("I edit it.", tool_calls=[EDIT]), RequestMatch(pattern="^EDIT")),
        ScriptRule(Answer(tool_calls=[ADD]), RequestMatch(pattern="^ADD")),
        ScriptRule(Answer("one two three four five six", pace=0.2), RequestMatch(pattern="^SLOW")),
        ScriptRule(count, RequestMatch(pattern="^COUNT")),
        ScriptRule(TEXT),
    )


def start_agent(server: SimServer, wire: str, log: Path) -> list[str]:
    """Return the command of an agent that uses the server over a wire."""
    target = ["--base-url", server.base_urls[wire], "--wire", wire, "--max-tokens", "1000"]
    words = ["-m", "dragoman", "agent", "--acp", "sim", *target, "--log", str(log)]
    return [sys.executable, *words]


@pytest.mark.parametrize("wire", WIRES)
async def test_editor_uses_the_agent_by_the_protocols_own_library(
    wire: str, tmp_path: Path
) -> None:
    find_program("node", "node_modules", "@agentclientprotocol", "sdk")
    workspace = tmp_path / "work"
    workspace.mkdir()
    tried = "all" if wire == WIRES[0] else "allowed,cancelled"
    with SimServer(script(), models=("sim",)) as server:
        place = [str(INSTALLED / "node"), str(workspace), tried, str(SERVER)]
        agent = start_agent(server, wire, tmp_path / "log")
        command = [require("node"), str(PROGRAM), *place, *agent]
        status, printed = await run_program(command, workspace, {})
    assert status == 0, printed
    found = json.loads(printed.strip().splitlines()[-1])
    assert len(found) == (10 if tried == "all" else 2)
    assert {name: what for name, what in found.items() if what != "yes"} == {}


async def test_harness_of_the_ai_sdk_drives_the_agent(tmp_path: Path) -> None:
    find_program("node", "node_modules", "@ai-sdk", "harness-acp")
    workspace = tmp_path / "work"
    workspace.mkdir()
    with SimServer(script(), models=("sim",)) as server:
        agent = start_agent(server, WIRES[0], tmp_path / "log")
        place = [str(INSTALLED / "node"), str(workspace)]
        command = [require("node"), str(HARNESS), *place, *agent]
        status, printed = await run_program(command, workspace, {})
    assert status == 0, printed
    found = json.loads(printed.strip().splitlines()[-1])
    assert found == {"first": TEXT, "second": "I edit it.Done.", "file": "two\n"}


async def test_client_of_a_registry_uses_the_agent(tmp_path: Path) -> None:
    """acpx starts agents of the protocol's registry, lists their sessions and chooses models."""
    program = find_program("node", "node_modules", ".bin", "acpx")
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "a.txt").write_text("one\n")
    with SimServer(script(), models=("sim",)) as server:
        agent = shlex.join(start_agent(server, WIRES[0], tmp_path / "log"))
        command = [program, "--agent", agent, "--approve-all", "--format", "quiet", "exec", "EDIT"]
        status, printed = await run_program(command, workspace, {})
    assert status == 0, printed
    assert "Done." in printed, printed
    assert (workspace / "a.txt").read_text() == "two\n"
