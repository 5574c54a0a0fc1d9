"""The recipes of coding agents work as printed: the files, variables and commands of the page run
against a gateway. Only the port is replaced, and the last command gets the options with which the
program answers one prompt without a person.
"""

from pathlib import Path

import pytest

from dragoman.gateway.app import create_app
from dragoman.gateway.clients import ADDRESS, read_clients
from dragoman.messages import Request, ToolResult
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule
from tests.cli.test_clients import read_sections
from tests.gateway.serving import serving
from tests.pages import read_blocks
from tests.programs import require

from .running import find_program, in_full_run, make_repository, run_program

pytestmark = [pytest.mark.exhaustive, in_full_run]

PROMPT = "'Write forty-two into made.txt'"
SHELLS = ("run_shell_command", "Bash", "exec_command", "bash")
NODE = ("node", "node_modules", ".bin")
# Where each program is installed, and the options with which it answers one prompt by itself.
PROGRAMS = {
    "aider": (("aider", "bin", "aider"), "--yes-always --message"),
    "claude-code": ((*NODE, "claude"), "--allowedTools Bash -p"),
    "claude-code-bedrock": ((*NODE, "claude"), "--allowedTools Bash -p"),
    "codex": ((*NODE, "codex"), "exec --dangerously-bypass-approvals-and-sandbox"),
    "continue": ((*NODE, "cn"), "--auto -p"),
    "copilot": ((*NODE, "copilot"), "--allow-all-tools -p"),
    "gemini-cli": ((*NODE, "gemini"), "--yolo --skip-trust -p"),
    "opencode": ((*NODE, "opencode"), "run"),
    "qwen-code": ((*NODE, "qwen"), "--approval-mode yolo -p"),
}


def answer(request: Request) -> Answer:
    """Write a file with the agent's shell, or as text if it offers no tool, as aider does."""
    tools = {tool.name: tool for tool in request.tools}
    shell = next((name for name in SHELLS if name in tools), None) or next(
        (name for name in tools if "terminal" in name.lower()), None
    )
    if shell is None:
        return Answer("made.txt\n```\nforty-two\n```\n")
    if any(isinstance(each, ToolResult) for each in request.messages):
        return Answer("All is done.")
    command = "echo forty-two > made.txt"
    given = {"cmd": command, "command": command, "description": "write", "is_background": False}
    accepted = tools[shell].parameters.get("properties") or {}
    chosen = {name: value for name, value in given.items() if name in accepted}
    return Answer("I write it.", tool_calls=[Call(shell, chosen)])


def test_every_recipe_that_was_seen_to_work_has_a_program() -> None:
    assert set(PROGRAMS) == {name for name, client in read_clients().items() if client.seen}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_recipe_runs_as_printed(name: str, tmp_path: Path) -> None:
    place, options = PROGRAMS[name]
    program = Path(find_program(*place))
    page = tmp_path / "section.md"
    page.write_text(read_sections()[name.removesuffix("-cli")])
    files = [step.file for step in read_clients()[name].steps]
    home = tmp_path / "home"
    repository = await make_repository(tmp_path, {"a.txt": "a\n"})
    model = ScriptedProvider(ScriptRule(answer))
    script = ""
    async with serving(create_app({"clever": model, "fast": model, "gpt-5.5": model})) as url:
        for file, block in zip(files, read_blocks(page), strict=True):
            text = block.text.replace(ADDRESS, url)
            if file:
                target = home / file[2:] if file.startswith("~/") else repository / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            else:
                script = f"{text.rstrip()} {options} {PROMPT}\n"
        bash = require("bash")
        status, printed = await run_program(
            [str(bash), "-c", f'export PATH="{program.parent}:$PATH"\n{script}'], repository, {}
        )
    made = repository / "made.txt"
    assert status == 0, printed[-3000:]
    assert made.read_text() == "forty-two\n", printed[-3000:]
