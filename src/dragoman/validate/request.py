"""Check a request before it is sent."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .. import messages as m
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
from ..messages import Assistant, System, Text, ToolResult, User
from .content import check_assistant_block, check_blocks, check_depth, need_text
from .data_url import read_inline
from .fields import kind_of
from .schema import Schema, compile_schema, first_error

_MOST = 2**64 - 1
"""The largest integer of a setting; some servers take an unsigned seed of 64 bits."""


def check_request(request: m.Request, *, history: bool = True) -> None:
    """Raise ``InvalidRequestError`` for the first invalid part of a request, with its path.

    If ``history`` or ``request.check_calls`` is false, the arguments of earlier calls are not
    checked against the current tools. The gateway relays them as its client sent them: the
    client's tools may have changed.
    """
    _check_last(request.messages, continues=request.continues)
    _check_messages(request.messages)
    if request.tools:
        schemas = _check_tools(request.tools)
        if history and request.check_calls:
            _check_calls(request.messages, schemas)
    if request.server_tools:
        _check_server_tools(request.server_tools)
    if request.tool_choice is not None:
        _check_tool_choice(request)
    if request.response_schema is not None:
        _check_object_schema(request.response_schema, "response_schema")
    if request.config is not m.NO_CONFIG:
        _check_config(request.config)


def _check_last(messages: Sequence[m.Message], *, continues: bool) -> None:
    if not messages:
        raise InvalidRequestError("messages is empty; give a text or a User(...)")
    last = len(messages) - 1
    while last and type(messages[last]) is System:  # instructions may follow the last message
        last -= 1
    is_asked = type(messages[last]) in (User, ToolResult)
    if not is_asked and not (continues and type(messages[-1]) is Assistant):
        raise InvalidRequestError(
            "the last message must be the user's or a tool's: add User(...), so that there is something to answer"
        )


def _check_messages(messages: Sequence[m.Message]) -> None:
    leading = 0
    while type(message := messages[leading]) is System:
        _check_system(message, leading)
        leading += 1
    if type(message) is not User:
        raise InvalidRequestError(
            f"messages[{leading}]: the conversation must begin with the user; put a User message first"
        )
    open_calls: dict[str, int] = {}
    for at, message in enumerate(messages[leading:], leading):
        if type(message) is User:
            if not message.content:
                raise InvalidRequestError(
                    f"messages[{at}].content is empty; leave the message out"
                )
            if type(message.content) is not str:
                check_blocks(message.content, f"messages[{at}]")
        elif type(message) is Assistant:
            _check_assistant(message, at, open_calls)
        elif type(message) is System:
            _check_system(message, at)
        else:
            _check_result(message, f"messages[{at}]", open_calls)  # type: ignore[arg-type]


def _check_system(message: System, at: int) -> None:
    if type(message.content) is not str or not message.content:
        raise InvalidRequestError(f"messages[{at}].content must be non-empty text")


def _check_assistant(message: Assistant, number: int, open_calls: dict[str, int]) -> None:
    holds_something = False
    seen: set[str] = set()
    for at, block in enumerate(message.content):
        # An empty text with a signature counts as content: its issuer needs the signature back.
        if type(block) is Text and block.continuity is None and type(block.text) is str:
            if block.text:
                holds_something = True
            continue
        holds_something = True
        path = f"messages[{number}].content[{at}]"
        check_assistant_block(block, path)
        if type(block) is m.ToolCall:
            if block.id in seen:
                raise InvalidRequestError(f"{path}.id is used twice in this message")
            seen.add(block.id)
            open_calls[block.id] = open_calls.get(block.id, 0) + 1
    if not holds_something:
        raise InvalidRequestError(
            f"messages[{number}]: an assistant message needs text or tool calls"
        )


def _check_result(message: ToolResult, path: str, open_calls: dict[str, int]) -> None:
    if not isinstance(message, ToolResult):
        raise InvalidRequestError(f"{path} is not a message but {type(message).__name__}")
    need_text(message.tool_call_id, f"{path}.tool_call_id")
    count = open_calls.get(message.tool_call_id)
    if count is None:
        raise InvalidRequestError(f"{path}.tool_call_id matches no earlier tool call; use its id")
    if not count:
        raise InvalidRequestError(f"{path}.tool_call_id: this call has a result already")
    open_calls[message.tool_call_id] = count - 1
    if type(message.is_error) is not bool:
        raise InvalidRequestError(
            f"{path}.is_error must be true or false, not {kind_of(message.is_error)}"
        )
    if not isinstance(message.content, str):
        check_blocks(message.content, path)


def _check_calls(messages: Sequence[m.Message], schemas: Mapping[str, Schema]) -> None:
    """Check the arguments of earlier calls against the tools that are offered now.

    A call whose result is an error is exempt: the error may be that its arguments were invalid,
    and the model needs both to correct itself.
    """
    failed = {
        message.tool_call_id
        for message in messages
        if type(message) is ToolResult and message.is_error
    }
    for at, message in enumerate(messages):
        for index, block in enumerate(message.content if type(message) is Assistant else ()):
            if (
                type(block) is not m.ToolCall
                or block.id in failed
                or (schema := schemas.get(block.name)) is None
            ):
                continue
            if (wrong := first_error(schema, block.arguments)) is not None:
                where = f"messages[{at}].content[{index}].arguments"
                raise InvalidRequestError(
                    f"{where} violate the parameters of {quote(block.name)}: {wrong}"
                )


def _check_server_tools(tools: Sequence[m.ServerTool]) -> None:
    for at, tool in enumerate(tools):
        if not isinstance(tool, m.ServerTool) or not isinstance(tool.name, str) or not tool.name:
            raise InvalidRequestError(f"server_tools[{at}] must be a ServerTool with a name")
        if not isinstance(tool.options, dict):
            raise InvalidRequestError(f"server_tools[{at}].options must be an object")
        check_depth(tool.options, f"server_tools[{at}].options")


def _check_tools(tools: Sequence[m.Tool]) -> dict[str, Schema]:
    """Check the tools; return the compiled schema of each tool's parameters, by tool name."""
    schemas: dict[str, Schema] = {}
    for at, tool in enumerate(tools):
        if not isinstance(tool, m.Tool):
            raise InvalidRequestError(f"tools[{at}] is not a Tool but {type(tool).__name__}")
        need_text(tool.name, f"tools[{at}].name")
        if not tool.name:
            raise InvalidRequestError(f"tools[{at}].name is empty; name the tool")
        if tool.name in schemas:
            raise InvalidRequestError(
                f"tools[{at}].name: {quote(tool.name)} is used twice; rename one"
            )
        need_text(tool.description, f"tools[{at}].description")
        flags = {"strict": tool.strict, "deferred": tool.deferred, "external": tool.external}
        for name, value in flags.items():
            if type(value) is not bool and not (value is None and name == "strict"):
                raise InvalidRequestError(
                    f"tools[{at}].{name} must be true or false, not {kind_of(value)}"
                )
        schemas[tool.name] = _check_object_schema(tool.parameters, f"tools[{at}].parameters")
    return schemas


