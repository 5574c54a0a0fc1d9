"""The resources and prompts of an MCP server as tools that only read."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec

from ..messages import Tool

_TEXT = {"type": "string"}
_PAGE = {"type": "object", "properties": {"cursor": _TEXT}}
_WORDS = {"type": "object", "additionalProperties": _TEXT}
CONTEXT_TOOLS = {
    "list_resources": Tool("", "List the resources of the server, with their URIs.", _PAGE),
    "read_resource": Tool(
        "",
        "Read a resource of the server by its URI.",
        {"type": "object", "properties": {"uri": _TEXT}, "required": ["uri"]},
    ),
    "list_prompts": Tool("", "List the prompts of the server, with their arguments.", _PAGE),
    "get_prompt": Tool(
        "",
        "Return a prompt of the server, filled with arguments.",
        {
            "type": "object",
            "properties": {"name": _TEXT, "arguments": _WORDS},
            "required": ["name"],
        },
    ),
}
"""The tools by their names, which are those of the MCP library's methods."""


def list_context_tools(capabilities: Any) -> list[str]:
    """Return the names of the tools for what a server offers."""
    offered = {"resource": capabilities.resources, "prompt": capabilities.prompts}
    return [
        name
        for name in CONTEXT_TOOLS
        if any(word in name and has is not None for word, has in offered.items())
    ]


def to_result(name: str, found: Any) -> Any:
    """Return what a method of the MCP library returned in the form of a tool's result."""
    if name == "read_resource":
        items = [SimpleNamespace(type="resource", resource=each) for each in found.contents]
    elif name == "get_prompt":
        items = [message.content for message in found.messages]
    else:
        listed: Mapping[str, Any] = found.model_dump(mode="json", exclude_none=True)
        kept = ("resources", "prompts", "next_cursor")
        shown = {key: listed[key] for key in kept if listed.get(key)}
        items = [SimpleNamespace(type="text", text=msgspec.json.encode(shown).decode())]
    return SimpleNamespace(content=items, structured_content=None, is_error=False)
