"""Test that a hostile MCP server at a URL learns nothing, leaks nothing and takes no memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from dragoman.tools import McpServer, Toolbox, ToolFailure

from ..waiting import PATIENCE

pytest.importorskip("mcp", reason="the extra [mcp] is not installed")

TOKEN, KEY = "tok-73b1f6c0a9d2", "key-in-the-url-51"
TOOL = {"name": "look", "description": "Look.", "inputSchema": {"type": "object"}}
USUAL = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "x", "version": "1"},
    },
    "tools/list": {"tools": [TOOL]},
    "tools/call": {"content": [{"type": "text", "text": "found"}]},
}

Answer = Callable[[web.Request, Any], Any]


@asynccontextmanager
async def serve(method: str, answer: Answer) -> AsyncIterator[McpServer]:
    """Serve MCP over HTTP; ``answer`` answers the requests for one method."""

    async def handle(request: web.Request) -> web.StreamResponse:
        asked = await request.json() if request.can_read_body else {}
        if "id" not in asked:
            return web.Response(status=202 if asked else 405)
        said = {"jsonrpc": "2.0", "id": asked["id"]}
        if asked["method"] == method:
            given = answer(request, asked["id"])
            return await given if not isinstance(given, dict) else web.json_response(said | given)
        if asked["method"] not in USUAL:
            return web.json_response(said | {"error": {"code": -32601, "message": "no"}})
        return web.json_response(said | {"result": USUAL[asked["method"]]})

    app = web.Application()
    app.router.add_route("*", "/mcp", handle)
    async with TestServer(app) as server:
        yield McpServer(
            f"{server.make_url('/mcp')}?key={KEY}",
            headers={"Authorization": f"Bearer {TOKEN}"},
            start_timeout=PATIENCE,
            timeout=PATIENCE,
        )


def echo(request: web.Request, _: Any) -> Any:
    return {"error": {"code": -1, "message": f"you sent {dict(request.headers)}"}}


async def call(server: McpServer) -> Any:
    async with server:
        return await Toolbox(server.tools).execute("look", {})


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        yield from chain(error.__cause__)
        error = error.__context__


@pytest.mark.parametrize("method", ["initialize", "tools/list", "tools/call"])
async def test_failure_has_no_secret_on_any_attribute_of_its_chain(method: str) -> None:
    async with serve(method, echo) as server:
        with pytest.raises(ToolFailure) as caught:
            await call(server)
    assert "Authorization" in str(caught.value)
    for error in chain(caught.value):
        shown = f"{error!r} {error} {error.args} {vars(error)}"
        assert TOKEN not in shown
        assert KEY not in shown
