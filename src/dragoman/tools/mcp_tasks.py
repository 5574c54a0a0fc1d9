"""Calls that an MCP server turns into tasks: poll them, answer their questions, cancel them.

This is the client side of the extension ``io.modelcontextprotocol/tasks`` (SEP-2663, merged before
2026-07-28; Python SDK 2.3.0 has no client of its own). A server answers ``tools/call`` with a task
only if the client declares the extension.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Literal

_POLLS = (0.05, 1.0, 60.0)  # seconds between two polls: at least, by default, at most
_CANCELLING = 5.0  # seconds to wait while a server is asked to cancel a task
_TASKS = "io.modelcontextprotocol/tasks"


def make_tasks() -> Any:
    """Return the extension for a ``Client`` of the MCP library."""
    from mcp.client import ClientExtension, ResultClaim
    from mcp_types import Result

    class CreatedTask(Result):
        """The answer to a call that became a task."""

        result_type: Literal["task"] = "task"
        task_id: str
        poll_interval_ms: int | None = None

    class Tasks(ClientExtension):
        identifier = _TASKS

        def claims(self) -> Any:
            return [ResultClaim(result_type="task", model=CreatedTask, resolve=_finish)]

    return Tasks()


async def _finish(created: Any, context: Any) -> Any:
    """Poll a task until it ends; return the result of the call that it stands for."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import INTERNAL_ERROR, CallToolResult, Result

    class Task(Result):
        status: str
        status_message: str | None = None
        poll_interval_ms: int | None = None
        result: dict[str, Any] | None = None
        error: dict[str, Any] | None = None
        input_requests: dict[str, Any] | None = None

    pause = _read_pause(created)
    answered = set[str]()
    try:
        while True:
            task = await context.session.send_request(_ask("tasks/get", created.task_id), Task)
            if task.status == "completed" and task.result is not None:
                return CallToolResult.model_validate(task.result)
            if task.status not in ("working", "input_required"):
                error = task.error or {}
                why = error.get("message") or task.status_message or f"the task is {task.status}"
                raise MCPError(int(error.get("code", INTERNAL_ERROR)), str(why))
            asked = task.input_requests or {}
            fresh = {key: asked[key] for key in asked if key not in answered}
            if task.status == "input_required" and fresh:
                answered |= fresh.keys()
                await _answer(created.task_id, fresh, context.session)
            pause = _read_pause(task, pause)
            await asyncio.sleep(pause)
    except asyncio.CancelledError:
        cancelling = asyncio.ensure_future(
            context.session.send_request(_ask("tasks/cancel", created.task_id), Result)
        )
        with contextlib.suppress(Exception):
            await asyncio.wait_for(cancelling, _CANCELLING)
        raise


async def _answer(task: str, asked: dict[str, Any], session: Any) -> None:
    """Answer the questions of a task as those of a call are answered."""
    from mcp.client.session import ClientRequestContext
    from mcp_types import InputRequest, Result
    from pydantic import TypeAdapter

    requests: TypeAdapter[Any] = TypeAdapter(InputRequest)
    answers: dict[str, Any] = {}
    for key, each in asked.items():
        context = ClientRequestContext(session=session, request_id=key, meta=None)
        answer = await session.dispatch_input_request(context, requests.validate_python(each))
        answers[key] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
    await session.send_request(_ask("tasks/update", task, inputResponses=answers), Result)


def _ask(method: str, task: str, **more: Any) -> Any:
    """Return a request about a task; its id is also sent in the header ``Mcp-Name``."""
    from mcp_types import Request

    class TaskRequest(Request[dict[str, Any], str]):
        name_param = "taskId"

    return TaskRequest(method=method, params={"taskId": task, **more})


def _read_pause(task: Any, default: float = _POLLS[1]) -> float:
    """Return how many seconds to wait before the next poll: the server proposes a number."""
    if task.poll_interval_ms is None:
        return default
    proposed: float = task.poll_interval_ms / 1000
    return min(max(proposed, _POLLS[0]), _POLLS[2])
