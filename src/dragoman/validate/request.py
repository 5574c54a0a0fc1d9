"""Is the request one that may be sent?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..capabilities import Capabilities, Refusal
from ..errors import (
    ContextOverflowError,
    InvalidRequestError,
    ProviderError,
    UnsupportedContentError,
    UnsupportedFeatureError,
    cut,
    quote,
)
from ..messages import (
    NO_CONFIG,
    Assistant,
    Document,
    ForceTool,
    Image,
    Inline,
    Message,
    Opaque,
    RedactedThinking,
    Request,
    RuntimeConfig,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
)
from .schema import compile_schema

MAX_DEPTH = 128
"""How many levels of lists and mappings any value of a request may have."""


def check_request(request: Request) -> None:
    """Raise ``InvalidRequestError`` at the first thing that breaks the contract, naming its place."""
    _check_messages(request.messages)
    if request.tools:
        _check_tools(request.tools)
    if request.tool_choice is not None:
        _check_tool_choice(request)
    if request.response_schema is not None:
        _check_object_schema(request.response_schema, "response_schema")
    if request.config is not NO_CONFIG:
        _check_config(request.config)


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise InvalidRequestError("messages is empty")
    if type(messages[-1]) not in (User, ToolResult):
        raise InvalidRequestError("the last message must be the user's or a tool's: there is nothing to answer")
    began = False
    open_calls: dict[str, int] = {}
    for at, message in enumerate(messages):
        kind = type(message)
        if kind is User:
            began, content = True, message.content
            if type(content) is not str or not content:
                _check_user(message, f"messages[{at}]")  # type: ignore[arg-type]
        elif kind is System:
            if began:
                raise InvalidRequestError(f"messages[{at}]: a system message may only lead the conversation")
            if type(message.content) is not str or not message.content:
                raise InvalidRequestError(f"messages[{at}].content must be non-empty text")
        elif not began:
            raise InvalidRequestError(f"messages[{at}]: the conversation must begin with the user")
        elif kind is Assistant:
            content = message.content
            if len(content) != 1 or type(content[0]) is not Text:  # else it is as nearly every turn
                _check_assistant(message, f"messages[{at}]", open_calls)  # type: ignore[arg-type]
        else:
            _check_result(message, f"messages[{at}]", open_calls)  # type: ignore[arg-type]


def _check_user(message: User, path: str) -> None:
    if not message.content:
        raise InvalidRequestError(f"{path}.content is empty")
    _check_blocks(message.content, path)


def _check_blocks(content: Any, path: str) -> None:
    if not isinstance(content, tuple):
        raise InvalidRequestError(f"{path}.content must be text or blocks, not {type(content).__name__}")
    for at, block in enumerate(content):
        where = f"{path}.content[{at}]"
        if type(block) is Text:
            if not block.text:
                raise InvalidRequestError(f"{where}.text is empty")
        elif type(block) is Image or type(block) is Document:
            check_media(block, where)
        else:
            raise InvalidRequestError(f"{where}: {type(block).__name__} cannot be said by this role")


def check_media(block: Image | Document, path: str) -> None:
    """Raise ``InvalidRequestError`` for a medium without data, or of a type that it cannot have."""
    if not isinstance(block.source, Inline):
        if not getattr(block.source, "url", None):
            raise InvalidRequestError(f"{path}.source must be a Url or Inline with content")
        return
    if not block.source.base64_data:
        raise InvalidRequestError(f"{path}.source.base64_data is empty")
    if not block.media_type:
        raise InvalidRequestError(f"{path}.media_type is required for inline content")
    if type(block) is Image and not block.media_type.startswith("image/"):
        raise InvalidRequestError(f"{path}.media_type must be an image type, not {quote(block.media_type)}")


def _check_assistant(message: Assistant, path: str, open_calls: dict[str, int]) -> None:
    if not message.content:
        raise InvalidRequestError(f"{path}: an assistant message needs text or tool calls")
    seen: set[str] = set()
    for at, block in enumerate(message.content):
        if type(block) is ToolCall:
            where = f"{path}.content[{at}]"
            if not block.id or not block.name:
                raise InvalidRequestError(f"{where}: a tool call needs an id and a name")
            if block.id in seen:
                raise InvalidRequestError(f"{where}.id is used twice in this message")
            if not isinstance(block.arguments, dict):
                raise InvalidRequestError(f"{where}.arguments could not be read when it arrived; repair or remove it")
            if block.arguments:
                check_depth(block.arguments, f"{where}.arguments")
            seen.add(block.id)
            open_calls[block.id] = open_calls.get(block.id, 0) + 1
        elif type(block) is Opaque:
            check_depth(block.data, f"{path}.content[{at}].data")
        elif not isinstance(block, Text | Thinking | RedactedThinking):
            raise InvalidRequestError(f"{path}.content[{at}]: {type(block).__name__} cannot be said by this role")


def _check_result(message: ToolResult, path: str, open_calls: dict[str, int]) -> None:
    if not isinstance(message, ToolResult):
        raise InvalidRequestError(f"{path} is not a message but {type(message).__name__}")
    count = open_calls.get(message.tool_call_id)
    if count is None:
        raise InvalidRequestError(f"{path}.tool_call_id matches no earlier tool call")
    if not count:
        raise InvalidRequestError(f"{path}.tool_call_id: this call was answered before")
    open_calls[message.tool_call_id] = count - 1
    if not isinstance(message.content, str):
        _check_blocks(message.content, path)


def _check_tools(tools: Sequence[Tool]) -> None:
    names: set[str] = set()
    for at, tool in enumerate(tools):
        if not isinstance(tool, Tool):
            raise InvalidRequestError(f"tools[{at}] is not a Tool but {type(tool).__name__}")
        if not tool.name:
            raise InvalidRequestError(f"tools[{at}].name is empty")
        if tool.name in names:
            raise InvalidRequestError(f"tools[{at}].name: {quote(tool.name)} is used twice")
        names.add(tool.name)
        _check_object_schema(tool.parameters, f"tools[{at}].parameters")


def _check_object_schema(schema: Any, path: str) -> None:
    compile_schema(schema, path)
    if schema.get("type", "object" if path.startswith("tools") else None) != "object":
        raise InvalidRequestError(f'{path} must be an object schema: "type": "object" at its root')


def _check_tool_choice(request: Request) -> None:
    choice = request.tool_choice
    if choice in ("auto", "none"):
        return
    if not request.tools:
        raise InvalidRequestError("tool_choice asks for a tool call, and tools is empty")
    if isinstance(choice, ForceTool) and choice.name not in {tool.name for tool in request.tools}:
        raise InvalidRequestError(f"tool_choice forces {quote(choice.name)}, which is not among tools")


def _check_config(config: RuntimeConfig) -> None:
    for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty"):
        value = getattr(config, name)
        if value is not None and not _is_finite(value):
            raise InvalidRequestError(f"config.{name} must be a finite number")
    for name in ("max_tokens", "seed"):
        value = getattr(config, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InvalidRequestError(f"config.{name} must be a whole number")
    if config.stop_sequences is not None and not (
        isinstance(config.stop_sequences, tuple) and all(isinstance(stop, str) for stop in config.stop_sequences)
    ):
        raise InvalidRequestError("config.stop_sequences must be a list of texts")
    if not isinstance(config.extras, dict) or not all(isinstance(name, str) for name in config.extras):
        raise InvalidRequestError("config.extras must be a mapping whose keys are text")
    if config.extras:
        check_depth(config.extras, "config.extras")


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def check_depth(value: Any, path: str) -> None:
    """Raise ``InvalidRequestError`` if lists and mappings are nested more than ``MAX_DEPTH`` levels deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [each for each in level if isinstance(each, dict | list | tuple)]
        if not inner:
            return
        level = [part for each in inner for part in (each.values() if isinstance(each, dict) else each)]
    raise InvalidRequestError(f"{path} is nested more than {MAX_DEPTH} levels deep")


