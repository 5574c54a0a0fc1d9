"""Run an MCP server that turns calls into tasks, over standard input and output."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from mcp.server import MCPServer
from mcp.server.extension import Extension, MethodBinding
from mcp_types import RequestParams

NOW = "2026-11-19T00:00:00Z"
TIMES = {"createdAt": NOW, "lastUpdatedAt": NOW, "ttlMs": None, "pollIntervalMs": 1}
FORM = {
    "method": "elicitation/create",
    "params": {
        "message": "Which one?",
        "requestedSchema": {"type": "object", "properties": {"colour": {"type": "string"}}},
    },
}


class TaskParams(RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class Tasks(Extension):
    """Keep tasks in memory; the second poll of a task finds it at its end."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.names = map(str, itertools.count())
        self.tasks: dict[str, dict[str, Any]] = {}
        self.ends: dict[str, dict[str, Any]] = {}

    def methods(self) -> Sequence[MethodBinding]:
        handlers = {"get": self.get, "update": self.update, "cancel": self.cancel}
        return [
            MethodBinding(f"tasks/{name}", TaskParams, each) for name, each in handlers.items()
        ]

    async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
        if params.name == "log":
            return await call_next(ctx)
        task = {"taskId": next(self.names), "status": "working", **TIMES}
        self.tasks[task["taskId"]] = task
        if params.name == "ask":
            self.ends[task["taskId"]] = {"status": "input_required", "inputRequests": {"q": FORM}}
        elif params.name == "fail":
            error = {"code": -32099, "message": "the disk is full"}
            self.ends[task["taskId"]] = {"status": "failed", "error": error}
        elif params.name == "give_up":
            self.ends[task["taskId"]] = {"status": "cancelled", "statusMessage": "not today"}
        elif params.name == "work":
            content = [{"type": "text", "text": "worked"}]
            self.ends[task["taskId"]] = {"status": "completed", "result": {"content": content}}
        return {"resultType": "task", **task}

    async def get(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        task = dict(self.tasks[params.task_id])
        self.tasks[params.task_id] |= self.ends.get(params.task_id, {})
        LOG.append(f"get {task['status']}")
        return {"resultType": "complete", **task}

    async def update(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        text = str(params.input_responses)
        content = [{"type": "text", "text": text}]
        done = {"status": "completed", "result": {"content": content, "isError": False}}
        self.tasks[params.task_id] |= done
        self.ends.pop(params.task_id)
        return {"resultType": "complete"}

    async def cancel(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        LOG.append("cancel")
        return {"resultType": "complete"}


LOG: list[str] = []
server = MCPServer("tasks", extensions=[Tasks()])


def never() -> str:
    """Never run: its calls become tasks."""
    raise AssertionError


for name in ("work", "ask", "fail", "give_up", "stay"):
    server.add_tool(never, name=name, structured_output=False)


@server.tool()
async def log() -> str:
    """List the requests about tasks."""
    await asyncio.sleep(0)
    return " ".join(LOG)


if __name__ == "__main__":
    server.run("stdio")
