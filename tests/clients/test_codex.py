"""Codex turns to HTTP at once, without an error, where the gateway refuses its WebSocket."""

from pathlib import Path

import pytest

from dragoman.gateway.app import create_app
from dragoman.gateway.http_protocol import BoundedHttpProtocol
from dragoman.sim import ScriptedProvider
from tests.gateway.serving import serving

from .running import find_program, in_full_run, make_repository, run_program

pytestmark = [pytest.mark.exhaustive, in_full_run]


class Counting(BoundedHttpProtocol):
    """Count the requests for a WebSocket."""

    upgrades = 0

    def _ignore_upgrade(self, rest: bytes) -> None:
        type(self).upgrades += 1
        super()._ignore_upgrade(rest)


async def test_codex_asks_once_for_a_websocket_and_then_uses_http(tmp_path: Path) -> None:
    repository = await make_repository(tmp_path, {"a.txt": "a\n"})
    settings = tmp_path / "home" / ".codex"
    settings.mkdir(parents=True)
    program = find_program("node", "node_modules", ".bin", "codex")
    command = [program, "exec", "--dangerously-bypass-approvals-and-sandbox", "Hi"]
    Counting.upgrades = 0
    app = create_app({"gpt-5.5": ScriptedProvider("Bonjour.")})
    async with serving(app, http=Counting) as url:
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
        status, printed = await run_program(command, repository, {})
    assert (status, "Bonjour." in printed) == (0, True), printed[-3000:]
    assert Counting.upgrades == 1, printed[-3000:]
    assert "Reconnecting" not in printed
