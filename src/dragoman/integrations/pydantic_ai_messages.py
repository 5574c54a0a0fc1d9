"""Convert Pydantic AI messages to Dragoman messages."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_ai import messages as pai
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import ModelRequestParameters

# a private function that all models of Pydantic AI use
from pydantic_ai.models._tool_choice import resolve_tool_choice
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from .. import messages as m
from .exact_message import KEPT, restore


def read_messages(
    messages: Sequence[pai.ModelMessage], instructions: Sequence[str]
) -> list[m.Message]:
    """Convert a Pydantic AI history to Dragoman messages.

    System prompts come first, then instructions, then the other messages.
    """
    read: list[m.Message] = []
    for message in messages:
        if isinstance(message, pai.ModelRequest):
            read += _read_request(message)
        # Pydantic AI keeps empty replies, which no provider accepts back
        elif (reply := _read_reply(message)).content:
            read.append(reply)
    leading = next(
        (at for at, message in enumerate(read) if type(message) is not m.System), len(read)
    )
    return [*read[:leading], *[m.System(text) for text in instructions], *read[leading:]]


def _read_request(message: pai.ModelRequest) -> Iterator[m.Message]:
    for part in message.parts:
        if isinstance(part, pai.SystemPromptPart):
            yield m.System(part.content)
        elif isinstance(part, pai.UserPromptPart):
            content = part.content
            if not isinstance(content, str):
                sent = [each for each in content if not isinstance(each, pai.CachePoint)]
                yield m.User([_read_item(each) for each in sent])
            else:
                yield m.User(content)
        elif isinstance(part, pai.ToolReturnPart):
            failed = part.outcome != "success"
            files = [_read_item(each) for each in part.files]
            text = part.model_response_str()
            yield m.ToolResult(part.tool_call_id, text, *files, is_error=failed)
        else:
            raise UserError(f"a request part of kind {part.part_kind!r} cannot be sent")


def _read_item(item: Any) -> m.UserBlock:
    if isinstance(item, str):
        return m.Text(item)
    if isinstance(item, pai.TextContent):
        return m.Text(item.content)
    if isinstance(item, pai.ImageUrl):
        return m.Image(m.Url(item.url))
    if isinstance(item, pai.DocumentUrl):
        return m.Document(m.Url(item.url), item.media_type)
    if isinstance(item, pai.BinaryContent):
        source = m.Inline(base64.b64encode(item.data).decode("ascii"))
        if item.is_image:
            return m.Image(source, item.media_type)
        if item.is_document:
            return m.Document(source, item.media_type)
    raise UserError(f"content of type {type(item).__name__} is not supported by Dragoman")


def _read_reply(message: pai.ModelResponse) -> m.Assistant:
    rebuilt = m.Assistant([*_rebuild_reply(message)])
    return restore(rebuilt, (message.provider_details or {}).get(KEPT))


def _rebuild_reply(message: pai.ModelResponse) -> Iterator[m.AssistantBlock]:
    for part in message.parts:
        if isinstance(part, pai.TextPart) and part.content:
            yield m.Text(part.content)
        elif isinstance(part, pai.ThinkingPart) and part.content:
            yield m.Thinking(part.content)
        elif isinstance(part, pai.ToolCallPart):
            yield m.ToolCall(part.tool_call_id, part.tool_name, part.args_as_dict())


class OutputTool(m.Tool, frozen=True):
    """A tool whose arguments are the result of a run, as ``ToolOutput`` defines it.

    For a server it is a tool like any other. The bridge to a model of Pydantic AI passes it on as
    an output tool, which such a model sees apart from the functions.
    """


def read_tools(
    definitions: Sequence[ToolDefinition], parameters: ModelRequestParameters
) -> list[m.Tool]:
    """Return the tools that a request offers."""
    outputs = {tool.name for tool in parameters.output_tools}
    return [
        (OutputTool if tool.name in outputs else m.Tool)(
            tool.name, tool.description or "", parameters=tool.parameters_json_schema
        )
        for tool in definitions
    ]


def read_choice(
    settings: ModelSettings | None, parameters: ModelRequestParameters
) -> tuple[m.ToolChoice, list[ToolDefinition]]:
    """Return the tool choice, and the tools that it allows."""
    resolved = resolve_tool_choice(settings, parameters)
    definitions = parameters.declared_tool_defs
    if isinstance(resolved, tuple):
        mode, names = resolved
        definitions = {name: tool for name, tool in definitions.items() if name in names}
        if mode == "required" and len(definitions) == 1:
            return m.ForceTool(next(iter(definitions))), [*definitions.values()]
        return mode, [*definitions.values()]
    return resolved, [*definitions.values()]
