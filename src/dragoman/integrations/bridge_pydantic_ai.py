"""Call a Pydantic AI model with a Dragoman request, and read its reply."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from pydantic_ai import messages as pai
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from .. import messages as m
from ..errors import UnsupportedContentError, UnsupportedFeatureError
from ..events import FinishReason, Usage
from .bridge import SETTINGS, CallPiece, Finish, Piece
from .losses import drop_block, find_marks
from .pydantic_ai_messages import OutputTool

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
    "error": "error",
}


async def read_reply(model: Model, request: m.Request) -> AsyncGenerator[Piece, None]:
    """Call a Pydantic AI model, and yield the pieces of its reply."""
    if request.server_tools:
        raise UnsupportedFeatureError(
            "a model of another library cannot offer tools that a server runs"
        )
    messages, losses = write_messages(request.messages)
    for loss in (*losses, *find_marks(request)):
        yield loss
    settings = _make_settings(request)
    parameters = _make_parameters(request)
    given: Any = {"model_settings": settings, "model_request_parameters": parameters}
    if not request.stream:
        reply = await model_request(model, messages, **given)
        for at, part in enumerate(reply.parts):
            for piece in _read_part(at, part):
                yield piece
    else:
        async with model_request_stream(model, messages, **given) as stream:
            async for event in stream:
                for piece in _read_event(event):
                    yield piece
            reply = stream.get()
    if (usage := _make_usage(reply.usage)) is not None:
        yield usage
    reason = _FINISH.get(reply.finish_reason or "stop", "stop")
    yield Finish(reason, reply.finish_reason)


# --- converting requests -----------------------------------------------------------------------


def _make_settings(request: m.Request) -> ModelSettings:
    config = request.config
    given: dict[str, Any] = {name: getattr(config, name) for name in SETTINGS}
    if config.stop_sequences:
        given["stop_sequences"] = [*config.stop_sequences]
    if config.extras:
        given["extra_body"] = config.extras
    if isinstance(config.reasoning, int):
        raise UnsupportedFeatureError(
            "config.reasoning: Pydantic AI has no budget in tokens; give a level"
        )
    if config.reasoning is not None:
        given["thinking"] = False if config.reasoning in ("off", "none") else config.reasoning
    if request.tools and request.tool_choice not in (None, "auto"):  # which is the default
        choice = request.tool_choice
        given["tool_choice"] = [choice.name] if isinstance(choice, m.ForceTool) else choice
    made: Any = {name: value for name, value in given.items() if value is not None}
    settings: ModelSettings = made
    return settings


def _make_parameters(request: m.Request) -> ModelRequestParameters:
    tools = [_make_definition(tool) for tool in request.tools if not isinstance(tool, OutputTool)]
    outputs = [_make_definition(tool) for tool in request.tools if isinstance(tool, OutputTool)]
    if outputs:
        may_answer = request.tool_choice not in ("required", m.ForceTool(outputs[0].name))
        return ModelRequestParameters(
            function_tools=tools,
            output_mode="tool",
            output_tools=outputs,
            allow_text_output=may_answer,
        )
    if request.response_schema is None:
        return ModelRequestParameters(function_tools=tools)
    output = OutputObjectDefinition(json_schema=request.response_schema, name="output")
    return ModelRequestParameters(function_tools=tools, output_mode="native", output_object=output)


def _make_definition(tool: m.Tool) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name,
        description=tool.description or None,
        parameters_json_schema=tool.parameters,
        kind="output" if isinstance(tool, OutputTool) else "function",
    )


def write_messages(
    messages: Sequence[m.Message],
) -> tuple[list[pai.ModelMessage], list[m.LossWarning]]:
    """Convert a conversation to Pydantic AI's messages; also return what they cannot express."""
    made: list[pai.ModelMessage] = []
    losses: list[m.LossWarning] = []
    names: dict[str, str] = {}  # of calls so far, since a server may use an id again
    for at, message in enumerate(messages):
        path = f"messages[{at}]"
        if isinstance(message, m.Assistant):
            names |= {call.id: call.name for call in message.tool_calls}
            made.append(pai.ModelResponse(_write_reply(message, path, losses)))
            continue
        part = _write_part(message, path, names)
        last = made[-1] if made else None
        if isinstance(last, pai.ModelRequest):  # all parts up to the next reply are one request
            made[-1] = pai.ModelRequest([*last.parts, part])
        else:
            made.append(pai.ModelRequest([part]))
    return made, losses


