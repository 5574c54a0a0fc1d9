"""Coding agents with default settings edit a file in a small repository through the gateway."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dragoman.messages import Request, ToolResult
from dragoman.sim import Answer, Call, Fault, RequestMatch, ScriptedProvider, ScriptRule
from tests.gateway.upstream import WIRES

from .results import record_outcomes
from .running import find_program, gateway, in_full_run, make_repository, run_program

pytestmark = [pytest.mark.exhaustive, in_full_run]

OLD = 'def greet():\n    return "Hello, world"\n'
NEW = 'def greet():\n    return "Hello, moon"\n'
WISH = "Say moon instead of world in greet.py"
REFUSED = "Ask for a model that is not there"
PATCH = f"""*** Begin Patch
*** Update File: greet.py
@@
 def greet():
-{OLD.splitlines()[1]}
+{NEW.splitlines()[1]}
*** End Patch
"""


READS = ("Read", "read_file")
# Codex offers models of the family Responses Lite one tool that runs JavaScript, which calls others.
LITE = "functions__exec"
EDITS = (LITE, "apply_patch", "exec_command", "edit", "replace", "Edit", "MultiEdit")
SCRIPT = 'text(await tools.exec_command({cmd: "sed -i s/world/moon/ greet.py"}))'


def script(file: str) -> ScriptedProvider:
    """Return a model that reads and edits ``greet.py`` with the tools of the agent, or answers in
    plain text if the agent offers no suitable tool.
    """
    change = {"old_string": "Hello, world", "new_string": "Hello, moon"}
    renamed = {"oldString": "Hello, world", "newString": "Hello, moon"}
    files = dict.fromkeys(("filePath", "file_path", "filepath", "absolute_path"), file)
    arguments = {"input": PATCH, "cmd": "sed -i s/world/moon/ greet.py", "instruction": WISH,
                 "edits": [change], **change, **renamed, **files}  # fmt: skip

    def answer(request: Request) -> Answer:
        tools = {tool.name: tool for tool in request.tools}
        found = [[tools[name] for name in names if name in tools] for names in (READS, EDITS)]
        planned = [offered[0] for offered in found if offered and found[1]]
        done = sum([isinstance(each, ToolResult) for each in request.messages])
        if done < len(planned):
            accepted = planned[done].parameters.get("properties") or {"input"}
            chosen = {name: value for name, value in arguments.items() if name in accepted}
            if planned[done].name == LITE:
                chosen = {"input": SCRIPT}
            return Answer("I edit it.", tool_calls=[Call(planned[done].name, chosen)])
        return Answer("Done." if planned else f"greet.py\n```\n{NEW}```\n")

    failing = ScriptRule("", RequestMatch(pattern=REFUSED), fault=Fault(status=404))
    return ScriptedProvider(failing, ScriptRule(answer))


Agent = Callable[[str, str, Path, str], Awaitable[tuple[int, str]]]


def codex(model: str) -> Agent:
    """Return a function that runs the Codex agent against the gateway. Codex edits files with
    free-text patches if ``model`` is a model name that it knows, and sends its tools in an input
    item if it is a name of the family Responses Lite.
    """

    async def run(url: str, wire: str, where: Path, prompt: str) -> tuple[int, str]:
        settings = where.parent / "home" / ".codex"
        settings.mkdir(parents=True, exist_ok=True)
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
        command = [program, "exec", "--dangerously-bypass-approvals-and-sandbox", prompt]
        return await run_program(command, where, {"GATEWAY_KEY": "x"})

    return run


def opencode(package: str, version: str = "/v1") -> Agent:
    """Run the opencode agent, which calls the gateway with one of the AI SDK packages."""

    async def run(url: str, wire: str, where: Path, prompt: str) -> tuple[int, str]:
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
        return await run_program([program, "run", "-m", f"gateway/{wire}", prompt], where, {})

    return run


async def gemini_cli(url: str, wire: str, where: Path, prompt: str) -> tuple[int, str]:
    settings = where.parent / "home" / ".gemini"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "settings.json").write_text(
        json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}})
    )
    program = find_program("node", "node_modules", ".bin", "gemini")
    extra = {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "x"}
    return await run_program(
        [program, "-m", wire, "--yolo", "--skip-trust", "-p", prompt], where, extra
    )


def aider(vendor: str, variable: str, version: str = "") -> Agent:
    """Run the aider agent, configured for the API of one vendor."""

    async def run(url: str, wire: str, where: Path, prompt: str) -> tuple[int, str]:
        program = find_program("aider", "bin", "aider")
        options = [
            "--no-show-model-warnings",
            "--no-check-update",
            "--no-analytics",
            "--yes-always",
        ]
        command = [
            program,
            "--model",
            f"{vendor}/{wire}",
            *options,
            "--message",
            prompt,
            "greet.py",
        ]
        keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), "x")
        return await run_program(command, where, {**keys, variable: f"{url}{version}"})

    return run


def qwen_code(side: str, version: str = "") -> Agent:
    """Run the qwen-code agent, configured for the API of one vendor."""

    async def run(url: str, wire: str, where: Path, prompt: str) -> tuple[int, str]:
        program = find_program("node", "node_modules", ".bin", "qwen")
        base = "GOOGLE_GEMINI_BASE_URL" if side == "gemini" else f"{side.upper()}_BASE_URL"
        keys = {f"{side.upper()}_API_KEY": "x", base: f"{url}{version}"}
        options = ["--auth-type", side, "-m", wire, "--approval-mode", "yolo"]
        return await run_program([program, *options, "-p", prompt], where, keys)

    return run


def continue_cli(provider: str, version: str = "") -> Agent:
    """Run the command line agent of Continue, configured for the API of one vendor."""

    async def run(url: str, wire: str, where: Path, prompt: str) -> tuple[int, str]:
        model = {"name": wire, "provider": provider, "model": wire, "apiBase": f"{url}{version}",
                 "apiKey": "x", "roles": ["chat"], "capabilities": ["tool_use"]}  # fmt: skip
        settings = where.parent / "continue.yaml"
        head = {"name": "test", "version": "0.0.1", "schema": "v1"}
        settings.write_text(json.dumps({**head, "models": [model]}))
        program = find_program("node", "node_modules", ".bin", "cn")
        command = [program, "--config", str(settings), "--auto", "-p", prompt]
        return await run_program(command, where, {"CONTINUE_TELEMETRY_ENABLED": "0"})

    return run


AGENTS: dict[str, Agent] = {
    "codex": codex(""),
    "codex, a model that it knows": codex("gpt-5.5-"),
    "codex, a lite model": codex("gpt-5.6-sol-"),
    "opencode, compatible": opencode("openai-compatible"),
    "opencode, openai": opencode("openai"),
    "opencode, anthropic": opencode("anthropic"),
    "opencode, google": opencode("google", "/v1beta"),
    "gemini-cli": gemini_cli,
    "aider, openai": aider("openai", "OPENAI_API_BASE", "/v1"),
    "aider, anthropic": aider("anthropic", "ANTHROPIC_API_BASE"),
    "aider, gemini": aider("gemini", "GEMINI_API_BASE", "/v1beta"),
    "aider, ollama": aider("ollama_chat", "OLLAMA_API_BASE"),
    "continue, openai": continue_cli("openai", "/v1"),
    "continue, anthropic": continue_cli("anthropic", "/v1"),
    "continue, ollama": continue_cli("ollama"),
    "qwen-code, openai": qwen_code("openai", "/v1"),
    "qwen-code, anthropic": qwen_code("anthropic"),
    "qwen-code, gemini": qwen_code("gemini"),
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", AGENTS)
async def test_coding_agent_edits_a_file_and_shows_an_error_through_the_gateway(
    name: str, wire: str, tmp_path: Path
) -> None:
    repository = await make_repository(tmp_path, {"greet.py": OLD})
    model = script(str(repository / "greet.py"))
    async with gateway(model, tmp_path, "gpt-5.5-", "gpt-5.6-sol-") as url:
        status, printed = await AGENTS[name](url, wire, repository, WISH)
        found = (status, (repository / "greet.py").read_text())
        _, refusal = await AGENTS[name](url, wire, repository, REFUSED)
    shown = " ".join(refusal.split())  # aider breaks lines
    outcomes = {"edits a file": found == (0, NEW), "shows an error": "scripted failure" in shown}
    record_outcomes(name, wire, {case: "yes" if ok else "no" for case, ok in outcomes.items()})
    assert all(outcomes.values()), f"{printed[-3000:]}\n{refusal[-3000:]}"
