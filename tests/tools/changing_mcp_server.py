"""Run an MCP server whose tools change, over standard input and output.

The argument is what clients notice: ``notice`` sends changes, ``ttl`` limits the lifetime of the list.
"""

import sys

from mcp.server import MCPServer
from mcp.server.caching import CacheHint
from mcp.server.mcpserver import Context

MODE = sys.argv[1]
TTL = {"tools/list": CacheHint(ttl_ms=1)}
server = MCPServer("changing", cache_hints=TTL if MODE == "ttl" else None)


def work(text: str = "") -> str:
    """Work."""
    return "worked"


def other(number: int) -> str:
    """Work otherwise."""
    return f"worked {number}"


server.add_tool(work, name="first")


@server.tool()
async def change(ctx: Context, add: str = "", replace: str = "", remove: str = "") -> str:
    """Add, replace or remove a tool."""
    if add:
        server.add_tool(work, name=add)
    if replace or remove:
        server.remove_tool(replace or remove)
    if replace:
        server.add_tool(other, name=replace)
    if MODE == "notice":
        await ctx.notify_tools_changed()
        await ctx.session.send_tool_list_changed()
    return "changed"


if __name__ == "__main__":
    server.run("stdio")
