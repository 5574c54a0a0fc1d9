"""The resources and prompts of an MCP server as tools that only read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ..messages import Tool

_TEXT = {"type": "string"}
_WORDS = {"type": "object", "additionalProperties": _TEXT}
# The tools have the names of the MCP library's methods.
CONTEXT_TOOLS = {
    name: Tool("", text, {"type": "object", "properties": fields, "required": required})
    for name, text, fields, required in (
        ("list_resources", "List the resources of the server.", {"cursor": _TEXT}, []),
        ("read_resource", "Read a resource of the server.", {"uri": _TEXT}, ["uri"]),
        ("list_prompts", "List the prompts of the server.", {"cursor": _TEXT}, []),
        ("get_prompt", "Fill in a prompt.", {"name": _TEXT, "arguments": _WORDS}, ["name"]),
    )
}


def list_context_tools(capabilities: Any) -> list[str]:
    """Return the names of the tools for the resources and prompts that a server offers."""
    offered = {"resource": capabilities.resources, "prompt": capabilities.prompts}
    words = [word for word, has in offered.items() if has is not None]
    return [name for name in CONTEXT_TOOLS if any(word in name for word in words)]


def to_result(name: str, found: Any) -> Any:
    """Convert the return value of a method of the MCP library to a tool's result."""
    if name == "read_resource":
        items = [SimpleNamespace(type="resource", resource=each) for each in found.contents]
    elif name == "get_prompt":
        items = [message.content for message in found.messages]
    else:
        kept = {"resources", "prompts", "next_cursor"}
        text = found.model_dump_json(exclude_none=True, include=kept)
        items = [SimpleNamespace(type="text", text=text)]
    return SimpleNamespace(content=items, structured_content=None, is_error=False)
