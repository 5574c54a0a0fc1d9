"""Test ``dragoman mcp`` with the MCP library's own client over a pipe."""

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from dragoman.log import SqliteLog
from dragoman.permission import Policy
from dragoman.session import Session

from ..listed import Listed

pytest.importorskip("mcp", reason="the extra [mcp] is not installed")

SECRET = "sk-proj-0123456789abcdefghijklmnop"
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("search_log", {"text": "a whale"}, '"excerpt"'),
    ("search_log", {"text": "--help"}, "[]"),
    ("sum_log_cost", {"by": "model"}, '"models"'),
    ("estimate_cost", {"model": "openai:gpt-4o", "input_tokens": 1000}, '"total": "0.0025"'),
    ("list_models", {"pattern": "openai:gpt-4o"}, '"id": "openai:gpt-4o"'),
    ("plan_conversation", {"model": "openai:gpt-4o"}, '"outcome": "kept"'),
]
MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("search_log", {"text": " "}, "TEXT is empty"),
    ("sum_log_cost", {"session": "missing"}, "missing"),
    ("list_models", {"pattern": "nothing-*"}, "no model that is listed"),
    ("plan_conversation", {"model": "nothing"}, "nothing"),
]


async def test_other_agents_read_the_log_and_change_nothing(tmp_path: Path) -> None:
    from mcp import Client, StdioServerParameters

    place = tmp_path / "log.db"
    with SqliteLog(place) as log:
        async with Listed(f"A whale. {SECRET}") as model:
            await Session(model, [], Policy([]), log).run("Name a whale.")
    before = place.read_bytes()
    environment = {**os.environ, "DRAGOMAN_CONFIG": str(tmp_path / "models.yaml")}
    (tmp_path / "models.yaml").write_text("adapters: {}\n")
    command = ["-m", "dragoman", "mcp", "--log", str(place)]
    program = StdioServerParameters(command=sys.executable, args=command, env=environment)
    async with Client(program) as client:
        assert client.server_info.version == version("dragoman")
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == {name for name, _, _ in CALLS}
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        for is_error, calls in ((False, CALLS), (True, MISTAKES)):
            for name, arguments, expected in calls:
                if name == "plan_conversation":
                    arguments = {**arguments, "messages": [{"role": "user", "content": "Hello"}]}
                result = await client.call_tool(name, arguments)
                [block] = result.content
                assert block.type == "text"
                assert result.is_error == is_error, block.text
                assert expected in block.text, block.text
                assert is_error or json.loads(block.text) is not None
                assert SECRET not in block.text
    assert place.read_bytes() == before
