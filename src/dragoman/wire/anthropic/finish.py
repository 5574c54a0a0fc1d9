"""The finish reasons of the anthropic wire, which both of its sides use."""

from ..finish import FinishWords

FINISH = FinishWords.of(
    {
        # To continue after ``compaction``, the client sends the reply back, as after
        # ``pause_turn`` (case: anthropic/compaction).
        "stop": "end_turn stop_sequence pause_turn compaction",
        "length": "max_tokens model_context_window_exceeded",
        "tool_calls": "tool_use",
        "content_filter": "refusal",
    },
)
