"""Calls that an MCP server turns into tasks end as other calls do."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.permission import Decision
from dragoman.tools import McpServer, Toolbox, ToolFailure

from ..waiting import PATIENCE

pytest.importorskip("mcp", reason="the extra [mcp] is not installed")

COMMAND = [sys.executable, str(Path(__file__).with_name("task_mcp_server.py"))]


async def test_calls_that_become_tasks_end_as_other_calls_do() -> None:
    async def approve(question: dict[str, Any]) -> Decision:
        assert question["question"] == "Which one?"
        return Decision(True, "ann", input={"answer": {"colour": "blue"}})

    async with McpServer(COMMAND, start_timeout=PATIENCE) as server:
        box = Toolbox(server.tools)
        assert (await box.execute("work", {})).content == "worked"
        assert (await box.execute("log", {})).content == "get working get completed"
        seen = await box.execute("ask", {}, ask=approve)
        assert "blue" in str(seen.content)
        assert seen.details["questions"][0]["by"] == "ann"
        with pytest.raises(ToolFailure, match="the disk is full"):
            await box.execute("fail", {})
        with pytest.raises(ToolFailure, match="not today"):
            await box.execute("give_up", {})


async def test_task_is_cancelled_with_its_call() -> None:
    async with McpServer(COMMAND, start_timeout=PATIENCE) as server:
        box = Toolbox(server.tools)
        calling = asyncio.create_task(box.execute("stay", {}))
        while "get working" not in str((await box.execute("log", {})).content):
            pass
        calling.cancel()
        await asyncio.wait([calling])
        assert calling.cancelled()
        assert str((await box.execute("log", {})).content).endswith("cancel")
