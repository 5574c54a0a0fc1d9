"""Codex works over a WebSocket, and turns to HTTP at once where the gateway serves none."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway.app import create_app
from dragoman.gateway.http_protocol import BoundedHttpProtocol
from dragoman.messages import Request, ToolResult
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule
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


async def run_codex(url: str, folder: Path) -> tuple[int, str]:
    settings = folder / "home" / ".codex"
    settings.mkdir(parents=True)
    lines = [
        'model = "gpt-5.5"',
        'model_provider = "gateway"',
        "[model_providers.gateway]",
        'name = "gateway"',
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
    assert (status, "Bonjour." in printed) == (0, True), printed[-3000:]
    text = (tmp_path / "toy" / "a.txt").read_text()
    assert text == "Hello, world\nmoon 0\nmoon 1\nmoon 2\n"
    assert "Reconnecting" not in printed
    assert (Counting.upgrades, app.posted) == (1, []), printed[-3000:]
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
    assert (status, "Bonjour." in printed) == (0, True), printed[-3000:]
    assert Refusing.upgrades == 1, printed[-3000:]
    assert "/v1/responses" in app.posted
    assert "Reconnecting" not in printed