def _check_object_schema(schema: Any, path: str) -> Schema:
    compiled = compile_schema(schema, path)
    if schema.get("type", "object" if path.startswith("tools") else None) != "object":
        raise InvalidRequestError(f'{path} must be an object schema: "type": "object" at its root')
    return compiled


def _check_tool_choice(request: m.Request) -> None:
    choice = request.tool_choice
    if choice in ("auto", "none"):
        return
    if choice != "required" and not isinstance(choice, m.ForceTool):
        raise InvalidRequestError(
            f"tool_choice must be auto, required, none or a ForceTool, not {quote(choice)}"
        )
    if not (request.tools or request.server_tools or request.config.extras.get("tools")):
        raise InvalidRequestError("tool_choice asks for a tool call; pass tools=[...]")
    if isinstance(choice, m.ForceTool) and choice.name not in [
        tool.name for tool in request.tools
    ]:
        raise InvalidRequestError(
            f"tool_choice forces {quote(choice.name)}, which is not among tools; force one of them"
        )


def _check_config(config: m.RuntimeConfig) -> None:
    for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty"):
        value = getattr(config, name)
        if value is not None and not _is_finite(value):
            raise InvalidRequestError(f"config.{name} must be a finite number")
    for name in ("seed", "max_tokens"):
        _check_integer(getattr(config, name), f"config.{name}")
    if config.reasoning is not None:
        _check_reasoning(config.reasoning)
    if config.stop_sequences is not None and not (
        isinstance(config.stop_sequences, tuple)
        and all(isinstance(stop, str) for stop in config.stop_sequences)
    ):
        raise InvalidRequestError("config.stop_sequences must be a list of texts")
    if not isinstance(config.extras, dict) or not all(
        isinstance(name, str) for name in config.extras
    ):
        raise InvalidRequestError("config.extras must be a mapping whose keys are text")
    if config.extras:
        check_depth(config.extras, "config.extras")
    if config.cache not in (None, "auto", "off") and not isinstance(config.cache, m.PromptCache):
        raise InvalidRequestError('config.cache must be "auto", "off" or a PromptCache')


