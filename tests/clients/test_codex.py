"""Codex works over a WebSocket, and turns to HTTP at once where the gateway serves none."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.events import Usage
from dragoman.gateway.app import create_app
from dragoman.gateway.http_protocol import BoundedHttpProtocol
from dragoman.messages import Request, ToolResult
from dragoman.provider import connect
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule, SimServer
from tests.gateway.serving import serving

from .running import find_program, in_full_run, make_repository, run_program

pytestmark = [pytest.mark.exhaustive, in_full_run]


class Counting(BoundedHttpProtocol):
    """Count the requests for a WebSocket."""

    upgrades = 0

    def _upgrade(self, rest: bytes) -> None:
        type(self).upgrades += 1
        super()._upgrade(rest)


class Refusing(Counting):
    """Serve no WebSocket, as a proxy that does not know them."""

    def _upgrade(self, rest: bytes) -> None:
        self.app_state.pop("socket_paths", None)
        super()._upgrade(rest)


class Watched:
    """Note the messages of the clients and the paths that they post to."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.posted: list[str] = []
        self.messages: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def note() -> Any:
            message = await receive()
            if message["type"] == "websocket.receive":
                self.messages.append(json.loads(message["text"]))
            return message

        if scope["type"] == "http" and scope["method"] == "POST":
            self.posted.append(scope["path"])
        await self.app(scope, note if scope["type"] == "websocket" else receive, send)


async def run_codex(
    url: str, folder: Path, *more: str, provider: str = "gateway"
) -> tuple[int, str]:
    settings = folder / "home" / ".codex"
    settings.mkdir(parents=True)
    lines = [
        'model = "gpt-5.5"',
        'model_provider = "gateway"',
        *more,
        "[model_providers.gateway]",
        f'name = "{provider}"',
        f'base_url = "{url}/v1"',
        'wire_api = "responses"',
        "supports_websockets = true",
    ]
    (settings / "config.toml").write_text("\n".join(lines))
    repository = await make_repository(folder, {"a.txt": "Hello, world\n"})
    program = find_program("node", "node_modules", ".bin", "codex")
    command = [program, "exec", "--dangerously-bypass-approvals-and-sandbox", "Say moon."]
    return await run_program(command, repository, {})


def edit_three_times(request: Request) -> Answer:
    """Call Codex's shell three times, then answer."""
    done = sum([isinstance(each, ToolResult) for each in request.messages])
    if done == 3:
        return Answer("Bonjour.")
    call = Call("exec_command", {"cmd": f"echo moon {done} >> a.txt"})
    return Answer(f"Step {done}.", tool_calls=[call])


async def test_codex_calls_its_tools_over_one_websocket(tmp_path: Path) -> None:
    model = ScriptedProvider(ScriptRule(edit_three_times))
    app = Watched(create_app({"gpt-5.5": model}))
    Counting.upgrades = 0
    async with serving(app, http=Counting) as url:
        status, printed = await run_codex(url, tmp_path)
    assert status == 0, printed[-3000:]
    assert "Bonjour." in printed, printed[-3000:]
    text = (tmp_path / "toy" / "a.txt").read_text()
    assert text == "Hello, world\nmoon 0\nmoon 1\nmoon 2\n"
    assert "Reconnecting" not in printed
    assert Counting.upgrades == 1, printed[-3000:]
    assert app.posted == [], printed[-3000:]
    continued = [each for each in app.messages if each.get("previous_response_id")]
    assert len(continued) >= 3, "Codex sends only what is new"
    assert all(len(each["input"]) < 4 for each in continued[-3:])
    results = [each for each in model.requests[-1].messages if isinstance(each, ToolResult)]
    assert len(results) == 3, "the model got the complete conversation"


async def test_codex_asks_once_for_a_websocket_and_then_uses_http(tmp_path: Path) -> None:
    app = Watched(create_app({"gpt-5.5": ScriptedProvider("Bonjour.")}))
    Refusing.upgrades = 0
    async with serving(app, http=Refusing) as url:
        status, printed = await run_codex(url, tmp_path)
    assert status == 0, printed[-3000:]
    assert "Bonjour." in printed, printed[-3000:]
    assert Refusing.upgrades == 1, printed[-3000:]
    assert "/v1/responses" in app.posted
    assert "Reconnecting" not in printed


def fill_the_window(request: Request) -> Answer:
    """Call Codex's shell and use up the window; answer when the conversation is short again."""
    asked = str(request.messages[-1])
    if "CONTEXT CHECKPOINT COMPACTION" in asked:
        return Answer("The moon was looked for.", usage=Usage(input_tokens=900, output_tokens=9))
    if "The moon was looked for." in str(request.messages):
        return Answer("Bonjour.", usage=Usage(input_tokens=900, output_tokens=9))
    call = Call("exec_command", {"cmd": "echo moon"})
    return Answer("I look.", tool_calls=[call], usage=Usage(input_tokens=90_000, output_tokens=9))


async def compact(tmp_path: Path, provider: str) -> tuple[int, str]:
    """Run Codex with a window that its first call uses up, and a model of another wire."""
    script = ScriptedProvider(ScriptRule(fill_the_window))
    with SimServer(script, models=("sim",)) as upstream:
        model = connect("sim", wire="openai", base_url=upstream.base_urls["openai"])
        async with serving(create_app({"gpt-5.5": model})) as url:
            limit = "model_auto_compact_token_limit = 50000"
            return await run_codex(url, tmp_path, limit, provider=provider)


async def test_codex_compacts_by_itself_as_the_recipe_names_the_provider(tmp_path: Path) -> None:
    status, printed = await compact(tmp_path, "Dragoman")
    assert status == 0, printed[-3000:]
    assert "Bonjour." in printed, printed[-3000:]


async def test_codex_shows_why_a_provider_named_openai_compacts_nothing(tmp_path: Path) -> None:
    status, printed = await compact(tmp_path, "OpenAI")
    assert status != 0, printed[-3000:]
    assert "by another name of the provider than OpenAI" in printed, printed[-3000:]
