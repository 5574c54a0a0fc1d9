"""The recipes of coding agents work as printed: the files, variables and commands of the page run
against a gateway. Only the port is replaced, and the last command gets the options with which the
program answers one prompt without a person.
"""

from pathlib import Path

import pytest

from dragoman.events import Usage
from dragoman.gateway.clients import read_clients
from dragoman.messages import Request, Tool, ToolResult, User
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule

from .recipes import PROGRAMS, run_recipe
from .running import in_full_run

pytestmark = [pytest.mark.exhaustive, in_full_run]

SHELLS = ("run_shell_command", "Bash", "exec_command", "bash")
CLAUDES = ("claude-code", "claude-code-bedrock")
SUMMARY = "The moon was looked for."
# The option with which a program continues its last conversation.
RESUMED = {"continue": "--resume", "gemini-cli": "--resume latest"}
# aider has no tools, so a turn cannot fill its window.
COMPACTING = [name for name in PROGRAMS if name != "aider"]


def find_shell(request: Request) -> Tool | None:
    """Return the tool of an agent that runs commands, if it offers one."""
    tools = {tool.name: tool for tool in request.tools}
    names = [*SHELLS, *[name for name in tools if "terminal" in name.lower()]]
    return next((tools[name] for name in names if name in tools), None)


def run_command(shell: Tool, command: str) -> Call:
    """Return a call of an agent's shell, with those arguments that it has."""
    given = {"cmd": command, "command": command, "description": "write", "is_background": False}
    accepted = shell.parameters.get("properties") or {}
    return Call(shell.name, {name: value for name, value in given.items() if name in accepted})


def answer(request: Request) -> Answer:
    """Write a file with the agent's shell, or as text if it offers no tool, as aider does."""
    shell = find_shell(request)
    if shell is None:
        return Answer("made.txt\n```\nforty-two\n```\n")
    if any(isinstance(each, ToolResult) for each in request.messages):
        return Answer("All is done.")
    return Answer("I write it.", tool_calls=[run_command(shell, "echo forty-two > made.txt")])


def test_every_recipe_that_was_seen_to_work_has_a_program() -> None:
    assert set(PROGRAMS) == {name for name, client in read_clients().items() if client.seen}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_recipe_runs_as_printed(name: str, tmp_path: Path) -> None:
    model = ScriptedProvider(ScriptRule(answer))
    models = {"clever": model, "fast": model, "gpt-5.5": model}
    status, printed = await run_recipe(name, models, tmp_path, "Write forty-two into made.txt")
    made = tmp_path / "toy" / "made.txt"
    assert status == 0, printed[-3000:]
    assert made.read_text() == "forty-two\n", printed[-3000:]
    # What Claude Code and Codex print about a name whose limits they do not know.
    assert "assumes a context window" not in printed
    assert "metadata for" not in printed


def fill_the_window(request: Request) -> Answer:
    """Call the shell and use up the window; answer when the conversation is short again."""
    little = Usage(input_tokens=900, output_tokens=9)
    shell = find_shell(request)
    if SUMMARY in str(request.messages):
        return Answer("Bonjour.", usage=little)
    nearly_all = Usage(input_tokens=190_000, output_tokens=9)
    results = sum(isinstance(each, ToolResult) for each in request.messages)
    if shell is None or results > 3 or (results and isinstance(request.messages[-1], User)):
        # qwen-code looks for the summary in this element.
        return Answer(f"<state_snapshot>{SUMMARY}</state_snapshot>", usage=nearly_all)
    return Answer("I look.", tool_calls=[run_command(shell, "echo moon")], usage=nearly_all)


def write_much(request: Request) -> Answer:
    """Fill the window by one reply; answer when the conversation is short again."""
    asked = f"{request.messages[-1]}".lower()
    if "summary" in asked or "state_snapshot" in asked:
        return Answer(f"<state_snapshot>{SUMMARY}</state_snapshot>")
    if SUMMARY in str(request.messages):
        return Answer("Bonjour.")
    # Gemini CLI ends a reply that repeats itself. One piece, because 600,000 take minutes.
    return Answer(" ".join(map(str, range(100_000))), piece=1_000_000)


@pytest.mark.parametrize("name", COMPACTING)
async def test_agent_compacts_a_conversation_that_fills_the_window_of_its_recipe(
    name: str, tmp_path: Path
) -> None:
    # Some programs believe the usage in replies, others count the conversation when it continues.
    resume = RESUMED.get(name, "")
    model = ScriptedProvider(ScriptRule(write_much if resume else fill_the_window))
    models = {"clever": model, "fast": model, "gpt-5.5": model}
    status, printed = await run_recipe(name, models, tmp_path, "Look for the moon", resume=resume)
    assert status == 0, printed[-3000:]
    assert "Bonjour." in printed, printed[-3000:]


def ask_an_agent(request: Request) -> Answer:
    """Let Claude Code start a sub-agent whose model is its vendor's small one."""
    if any(isinstance(each, ToolResult) for each in request.messages):
        return Answer(f"Heard: {request.messages[-1]}")
    asked = {"description": "ask", "prompt": "SUB", "subagent_type": "Explore", "model": "haiku"}
    return Answer(tool_calls=[Call("Agent", asked)])


@pytest.mark.parametrize("name", CLAUDES)
async def test_sub_agents_of_claude_code_ask_for_a_served_model(name: str, tmp_path: Path) -> None:
    clever = ScriptedProvider(ScriptRule(ask_an_agent))
    fast = ScriptedProvider("The agent says blue.")
    models = {"clever": clever, "fast": fast}
    status, printed = await run_recipe(name, models, tmp_path, "Ask an agent")
    assert status == 0, printed[-3000:]
    assert "The agent says blue." in printed, printed[-3000:]
    assert any("SUB" in str(each.messages) for each in fast.requests)


async def test_codex_offers_its_patch_tool_for_the_model_of_its_recipe(tmp_path: Path) -> None:
    model = ScriptedProvider(ScriptRule(answer))
    status, printed = await run_recipe("codex", {"gpt-5.5": model}, tmp_path, "Say forty-two")
    assert status == 0, printed[-3000:]
    assert "apply_patch" in {tool.name for tool in model.requests[0].tools}
