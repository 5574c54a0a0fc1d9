"""Repeat request fields in the response. Clients need ``text.format`` to parse the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Open Responses requires these fields in every response, even if the client did not set them.
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(
        (
            "access_programs", "error", "incomplete_details", "instructions", "max_output_tokens",
            "max_tool_calls", "previous_response_id", "prompt_cache_key", "reasoning",
            "safety_identifier",
        )
    ),
    "background": False,
    "frequency_penalty": 0.0,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "service_tier": "default",
    "store": False,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",

}  # fmt: skip
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
    if isinstance(found.get("reasoning"), dict):
        found["reasoning"] = {"effort": None, "summary": None, **found["reasoning"]}
    if "tools" in found:
        found["tools"] = show_tools(found["tools"])
    # a request may name a conversation by its id alone, a response has an object
    if isinstance(found.get("conversation"), str):
        found["conversation"] = {"id": found["conversation"]}
    return found


def show_tools(tools: Any) -> list[Any]:
    """Return the tools of a request in the form in which a response repeats them."""
    if not isinstance(tools, list):
        return []
    required = {"description": None, "parameters": None, "strict": None}
    return [
        {**required, **tool} if isinstance(tool, dict) and tool.get("type") == "function" else tool
        for tool in tools
    ]
