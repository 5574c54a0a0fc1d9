"""The resources and prompts of an MCP server as tools that only read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ..messages import Tool

_TEXT = {"type": "string"}
_WORDS = {"type": "object", "additionalProperties": _TEXT}


def _tool(text: str, fields: dict[str, Any], *required: str) -> Tool:
    return Tool("", text, {"type": "object", "properties": fields, "required": [*required]})


# The tools have the names of the MCP library's methods.
CONTEXT_TOOLS = {
    "list_resources": _tool(
        "List the resources of the server with their URIs.", {"cursor": _TEXT}
    ),
    "read_resource": _tool("Read a resource of the server.", {"uri": _TEXT}, "uri"),
    "list_prompts": _tool("List the prompts of the server.", {"cursor": _TEXT}),
    "get_prompt": _tool("Fill in a prompt.", {"name": _TEXT, "arguments": _WORDS}, "name"),
}


def list_context_tools(capabilities: Any) -> list[str]:
    """Return the names of the tools for what a server offers."""
    offered = {"resource": capabilities.resources, "prompt": capabilities.prompts}
    words = [word for word, has in offered.items() if has is not None]
    return [name for name in CONTEXT_TOOLS if any(word in name for word in words)]


def to_result(name: str, found: Any) -> Any:
    """Return what a method of the MCP library returned in the form of a tool's result."""
    if name == "read_resource":
        items = [SimpleNamespace(type="resource", resource=each) for each in found.contents]
    elif name == "get_prompt":
        items = [message.content for message in found.messages]
    else:
        kept = {"resources", "prompts", "next_cursor"}
        text = found.model_dump_json(exclude_none=True, include=kept)
        items = [SimpleNamespace(type="text", text=text)]
    return SimpleNamespace(content=items, structured_content=None, is_error=False)
