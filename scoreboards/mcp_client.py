"""The program that the MCP conformance suite runs: open a server by ``McpServer``, call its tools.

    python -m scoreboards.mcp_client URL

The arguments of a call are made from the tool's schema.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from dragoman.tools import McpServer, Toolbox, ToolFailure

PATIENCE = 100.0  # seconds; the suite itself limits the time of a client
VALUES: dict[str, Any] = {
    "string": "test",
    "integer": 5,
    "number": 3,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


def make_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an argument for each property of a schema."""
    properties = schema.get("properties", {})
    return {
        name: each.get("default", each.get("const", VALUES.get(str(each.get("type")), "test")))
        for name, each in properties.items()
        if isinstance(each, dict) and "$ref" not in each
    }


def find_arguments() -> dict[str, list[dict[str, Any]]]:
    """Return the arguments of the calls that the scenario asks for, by the name of the tool."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    calls: dict[str, list[dict[str, Any]]] = {}
    for call in context.get("toolCalls", ()):
        calls.setdefault(call["name"], []).append(call.get("arguments", {}))
    return calls


async def main(url: str) -> None:
    """Open the server and call each of its tools."""
    wanted = find_arguments()
    async with McpServer(url, start_timeout=PATIENCE, timeout=PATIENCE) as server:
        tools = Toolbox(server.tools)
        for tool in server.tools:
            usual = [make_arguments(tool.description.parameters)]
            if tool.name == "json_schema_echo":  # one scenario asks which schema was received
                usual = [{"schema": server.tools[0].description.parameters}]
            for arguments in wanted.get(tool.name, usual):
                try:
                    print(tool.name, await tools.execute(tool.name, arguments))
                except ToolFailure as failure:
                    print(f"{tool.name}: {failure}", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
