"""Sort the keys of a request, so that requests with equal values have equal bytes.

By default, the caller's order of keys is kept, because a model writes an object in the order of
its schema's properties. A cache that compares bytes needs one order for equal values.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ..messages import Assistant, Message, Request, ToolCall


def sort_request(request: Request) -> Request:
    """Return a request with sorted keys in schemas, arguments of calls, extras and options.

    Opaque state is not changed, because its issuer may have signed it.
    """
    schema = request.response_schema
    config = request.config
    return replace(
        request,
        messages=tuple([_sort_message(message) for message in request.messages]),
        tools=tuple([_sort_field(tool, "parameters") for tool in request.tools]),
        server_tools=tuple([_sort_field(tool, "options") for tool in request.server_tools]),
        response_schema=None if schema is None else sort_keys(schema),
        config=_sort_field(config, "extras") if config.extras else config,
    )


def sort_keys(value: Any) -> Any:
    """Return a value of JSON with the keys of all its objects sorted."""
    if isinstance(value, dict):
        return {name: sort_keys(value[name]) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [sort_keys(each) for each in value]
    return value


def _sort_field(holder: Any, name: str) -> Any:
    return replace(holder, **{name: sort_keys(getattr(holder, name))})


def _sort_message(message: Message) -> Message:
    if not isinstance(message, Assistant) or not message.tool_calls:
        return message
    blocks = [
        _sort_field(block, "arguments") if isinstance(block, ToolCall) else block
        for block in message.content
    ]
    return Assistant(blocks)
