"""Servers of the official TypeScript SDK, of both specifications. ``tests/tools`` has servers of the Python SDK."""

from pathlib import Path

import pytest

from dragoman.tools import McpServer, Toolbox
from tests.waiting import PATIENCE, until

from .running import INSTALLED, NODE, find_program, in_full_run

pytestmark = [pytest.mark.exhaustive, in_full_run]

SERVER = Path(__file__).with_name("mcp_server.mjs")
LONG = "m" * 100


@pytest.mark.parametrize(
    ("era", "package", "version"),
    [("modern", "server", "2026-07-28"), ("earlier", "sdk", "2025-11-25")],
)
async def test_typescript_server_is_used(era: str, package: str, version: str) -> None:
    find_program("node", "node_modules", "@modelcontextprotocol", package)
    command = [str(NODE / "node"), str(SERVER), str(INSTALLED / "node"), era]
    async with McpServer(command, start_timeout=PATIENCE) as server:
        assert server._client.protocol_version == version  # noqa: SLF001 - not part of the API
        box = Toolbox(server.tools)
        seen = await box.execute("link", {})
        assert seen.content == "[resource link note://today]\nnote\nWhat to buy."
        assert (await box.execute("measure", {})).content == '{"degrees":21.5}'
        assert (await box.execute(LONG, {})).content == "long"
        await box.execute("change", {})
        await until(lambda: server._is_stale, "the notice")  # noqa: SLF001 - no other sign of it
        assert await box.refresh()
        assert (await box.execute("added", {})).content == "added"
