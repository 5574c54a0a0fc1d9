"""The finish reasons of this wire."""

from __future__ import annotations

from ...events import FinishReason

FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
"""Finish reasons of this wire. If two have the same meaning, this library's server side sends the
first.
"""

# Finish reasons that are decoded, but that this library's server side never sends. DeepSeek on
# Azure sends ``tool_call`` (case: openai/finish-word-in-the-singular).
READ: dict[str, FinishReason] = {**FINISH, "error": "error", "tool_call": "tool_calls"}
CUT = frozenset({"length", "max_tokens", "max_output_tokens"})
