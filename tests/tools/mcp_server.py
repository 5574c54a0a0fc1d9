"""Run an MCP server for tests, over standard input and output."""

import asyncio
import os
import sys
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ImageContent, TextContent
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    EmbeddedResource,
    InputRequiredResult,
    ResourceLink,
    ToolAnnotations,
)

server = MCPServer("tools of a test")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(read_only_hint=False))
def fail() -> str:
    """Raise an error."""
    raise ToolError("no such thing")


@server.tool()
def show() -> list[TextContent | ImageContent]:
    """Return a picture."""
    picture = ImageContent(type="image", data="iVBORw0KGgo=", mime_type="image/png")
    return [TextContent(type="text", text="a picture"), picture]


@server.tool()
def link() -> CallToolResult:
    """Return links to two resources; only one has every field."""
    fields = {"title": "The note", "description": "What to buy.", "mime_type": "text/plain"}
    described = ResourceLink(name="note", uri="note://today", size=8, **fields)
    return CallToolResult(content=[described, ResourceLink(name="b", uri="file:///b.txt")])


@server.tool()
def play() -> CallToolResult:
    """Return audio, and resources with binary data."""
    blobs = {"note://a": "audio/wav", "note://b": "application/pdf", "note://c": "application/zip"}
    blobs |= {"note://d": "image/png", "note://e": None}
    found = [
        EmbeddedResource(resource=BlobResourceContents(uri=uri, mime_type=kind, blob="UklGRg=="))
        for uri, kind in blobs.items()
    ]
    return CallToolResult(content=[AudioContent(data="UklGRg==", mime_type="audio/wav"), *found])


@server.tool()
def measure(text: str | None = None) -> CallToolResult:
    """Return data in structured content, next to this text if there is one."""
    content = [] if text is None else [TextContent(type="text", text=text)]
    return CallToolResult(content=content, structured_content={"degrees": 21.5})


@server.tool(name="m" * 128)
def name() -> str:
    """Return a text; the name is as long as the protocol allows."""
    return "long"


@server.tool()
def keys() -> str:
    """List the names of the environment variables."""
    return " ".join(sorted(os.environ))


@server.tool()
async def identify(context: Context) -> str:  # type: ignore[type-arg]
    """Report progress twice, and return the key of the call."""
    await context.report_progress(1, 2, "half")
    await context.report_progress(float("nan"))
    meta = context.request_context.meta
    return " ".join(str(meta[f"dragoman/{name}"]) for name in ("intent-id", "session", "attempt"))


@server.tool()
def vanish() -> str:
    """End the server in the middle of a call."""
    os._exit(3)


@server.tool()
async def sleep() -> str:
    """Sleep for ten minutes, which is longer than the timeout of the client."""
    await asyncio.sleep(600)
    return "late"


@server.tool()
def talk() -> str:
    """Return a long text."""
    return "word " * 10_000


@server.tool()
def choose(ctx: Context) -> str | InputRequiredResult:
    """Ask for a size and a colour, and return the answer."""
    if ctx.input_responses is not None:
        return str(ctx.input_responses["form"])
    sizes = {"size": {"type": "integer", "default": 7}, "colour": {"type": "string"}}
    form = {"type": "object", "properties": sizes, "required": ["colour"]}
    asked = ElicitRequestFormParams(message="Which one?", requested_schema=form)
    return InputRequiredResult(input_requests={"form": ElicitRequest(params=asked)})


@server.resource("note://today")
def today() -> str:
    """Return a note."""
    return "buy milk"


@server.prompt()
def review(code: str) -> str:
    """Ask for a review."""
    return f"Review {code}."


@server.tool()
def visit(ctx: Context, url: str) -> str | InputRequiredResult:
    """Ask the user to visit a page, and return the answer."""
    if ctx.input_responses is not None:
        return str(ctx.input_responses["page"])
    asked = ElicitRequestURLParams(message="Pay here.", url=url, elicitation_id="1")
    return InputRequiredResult(input_requests={"page": ElicitRequest(params=asked)})


@server.tool()
def leak() -> str:
    """Return the secret header that the client sends with every request."""
    return f"you sent {os.environ.get('MCP_EXPECTED')}"


def guard(app: Any, expected: str) -> Any:
    """Return an application that rejects a wrong ``authorization`` header and echoes it."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers") or {}).get(b"authorization", b"")
        if scope["type"] != "http" or given == expected.encode():
            await app(scope, receive, send)
            return
        body = b"refused: " + given
        await send(
            {"type": "http.response.start", "status": 401,
             "headers": [(b"content-type", b"text/plain")]},
        )  # fmt: skip
        await send({"type": "http.response.body", "body": body})

    return guarded


if __name__ == "__main__":
    if sys.argv[1:2] == ["--http"]:
        app = guard(server.streamable_http_app(), os.environ["MCP_EXPECTED"])
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="critical")
    server.run("stdio")
