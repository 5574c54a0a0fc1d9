"""Servers of the official TypeScript SDK, of both specifications, and of the Go SDK. ``tests/tools``
has servers of the Python SDK.
"""

from pathlib import Path

import pytest

from dragoman.tools import McpServer, Toolbox
from tests.waiting import PATIENCE, until

from .running import INSTALLED, NODE, find_program, in_full_run

pytestmark = [pytest.mark.exhaustive, in_full_run]

CLUSTER = """
apiVersion: v1
kind: Config
clusters: [{name: here, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: here, context: {cluster: here, user: me}}]
users: [{name: me, user: {token: unused}}]
current-context: here
"""
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


async def test_go_server_is_used(tmp_path: Path) -> None:
    """This server is built with the official Go SDK, 1.8; it describes a cluster, which is not there."""
    program = find_program("node", "node_modules", ".bin", "kubernetes-mcp-server")
    settings = tmp_path / "cluster.yaml"
    settings.write_text(CLUSTER)
    command = [str(NODE / "node"), program, "--kubeconfig", str(settings)]
    async with McpServer(command, start_timeout=PATIENCE) as server:
        assert server._client.protocol_version == "2026-07-28"  # noqa: SLF001 - not part of the API
        box = Toolbox(server.tools)
        shown = await box.execute("configuration_view", {"minified": True})
        assert not shown.is_error
        assert "server: http://127.0.0.1:9" in shown.content
        failed = await box.execute("pods_list_in_namespace", {"namespace": "default"})
        assert failed.is_error
        assert "connection refused" in failed.content
