"""Build the bodies of unstreamed replies in the format of each wire."""

import json
from typing import Any

Body = dict[str, Any]
Call = tuple[str, str, dict[str, Any]]  # the id, the name of the tool, and the arguments


def chat(*, finish: str = "stop", **message: Any) -> Body:
    said = {"role": "assistant", **message}
    return {"choices": [{"index": 0, "message": said, "finish_reason": finish}]}


def message(*content: Any, finish: str = "end_turn") -> Body:
    said = {"type": "message", "role": "assistant", "content": list(content)}
    return {**said, "stop_reason": finish}


def candidate(*parts: Any, finish: str = "STOP", **more: Any) -> Body:
    content = {"role": "model", "parts": list(parts)}
    return {"candidates": [{"content": content, "finishReason": finish, **more}]}


def output(*items: Any, finish: str = "completed") -> Body:
    end: Body = {"status": finish}
    if not finish.startswith("complete"):
        end = {"status": "incomplete", "incomplete_details": {"reason": finish}}
    return {"id": "resp_1", "output": list(items), **end}


def line(*, finish: str = "stop", **message: Any) -> Body:
    said = {"role": "assistant", "content": "", **message}
    return {"model": "m", "message": said, "done": True, "done_reason": finish}


def converse(*content: Any, finish: str = "end_turn") -> Body:
    said = {"role": "assistant", "content": list(content)}
    return {"output": {"message": said}, "stopReason": finish}


def cohere(*content: Any, finish: str = "COMPLETE", **message: Any) -> Body:
    return {"id": "1", "message": {"content": list(content), **message}, "finish_reason": finish}


# The token usage of every reply: 7 tokens of input and 3 of output.
USAGE: dict[str, Body] = {
    "openai": {"usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}},
    "anthropic": {"usage": {"input_tokens": 7, "output_tokens": 3}},
    "gemini": {
        "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}
    },
    "responses": {"usage": {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}},
    "ollama": {"prompt_eval_count": 7, "eval_count": 3},
    "cohere": {"usage": {"tokens": {"input_tokens": 7, "output_tokens": 3}}},
    "bedrock": {"usage": {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}},
}


def reply(wire: str, text: str = "", *calls: Call, finish: str = "") -> Body:
    """Return a reply with a text and tool calls, which ends with a finish reason of the wire."""
    end = {"finish": finish} if finish else {}
    functions = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for i, name, given in calls
    ]
    said = [{"type": "text", "text": text}] if text else []
    match wire:
        case "openai":
            body = chat(content=text or None, tool_calls=functions, **end)
        case "anthropic":
            uses = [
                {"type": "tool_use", "id": i, "name": name, "input": given}
                for i, name, given in calls
            ]
            body = message(*said, *uses, **end)
        case "gemini":
            made = [
                {"functionCall": {"id": i, "name": name, "args": given}}
                for i, name, given in calls
            ]
            body = candidate(*([{"text": text}] if text else []), *made, **end)
        case "responses":
            items = [
                {"type": "function_call", "call_id": each["id"], **each["function"]}
                for each in functions
            ]
            parts = [{"type": "output_text", "text": text}] if text else []
            told = {"type": "message", "role": "assistant", "content": parts}
            body = output(*([told] if text else []), *items, **end)
        case "ollama":
            asked = [
                {"id": i, "function": {"name": name, "arguments": given}}
                for i, name, given in calls
            ]
            body = line(content=text, tool_calls=asked, **end)
        case "cohere":
            body = cohere(*said, tool_calls=functions, **end)
        case _:
            tools = [
                {"toolUse": {"toolUseId": i, "name": name, "input": given}}
                for i, name, given in calls
            ]
            body = converse(*([{"text": text}] if text else []), *tools, **end)
    return {**body, **USAGE[wire]}
