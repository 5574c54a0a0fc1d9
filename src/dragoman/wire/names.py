"""Replace the names of tools that a wire does not accept, and map the names in a reply back.

Most servers accept letters, digits, underscores and dashes; some MCP servers and data sets name
their tools ``math.sum``. Models also call tools that do not exist. Such a call stays in the
conversation, so that the model learns of its mistake: OpenAI's models call
``multi_tool_use.parallel``, and then OpenAI's API rejects every later request with that name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from ..messages import Assistant, ForceTool, Message, Request, ToolCall
from .codec import Notes
from .ids import IdMap, NameRule


def has_refused_tool(request: Request, rule: NameRule | None) -> bool:
    """Return whether a tool of the request has a name that the wire does not accept."""
    return rule is not None and not all(map(rule.allows, [tool.name for tool in request.tools]))


def map_names(request: Request, rule: NameRule | None) -> IdMap:
    """Return the name to send for each tool name of a request that the wire does not accept."""
    names = IdMap(None)
    if rule is not None:
        names.fill(rule, _names(request))
    return names


def project_names(request: Request, rule: NameRule | None, notes: Notes) -> Request:
    """Return a request whose tools, tool choice and calls have names that the wire accepts."""
    names = map_names(request, rule)
    if not names:
        return request

    def rename(value: Any, path: str) -> Any:
        if value.name not in names:
            return value
        why = f"the wire does not take this name; sent as {names[value.name]}"
        notes.rewrite(path, "name_projected", why)
        return replace(value, name=names[value.name])

    tools = [rename(tool, f"tools[{at}]") for at, tool in enumerate(request.tools)]
    choice = request.tool_choice
    if type(choice) is ForceTool:
        choice = rename(choice, "tool_choice")
    messages: list[Message] = list(request.messages)
    for at, message in enumerate(messages):
        if type(message) is Assistant:
            content = [
                rename(block, f"messages[{at}].content[{index}]")
                if type(block) is ToolCall
                else block
                for index, block in enumerate(message.content)
            ]
            messages[at] = replace(message, content=content)
    return replace(request, tools=tools, tool_choice=choice, messages=messages)


def _names(request: Request) -> Iterable[str]:
    yield from [tool.name for tool in request.tools]
    if type(request.tool_choice) is ForceTool:
        yield request.tool_choice.name
    for message in request.messages:
        if type(message) is Assistant:
            yield from [block.name for block in message.content if type(block) is ToolCall]
