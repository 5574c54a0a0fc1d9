"""The finish reasons of the openai wire, which both of its sides use."""

from ..finish import FinishWords

FINISH = FinishWords.of(
    {
        "stop": "stop",
        "length": "length",
        "tool_calls": "tool_calls function_call",
        "content_filter": "content_filter",
    },
    # DeepSeek on Azure sends ``tool_call`` (case: openai/finish-word-in-the-singular). Z.ai sends
    # ``sensitive``, ``model_context_window_exceeded`` and ``network_error`` (docs.z.ai;
    # mozilla-ai/any-llm#1200), Mistral sends ``model_length`` (pi-go#245; all seen 2026-11-18;
    # cases: openai/finish-word-sensitive, openai/finish-word-context-window,
    # openai/finish-word-model-length).
    read_only={
        "length": "model_length model_context_window_exceeded",
        "tool_calls": "tool_call",
        "content_filter": "sensitive",
        "error": "error network_error",
    },
)
