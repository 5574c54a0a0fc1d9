"""Replace the names of tool calls that servers would reject.

Models sometimes call a tool that does not exist. The call stays in the conversation, so that the
model learns of its mistake. Its name may have characters that servers reject. For example,
OpenAI's models call ``multi_tool_use.parallel``, and then OpenAI's API rejects every later request
of that conversation.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from ..messages import Assistant, Message, Request, ToolCall
from .codec import Notes

# the form of names that every server accepts
_is_accepted = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}").fullmatch


def rename_calls(request: Request, notes: Notes) -> Request:
    """Return a request in which each call has a tool name that servers accept."""
    found = [
        (at, index)
        for at, message in enumerate(request.messages)
        if type(message) is Assistant
        for index, block in enumerate(message.content)
        if type(block) is ToolCall and not _is_accepted(block.name)
    ]
    return _rename(request, found, notes) if found else request


def _rename(request: Request, found: list[tuple[int, int]], notes: Notes) -> Request:
    offered = {tool.name for tool in request.tools or ()}
    messages: list[Message] = list(request.messages)
    for at, index in found:
        content = list(messages[at].content)
        call = content[index]
        assert type(call) is ToolCall
        if call.name not in offered:
            sent = re.sub(r"[^A-Za-z0-9_-]", "_", call.name)[:64]
            sent = sent if _is_accepted(sent) else f"_{sent}"[:64]
            notes.rewrite(
                f"messages[{at}].content[{index}]",
                "name_projected",
                f"the wire does not take this name; sent as {sent}",
            )
            content[index] = replace(call, name=sent)
            messages[at] = replace(messages[at], content=tuple(content))
    return replace(request, messages=tuple(messages))
