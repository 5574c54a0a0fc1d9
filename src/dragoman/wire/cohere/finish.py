"""The finish reasons of the cohere wire, which both of its sides use."""

from ..finish import FinishWords

FINISH = FinishWords.of(
    {
        "stop": "COMPLETE STOP_SEQUENCE",
        "length": "MAX_TOKENS ERROR_LIMIT",
        "tool_calls": "TOOL_CALL",
        "content_filter": "ERROR_TOXIC",
        "error": "ERROR TIMEOUT USER_CANCEL",
    },
)