def _write_part(message: Any, path: str, names: dict[str, str]) -> pai.ModelRequestPart:
    if isinstance(message, m.System):
        return pai.SystemPromptPart(message.content)
    content: Any = message.content
    if not isinstance(content, str):
        content = [
            _write_block(block, f"{path}.content[{at}]") for at, block in enumerate(content)
        ]
    if isinstance(message, m.ToolResult):
        outcome: Any = "failed" if message.is_error else "success"
        return pai.ToolReturnPart(
            names[message.tool_call_id], content, message.tool_call_id, outcome=outcome
        )
    return pai.UserPromptPart(content)


def _write_reply(
    message: m.Assistant, path: str, losses: list[m.LossWarning]
) -> list[pai.ModelResponsePart]:
    parts: list[pai.ModelResponsePart] = []
    for at, block in enumerate(message.content):
        if isinstance(block, m.Text):
            parts.append(pai.TextPart(block.text))
        elif isinstance(block, m.ToolCall):
            parts.append(pai.ToolCallPart(block.name, block.arguments or {}, block.id))
        else:
            losses.append(drop_block(block, f"{path}.content[{at}]"))
    return parts


def _write_block(block: m.UserBlock, path: str) -> Any:
    if isinstance(block, m.Text):
        return block.text
    if isinstance(block, m.Audio):
        raise UnsupportedContentError(
            f"{path}: audio cannot be sent to a model of another library"
        )
    if isinstance(block.source, m.Inline):
        return pai.BinaryContent(
            base64.b64decode(block.source.base64_data), media_type=block.media_type or "image/png"
        )
    kind = pai.ImageUrl if isinstance(block, m.Image) else pai.DocumentUrl
    return kind(block.source.url, media_type=block.media_type)


# --- converting replies ------------------------------------------------------------------------


def _read_event(event: Any) -> Iterator[Piece]:
    if isinstance(event, pai.PartStartEvent):
        yield from _read_part(event.index, event.part)
    elif isinstance(event, pai.PartDeltaEvent):
        delta = event.delta
        if isinstance(delta, pai.TextPartDelta):
            yield delta.content_delta
        elif isinstance(delta, pai.ThinkingPartDelta) and delta.content_delta:
            yield m.Thinking(delta.content_delta)
        elif isinstance(delta, pai.ToolCallPartDelta):
            yield CallPiece(
                event.index,
                _write_arguments(delta.args_delta),
                delta.tool_call_id,
                delta.tool_name_delta,
            )


def _read_part(index: int, part: pai.ModelResponsePart) -> Iterator[Piece]:
    if isinstance(part, pai.TextPart):
        yield part.content
    elif isinstance(part, pai.ThinkingPart):
        yield m.Thinking(part.content)
    elif isinstance(part, pai.ToolCallPart):
        yield CallPiece(index, _write_arguments(part.args), part.tool_call_id, part.tool_name)
    else:
        detail = f"a part of kind {part.part_kind!r} is not read"
        yield m.LossWarning("part_dropped", f"parts[{index}]", detail)


def _write_arguments(given: str | Mapping[str, Any] | None) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    return msgspec.json.encode(given).decode()


def _make_usage(usage: RequestUsage) -> Usage | None:
    if not usage.input_tokens and not usage.output_tokens:
        return None
    return Usage(
        usage.input_tokens,
        usage.output_tokens,
        cached_input_tokens=usage.cache_read_tokens or None,
        cache_creation_input_tokens=usage.cache_write_tokens or None,
        reasoning_tokens=usage.details.get("reasoning_tokens"),
    )