# --- what the model is known not to do ------------------------------------------------------------


def find_refusal(
    request: Request, capabilities: Capabilities, estimated_tokens: int | None = None, *, results: bool = True
) -> tuple[Refusal, ProviderError] | None:
    """The first known falsehood the request runs into, in the adapter contract's order, or ``None``.

    Only what the request uses is asked for, and only what is *known* counts. Structured output is
    listed for those who choose between models; a provider by itself falls back to the prompt. Without
    ``results``, media in the results of tools do not count: a wire can put a text in their place.
    """
    image = _unreadable_image(request.messages, capabilities, User | ToolResult if results else User)
    if image is not None:
        return "no_vision_support", UnsupportedContentError(image)
    limit = capabilities.known("max_context_tokens")
    if limit is not None and estimated_tokens is not None and estimated_tokens > limit:
        return "exceeds_context_window", ContextOverflowError(
            f"about {estimated_tokens} tokens do not fit the model's window of {limit}"
        )
    if request.tools and capabilities.known("supports_tools") is False:
        return "no_tool_support", UnsupportedFeatureError("this model is known not to support tools")
    if type(request.messages[0]) is System and capabilities.known("supports_system_prompt") is False:
        return "no_system_prompt_support", UnsupportedFeatureError("this model is known not to take a system prompt")
    if request.response_schema is not None and capabilities.known("supports_structured_output") is False:
        return "no_structured_output_support", UnsupportedFeatureError(
            "this model is known not to support structured output"
        )
    return None


def _unreadable_image(messages: Sequence[Message], capabilities: Capabilities, kinds: Any) -> str | None:
    images, documents = capabilities.known("supports_images"), capabilities.known("supports_documents")
    accepted = capabilities.known("accepted_image_media_types")
    if images is not False and documents is not False and accepted is None:
        return None
    for at, message in enumerate(messages):
        if not isinstance(message, kinds) or isinstance(message.content, str):
            continue
        for index, block in enumerate(message.content):
            path = f"messages[{at}].content[{index}]"
            if type(block) is Image:
                if images is False:
                    return f"{path}: this model is known not to see images"
                if accepted is not None and block.media_type is not None and block.media_type not in accepted:
                    return f"{path}: this model is known not to read {cut(block.media_type)}"
            elif type(block) is Document and documents is False:
                return f"{path}: this model is known not to read documents"
    return None
