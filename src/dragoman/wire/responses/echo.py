"""Repeat request fields in the response. Clients need ``text.format`` to parse the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_REPEATED = (
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls",
    "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "temperature", "text",
    "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user", "background",
    "previous_response_id", "conversation",
)  # fmt: skip


def write_echo(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request fields that the response repeats."""
    found = {name: body[name] for name in _REPEATED if body.get(name) is not None}
    text = found.get("text")
    if isinstance(text, dict):
        found["text"] = {"format": {"type": "text"}, **text}
    if "tools" in found:
        found["tools"] = show_tools(found["tools"])
    return found


def show_tools(tools: Any) -> list[Any]:
    """Return the tools of a request in the form in which a response repeats them."""
    if not isinstance(tools, list):
        return []
    required = {"parameters": None, "strict": None}
    return [
        {**required, **tool} if isinstance(tool, dict) and tool.get("type") == "function" else tool
        for tool in tools
    ]