def _check_integer(value: Any, path: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{path} must be a whole number")
    if not -_MOST <= value <= _MOST:
        raise InvalidRequestError(f"{path} must be a whole number of at most 64 bits")


def _check_reasoning(value: Any) -> None:
    if type(value) is not int and value not in m.EFFORTS:
        raise InvalidRequestError(
            f"config.reasoning must be one of {', '.join(m.EFFORTS)}, or a number of tokens, not "
            f"{quote(value)}"
        )
    if type(value) is int and not 0 <= value <= _MOST:
        raise InvalidRequestError(
            "config.reasoning must be a number of tokens between 0 and 2**64, or a word"
        )


def _is_finite(value: Any) -> bool:
    try:
        return (
            not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
        )
    except OverflowError:  # the integer is too large for a float
        return False


# --- requests that exceed what the model is known to support -----------------------------------


def find_refusal(
    request: m.Request,
    capabilities: Capabilities,
    estimated_tokens: int | None = None,
    *,
    results: bool = True,
) -> tuple[Refusal, ProviderError] | None:
    """Return the first capability that the request uses and the model lacks, if there is one.

    Only the capabilities that the request uses are checked, in a fixed order. An unknown
    capability counts as present. Structured output is included for routing between models; a
    single provider puts the schema into the prompt instead. Without ``results``, media in tool
    results are not checked: a wire can replace them with text.
    """
    image = _unreadable_image(
        request.messages, capabilities, User | ToolResult if results else User
    )
    if image is not None:
        return "no_vision_support", UnsupportedContentError(image)
    limit = capabilities.known("max_context_tokens")
    if limit is not None and estimated_tokens is not None and estimated_tokens > limit:
        return "exceeds_context_window", ContextOverflowError(
            f"about {estimated_tokens} tokens do not fit the model's window of {limit}"
        )
    if request.tools and capabilities.known("supports_tools") is False:
        return "no_tool_support", UnsupportedFeatureError(
            "this model is known not to support tools"
        )
    if capabilities.known("supports_system_prompt") is False and any(
        type(message) is System for message in request.messages
    ):
        return "no_system_prompt_support", UnsupportedFeatureError(
            "this model is known not to take a system prompt"
        )
    if (
        request.response_schema is not None
        and capabilities.known("supports_structured_output") is False
    ):
        return "no_structured_output_support", UnsupportedFeatureError(
            "this model is known not to support structured output"
        )
    return None


def _unreadable_image(
    messages: Sequence[m.Message], capabilities: Capabilities, kinds: Any
) -> str | None:
    images = capabilities.known("supports_images")
    documents = capabilities.known("supports_documents")
    accepted = capabilities.known("accepted_image_media_types")
    if images is not False and documents is not False and accepted is None:
        return None
    for at, message in enumerate(messages):
        if not isinstance(message, kinds) or isinstance(message.content, str):
            continue
        for index, block in enumerate(message.content):
            path = f"messages[{at}].content[{index}]"
            if type(block) is m.Image:
                if images is False:
                    return f"{path}: this model is known not to see images"
                if accepted is not None and (kind := _find_other_type(block, accepted)):
                    return f"{path}: this model is known not to read {cut(kind)}"
            elif type(block) is m.Document and documents is False:
                return f"{path}: this model is known not to read documents"
    return None


def _find_other_type(block: m.Image, accepted: Collection[str]) -> str | None:
    """Return the type of an image if it is not accepted; the type at another URL is unknown."""
    kind, _ = read_inline(block) or (None, "")
    return None if kind is None or kind in accepted else kind
