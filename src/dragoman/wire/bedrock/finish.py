"""The finish reasons of the bedrock wire, which both of its sides use."""

from ..finish import FinishWords

FINISH = FinishWords.of(
    {
        "stop": "end_turn stop_sequence",
        "length": "max_tokens model_context_window_exceeded",
        "tool_calls": "tool_use",
        # Bedrock sends guardrail_intervened only for a guardrail that the request named
        # (API_runtime_Converse, seen 2026-11-18).
        "content_filter": "content_filtered guardrail_intervened",
        "error": "malformed_model_output malformed_tool_use",
    },
)
