"""Convert messages between LangChain and Dragoman.

This module reads the content blocks of LangChain 1, to which LangChain itself converts the OpenAI
and Anthropic forms. A reply keeps its exact Dragoman message in ``additional_kwargs``, so that
reasoning signatures and other state are sent back to the provider unchanged.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from langchain_core import messages as lc
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call

from .. import messages as m
from ..errors import InvalidRequestError
from ..events import Response, Usage
from .exact_message import KEPT, restore


def read_messages(messages: Sequence[lc.BaseMessage]) -> list[m.Message]:
    """Convert a LangChain conversation to Dragoman messages."""
    return [_read_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _read_message(message: lc.BaseMessage, path: str) -> m.Message:
    if isinstance(message, lc.SystemMessage):
        return m.System(str(message.text))
    if isinstance(message, lc.HumanMessage):
        return m.User(_read_content(message, path))
    if isinstance(message, lc.ToolMessage):
        return m.ToolResult(
            message.tool_call_id,
            _read_content(message, path),
            is_error=message.status == "error",
        )
    if isinstance(message, lc.AIMessage):
        return _read_reply(message, path)
    if isinstance(message, lc.FunctionMessage):
        raise InvalidRequestError(
            f"{path}: FunctionMessage is deprecated by LangChain; use ToolMessage"
        )
    if message.type in ("human", "user") or getattr(message, "role", None) == "user":
        return m.User(str(message.text))
    raise InvalidRequestError(f"{path}: a message of type {message.type!r} is not supported")


def _read_content(message: lc.BaseMessage, path: str) -> str | list[m.UserBlock]:
    if isinstance(message.content, str):
        return message.content
    return [
        _read_block(block, f"{path}.content[{at}]")
        for at, block in enumerate(message.content_blocks)
    ]


def _read_block(block: Any, path: str) -> m.UserBlock:
    kind = block["type"]
    if kind == "text":
        return m.Text(block["text"])
    if kind == "image":
        return m.Image(_read_source(block, path), block.get("mime_type"))
    if kind == "audio":
        return m.Audio(_read_source(block, path), block.get("mime_type"))
    if kind == "file":
        extras = block.get("extras") or {}
        name = extras.get("filename") or extras.get("name") or block.get("filename")
        return m.Document(
            _read_source(block, path), block.get("mime_type") or "application/pdf", name
        )
    if kind == "text-plain" and "text" in block:
        data = base64.b64encode(block["text"].encode()).decode("ascii")
        return m.Document(m.Inline(data), "text/plain", block.get("title"))
    value = block.get("value") or {}
    # Anthropic's document block, for which LangChain has no type
    if kind == "non_standard" and value.get("type") == "document":
        source = value.get("source") or {}
        return m.Document(
            m.Inline(source.get("data", "")), source.get("media_type") or "application/pdf"
        )
    raise InvalidRequestError(f"{path}: a content block of type {kind!r} is not supported")


def _read_source(block: Any, path: str) -> m.Url | m.Inline:
    if block.get("base64"):
        return m.Inline(block["base64"])
    if block.get("url"):
        return m.Url(block["url"])
    raise InvalidRequestError(
        f"{path}: needs url or base64; ids of uploaded files belong to one vendor"
    )


def _read_reply(message: lc.AIMessage, path: str) -> m.Assistant:
    rebuilt = m.Assistant([*_rebuild_reply(message, path)])
    return restore(rebuilt, message.additional_kwargs.get(KEPT))


def _rebuild_reply(message: lc.AIMessage, path: str) -> Iterator[m.AssistantBlock]:
    """Yield the blocks of an assistant message that was created or edited outside Dragoman."""
    for block in message.content_blocks:
        if block["type"] == "text" and block["text"]:
            yield m.Text(block["text"])
        elif block["type"] == "reasoning" and (reasoning := block.get("reasoning")):
            yield m.Thinking(reasoning)
    for call in message.tool_calls:
        yield m.ToolCall(call["id"] or "", call["name"], call["args"])
    if message.invalid_tool_calls:
        name = message.invalid_tool_calls[0]["name"]
        raise InvalidRequestError(
            f"{path}.invalid_tool_calls: the call of {name!r} cannot be sent back"
        )


# --- converting replies ------------------------------------------------------------------------


def make_message(response: Response[Any]) -> lc.AIMessage:
    """Convert a complete reply to a LangChain message."""
    calls = [
        tool_call(name=call.name, args=call.arguments or {}, id=call.id)
        for call in response.tool_calls
        if call.arguments is not None
    ]
    return lc.AIMessage(
        content=response.text,
        tool_calls=calls,
        usage_metadata=make_usage(response.usage),
        **make_metadata(response),
    )


def make_last_chunk(response: Response[Any]) -> lc.AIMessageChunk:
    """Return the last chunk of a stream: the usage, the finish reason and the exact message."""
    return lc.AIMessageChunk(
        content="",
        usage_metadata=make_usage(response.usage),
        chunk_position="last",
        **make_metadata(response),
    )


def make_metadata(response: Response[Any]) -> dict[str, Any]:
    """Return the metadata that a complete message and a streamed one share."""
    additional = {KEPT: msgspec.to_builtins(response.message)}
    if response.thinking:
        additional["reasoning_content"] = response.thinking
    metadata = {
        "model_name": response.model or "",
        "model_provider": response.provider or "",
        "finish_reason": response.finish_reason,
        "request_id": response.request_id,
        "warnings": [str(warning) for warning in response.warnings],
    }
    return {"additional_kwargs": additional, "response_metadata": metadata}


def make_usage(usage: Usage) -> UsageMetadata | None:
    """Return the token usage in LangChain's form; ``None`` if the provider did not report it."""
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    made = UsageMetadata(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
    )
    details = {
        "cache_read": usage.cached_input_tokens,
        "cache_creation": usage.cache_creation_input_tokens,
    }
    if known := {name: count for name, count in details.items() if count is not None}:
        made["input_token_details"] = known  # type: ignore[typeddict-item]
    if usage.reasoning_tokens is not None:
        made["output_token_details"] = {"reasoning": usage.reasoning_tokens}
    return made
