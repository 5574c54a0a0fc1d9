"""The resources and prompts of an MCP server as tools that only read."""

from __future__ import annotations

from typing import Any

from ..messages import Tool

_TEXT = {"type": "string"}
_WORDS = {"type": "object", "additionalProperties": _TEXT}
# The tools have the names of the MCP library's methods.
CONTEXT_TOOLS = {
    name: Tool("", text, parameters={"type": "object", "properties": fields, "required": required})
    for name, text, fields, required in (
        ("list_resources", "List the resources of the server.", {"cursor": _TEXT}, []),
        ("read_resource", "Read a resource of the server.", {"uri": _TEXT}, ["uri"]),
        ("list_prompts", "List the prompts of the server.", {"cursor": _TEXT}, []),
        ("get_prompt", "Fill in a prompt.", {"name": _TEXT, "arguments": _WORDS}, ["name"]),
    )
}


def to_content(name: str, found: Any) -> list[Any]:
    """Convert the return value of a method of the MCP library to the content of a result."""
    from mcp_types import EmbeddedResource, TextContent

    if name == "read_resource":
        return [EmbeddedResource(resource=each) for each in found.contents]
    if name == "get_prompt":
        return [message.content for message in found.messages]
    kept = {"resources", "prompts", "next_cursor"}
    return [TextContent(text=found.model_dump_json(exclude_none=True, include=kept))]
