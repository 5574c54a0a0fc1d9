"""Call a LangChain chat model with a Dragoman request, and read its reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import msgspec
from langchain_core import messages as lc
from langchain_core.language_models import BaseChatModel
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.messages.tool import tool_call

from .. import messages as m
from ..errors import InvalidResponseError, UnsupportedContentError, UnsupportedFeatureError
from ..events import FinishReason, Usage
from .bridge import SETTINGS, CallPiece, Finish, Piece
from .losses import drop_block, find_marks

_REASONS = ("finish_reason", "stop_reason", "done_reason")
_FINISH: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "refusal": "content_filter",
}


def find_name(model: BaseChatModel) -> str:
    """Return the name of the model that a LangChain chat model calls."""
    found = getattr(model, "model", None) or getattr(model, "model_name", None)
    return found if isinstance(found, str) else type(model).__name__


async def read_reply(chat_model: BaseChatModel, request: m.Request) -> AsyncGenerator[Piece, None]:
    """Call a LangChain chat model, and yield the pieces of its reply."""
    if request.server_tools:
        raise UnsupportedFeatureError(
            "a model of another library cannot offer tools that a server runs"
        )
    messages, losses = write_messages(request.messages)
    if request.config.reasoning is not None:
        detail = "LangChain has no setting for it; set it on the model"
        losses.append(m.LossWarning("reasoning_dropped", "config.reasoning", detail))
    for loss in [*losses, *find_marks(request)]:
        yield loss
    settings = _make_settings(request)
    if request.response_schema is not None:
        async for piece in _read_structured(chat_model, request, messages, settings):
            yield piece
        return
    model: Any = chat_model
    if request.tools and request.tool_choice != "none":
        model = _offer_tools(model, request)
    reply = _LangchainReply()
    if request.stream:
        async for message in model.astream(messages, **settings):
            for piece in reply.read(message):
                yield piece
    else:
        for piece in reply.read(await model.ainvoke(messages, **settings)):
            yield piece
    for piece in reply.end():
        yield piece


async def _read_structured(
    chat_model: BaseChatModel,
    request: m.Request,
    messages: list[lc.BaseMessage],
    settings: dict[str, Any],
) -> AsyncGenerator[Piece, None]:
    """Request structured output with ``with_structured_output``, which does not stream."""
    if request.tools and request.tool_choice != "none":
        raise UnsupportedFeatureError(
            "LangChain offers either tools or structured output in one call, not both"
        )
    schema = {
        "title": "output",
        "description": "The reply.",
        **(request.response_schema or {}),
    }
    try:
        model = chat_model.with_structured_output(schema, include_raw=True)
    except NotImplementedError as error:
        raise UnsupportedFeatureError("this LangChain model has no structured output") from error
    found: Any = await model.ainvoke(messages, **settings)
    reply = _LangchainReply()
    raw = found["raw"]
    # LangChain requested the data by a forced tool call
    by_call = bool(raw.tool_calls)
    for piece in reply.read(raw):
        if not by_call or not isinstance(piece, str | m.ToolCall | CallPiece):
            yield piece
    if by_call:
        yield msgspec.json.encode(raw.tool_calls[0]["args"]).decode()
    for piece in reply.end():
        yield piece


# --- converting requests -----------------------------------------------------------------------


def _make_settings(request: m.Request) -> dict[str, Any]:
    """Return the settings of a request under the names that LangChain's models have in common."""
    config = request.config
    given = {name: getattr(config, name) for name in SETTINGS}
    made = {name: value for name, value in given.items() if value is not None}
    if config.stop_sequences:
        made["stop"] = [*config.stop_sequences]
    return made | config.extras


def _offer_tools(model: Any, request: m.Request) -> Any:
    fields = ("name", "description", "parameters")
    functions = [{name: getattr(tool, name) for name in fields} for tool in request.tools]
    tools = [{"type": "function", "function": each} for each in functions]
    choice = request.tool_choice
    given: dict[str, Any] = {}
    if isinstance(choice, m.ForceTool):
        given["tool_choice"] = choice.name
    elif choice == "required":
        given["tool_choice"] = "any"
    try:
        return model.bind_tools(tools, **given)
    except NotImplementedError as error:
        raise UnsupportedFeatureError("this LangChain model takes no tools") from error


def write_messages(
    messages: Sequence[m.Message],
) -> tuple[list[lc.BaseMessage], list[m.LossWarning]]:
    """Convert a conversation to LangChain's messages; also return what they cannot express."""
    losses: list[m.LossWarning] = []
    return [
        _write_message(each, f"messages[{at}]", losses) for at, each in enumerate(messages)
    ], losses


