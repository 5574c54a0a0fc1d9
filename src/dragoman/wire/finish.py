"""The finish reasons of every wire, in tables that both sides of a wire use.

A row is a finish reason of Dragoman, a column is a wire. If a wire has several terms for a reason,
the server side writes the first, unless the model's own wire is the same and used another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from ..events import FinishReason, StopDetails

_Rows: TypeAlias = dict[FinishReason, dict[str, str]]
_ROWS: _Rows = {
    "stop": {
        # To continue after ``compaction``, the client sends the reply back, as after
        # ``pause_turn`` (case: anthropic/compaction).
        "anthropic": "end_turn stop_sequence pause_turn compaction",
        "bedrock": "end_turn stop_sequence",
        "cohere": "COMPLETE STOP_SEQUENCE",
        "gemini": "STOP",
        "ollama": "stop load unload",
        "openai": "stop",
        "responses": "completed",
    },
    "length": {
        "anthropic": "max_tokens model_context_window_exceeded",
        "bedrock": "max_tokens model_context_window_exceeded",
        "cohere": "MAX_TOKENS ERROR_LIMIT",
        "gemini": "MAX_TOKENS",
        "ollama": "length",
        "openai": "length",
        "responses": "max_output_tokens",
    },
    "tool_calls": {
        "anthropic": "tool_use",
        "bedrock": "tool_use",
        "cohere": "TOOL_CALL",
        "openai": "tool_calls function_call",
    },
    "content_filter": {
        "anthropic": "refusal",
        # Bedrock sends guardrail_intervened only for a guardrail that the request named
        # (API_runtime_Converse, seen 2026-11-18).
        "bedrock": "content_filtered guardrail_intervened",
        "cohere": "ERROR_TOXIC",
        # only Vertex AI sends MODEL_ARMOR
        "gemini": "SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII IMAGE_SAFETY"
        " IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION MODEL_ARMOR",
        # A guess: Ollama has no filter, and its clients accept any text as the reason.
        "ollama": "content_filter",
        "openai": "content_filter",
        "responses": "content_filter",
    },
    "error": {
        "bedrock": "malformed_model_output malformed_tool_use",
        "cohere": "ERROR TIMEOUT USER_CANCEL",
        "gemini": "OTHER",
    },
}
# Terms that are read, but that this library's server side never writes. DeepSeek on Azure sends
# ``tool_call`` (case: openai/finish-word-in-the-singular), and mistral.rs sends ``complete``. Z.ai
# sends ``sensitive``, ``model_context_window_exceeded`` and ``network_error`` (docs.z.ai;
# mozilla-ai/any-llm#1200), Mistral sends ``model_length`` (pi-go#245; all seen 2026-11-18; cases:
# openai/finish-word-sensitive, openai/finish-word-context-window,
# openai/finish-word-model-length).
_READ_ONLY: _Rows = {
    "stop": {"responses": "complete"},
    "length": {"openai": "model_length model_context_window_exceeded", "responses": "max_tokens"},
    "tool_calls": {"openai": "tool_call"},
    "content_filter": {"openai": "sensitive"},
    "error": {"openai": "error network_error"},
}


def _list_words(*tables: _Rows) -> dict[str, dict[str, FinishReason]]:
    found: dict[str, dict[str, FinishReason]] = {wire: {} for wire in _ROWS["stop"]}
    for rows in tables:
        for reason, columns in rows.items():
            for wire, words in columns.items():
                found[wire] |= dict.fromkeys(words.split(), reason)
    return found


def make_stop_details(category: Any, explanation: Any) -> StopDetails | None:
    """Return the details of a stop; ``None`` if neither value is a text."""
    word = category if isinstance(category, str) and category else None
    text = explanation if isinstance(explanation, str) and explanation else None
    return None if word is text is None else StopDetails(word, text)


WRITTEN: Mapping[str, Mapping[str, FinishReason]] = _list_words(_ROWS)
"""The meaning of each term that the server side of a wire writes, by wire."""
READ: Mapping[str, Mapping[str, FinishReason]] = _list_words(_ROWS, _READ_ONLY)
"""The meaning of each term that the client side of a wire reads, by wire."""
