"""Coding agents with default settings edit a file in a small repository through the gateway."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dragoman.messages import Request, ToolResult
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule
from tests.gateway.upstream import WIRES

from .results import record_outcomes
from .running import find_program, gateway, in_full_run, make_repository, run_program

pytestmark = [pytest.mark.exhaustive, in_full_run]

OLD, NEW = 'def greet():\n    return "Hello, world"\n', 'def greet():\n    return "Hello, moon"\n'
WISH = "Say moon instead of world in greet.py"
PATCH = f"""*** Begin Patch
*** Update File: greet.py
@@
 def greet():
-{OLD.splitlines()[1]}
+{NEW.splitlines()[1]}
*** End Patch
"""


def script(file: str) -> ScriptedProvider:
    """Return a model that edits ``greet.py`` with a tool of the agent, or in plain text if the
    agent offers no suitable tool.
    """
    calls = {
        "apply_patch": {"input": PATCH},
        "exec_command": {"cmd": "sed -i s/world/moon/ greet.py"},
        "edit": {"filePath": file, "oldString": "world", "newString": "moon"},
        "replace": {"file_path": file, "instruction": WISH, "old_string": "Hello, world",
                    "new_string": "Hello, moon"},
    }  # fmt: skip

    def answer(request: Request) -> Answer:
        if isinstance(request.messages[-1], ToolResult):
            return Answer("Done.")
        offered = [name for name in calls if name in {tool.name for tool in request.tools}]
        if offered:
            return Answer("I edit it.", tool_calls=[Call(offered[0], calls[offered[0]])])
        return Answer(f"greet.py\n```\n{NEW}```\n")

    return ScriptedProvider(ScriptRule(answer))


Agent = Callable[[str, str, Path], Awaitable[tuple[int, str]]]


def codex(model: str) -> Agent:
    """Return a function that runs the Codex agent against the gateway. Codex edits files with
    free-text patches if ``model`` is a model name that it knows.
    """

    async def run(url: str, wire: str, where: Path) -> tuple[int, str]:
        settings = where.parent / "home" / ".codex"
        settings.mkdir(parents=True)
        served = f"{model}{wire}"
        lines = [
            f'model = "{served}"',
            'model_provider = "gateway"',
            "[model_providers.gateway]",
            'name = "gateway"',
        ]
        lines += [f'base_url = "{url}/v1"', 'env_key = "GATEWAY_KEY"', 'wire_api = "responses"']
        (settings / "config.toml").write_text("\n".join(lines))
        program = find_program("node", "node_modules", ".bin", "codex")
        command = [program, "exec", "--dangerously-bypass-approvals-and-sandbox", WISH]
        return await run_program(command, where, {"GATEWAY_KEY": "x"})

    return run


def opencode(package: str, version: str = "/v1") -> Agent:
    """Run the opencode agent, which calls the gateway with one of the AI SDK packages."""

    async def run(url: str, wire: str, where: Path) -> tuple[int, str]:
        provider = {
            "npm": f"@ai-sdk/{package}",
            "name": "gateway",
            "options": {"baseURL": f"{url}{version}", "apiKey": "x"},
            "models": {wire: {"name": wire}},
        }
        settings = {"provider": {"gateway": provider}, "autoupdate": False, "share": "disabled"}
        (where / "opencode.json").write_text(
            json.dumps({**settings, "permission": {"*": "allow"}})
        )
        program = find_program("node", "node_modules", ".bin", "opencode")
        return await run_program([program, "run", "-m", f"gateway/{wire}", WISH], where, {})

    return run


async def gemini_cli(url: str, wire: str, where: Path) -> tuple[int, str]:
    settings = where.parent / "home" / ".gemini"
    settings.mkdir(parents=True)
    (settings / "settings.json").write_text(
        json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}})
    )
    program = find_program("node", "node_modules", ".bin", "gemini")
    extra = {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "x"}
    return await run_program(
        [program, "-m", wire, "--yolo", "--skip-trust", "-p", WISH], where, extra
    )


def aider(vendor: str, variable: str, version: str = "") -> Agent:
    """Run the aider agent, configured for the API of one vendor."""

    async def run(url: str, wire: str, where: Path) -> tuple[int, str]:
        program = find_program("aider", "bin", "aider")
        options = [
            "--no-show-model-warnings",
            "--no-check-update",
            "--no-analytics",
            "--yes-always",
        ]
        command = [program, "--model", f"{vendor}/{wire}", *options, "--message", WISH, "greet.py"]
        keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), "x")
        return await run_program(command, where, {**keys, variable: f"{url}{version}"})

    return run


AGENTS: dict[str, Agent] = {
    "codex": codex(""),
    "codex, a model that it knows": codex("gpt-5.5-"),
    "opencode, compatible": opencode("openai-compatible"),
    "opencode, openai": opencode("openai"),
    "opencode, anthropic": opencode("anthropic"),
    "opencode, google": opencode("google", "/v1beta"),
    "gemini-cli": gemini_cli,
    "aider, openai": aider("openai", "OPENAI_API_BASE", "/v1"),
    "aider, anthropic": aider("anthropic", "ANTHROPIC_API_BASE"),
    "aider, gemini": aider("gemini", "GEMINI_API_BASE", "/v1beta"),
    "aider, ollama": aider("ollama_chat", "OLLAMA_API_BASE"),
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", AGENTS)
async def test_coding_agent_edits_a_file_through_the_gateway(
    name: str, wire: str, tmp_path: Path
) -> None:
    repository = await make_repository(tmp_path, {"greet.py": OLD})
    model = script(str(repository / "greet.py"))
    async with gateway(model, tmp_path, "gpt-5.5-") as url:
        status, printed = await AGENTS[name](url, wire, repository)
    found = (status, (repository / "greet.py").read_text())
    record_outcomes(name, wire, {"edits a file": "yes" if found == (0, NEW) else "no"})
    assert found == (0, NEW), printed[-3000:]