def _write_message(message: m.Message, path: str, losses: list[m.LossWarning]) -> lc.BaseMessage:
    if isinstance(message, m.System):
        return lc.SystemMessage(message.content)
    if isinstance(message, m.Assistant):
        return _write_reply(message, path, losses)
    content: Any = message.content
    if not isinstance(content, str):
        content = [
            _write_block(block, f"{path}.content[{at}]") for at, block in enumerate(content)
        ]
    if isinstance(message, m.ToolResult):
        status: Any = "error" if message.is_error else "success"
        return lc.ToolMessage(content, tool_call_id=message.tool_call_id, status=status)
    return lc.HumanMessage(content)


def _write_reply(message: m.Assistant, path: str, losses: list[m.LossWarning]) -> lc.AIMessage:
    for at, block in enumerate(message.content):
        if not isinstance(block, m.Text | m.ToolCall):
            losses.append(drop_block(block, f"{path}.content[{at}]"))
    calls = [
        tool_call(name=call.name, args=call.arguments or {}, id=call.id)
        for call in message.tool_calls
    ]
    return lc.AIMessage(message.text, tool_calls=calls)


def _write_block(block: m.UserBlock, path: str) -> dict[str, Any]:
    if isinstance(block, m.Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, m.Audio):
        raise UnsupportedContentError(
            f"{path}: audio cannot be sent to a model of another library"
        )
    source = block.source
    made = {"base64": source.base64_data} if isinstance(source, m.Inline) else {"url": source.url}
    kind = "image" if not hasattr(block, "name") else "file"
    media_type = block.media_type or ("image/png" if isinstance(source, m.Inline) else None)
    return {"type": kind, **made, **({"mime_type": media_type} if media_type else {})}


# --- converting replies ------------------------------------------------------------------------


class _LangchainReply:
    """The state of one reply, whose usage LangChain spreads over several chunks."""

    def __init__(self) -> None:
        self._usage: UsageMetadata | None = None
        self._reason = ""
        self._last: Any = None
        self._calls = 0

    def read(self, message: Any) -> Iterator[Piece]:
        """Yield the text, the reasoning and the tool calls of a message or chunk."""
        if not isinstance(message, lc.AIMessage):
            raise InvalidResponseError(
                f"the LangChain model returned {type(message).__name__}, not an AIMessage"
            )
        for block in message.content_blocks:
            if block["type"] == "text":
                yield block["text"]
            elif block["type"] == "reasoning":
                yield m.Thinking(block.get("reasoning") or "")
        if isinstance(message, lc.AIMessageChunk):
            yield from [self._read_chunk(chunk) for chunk in message.tool_call_chunks]
        else:
            yield from [
                m.ToolCall(call["id"] or "", call["name"], call["args"])
                for call in message.tool_calls
            ]
            for broken in message.invalid_tool_calls:
                self._calls += 1
                yield CallPiece(
                    ("invalid", self._calls), broken["args"] or "", broken["id"], broken["name"]
                )
        if message.usage_metadata is not None:
            self._usage = add_usage(self._usage, message.usage_metadata)
        for name in _REASONS:
            self._reason = str(message.response_metadata.get(name) or self._reason)

    def _read_chunk(self, chunk: Any) -> CallPiece:
        """Return a fragment of a tool call.

        Without an index, a fragment with a name begins a new call, and other fragments continue
        the last call.
        """
        if chunk["index"] is not None:
            self._last = chunk["index"]
        elif chunk["name"]:
            self._calls += 1
            self._last = ("call", self._calls)
        return CallPiece(self._last, chunk["args"] or "", chunk["id"], chunk["name"])

    def end(self) -> Iterator[Piece]:
        """Yield the usage and the finish reason at the end of the reply."""
        if self._usage is not None:
            yield _make_usage(self._usage)
        yield Finish(_FINISH.get(self._reason.lower(), "stop"), self._reason or None)


def _make_usage(usage: UsageMetadata) -> Usage:
    asked: Any = usage.get("input_token_details") or {}
    written: Any = usage.get("output_token_details") or {}
    return Usage(
        usage["input_tokens"],
        usage["output_tokens"],
        cached_input_tokens=asked.get("cache_read"),
        cache_creation_input_tokens=asked.get("cache_creation"),
        reasoning_tokens=written.get("reasoning"),
    )
