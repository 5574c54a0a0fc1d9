"""Convert conversations to a form that every wire accepts.

In this form, instructions come first, then a user message, and the last message is a user message
or a tool result. Each vendor also accepts other forms: instructions in the middle, a greeting by
the assistant, or a partial answer that the model continues. They are converted to the common form,
and each change is reported.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...messages import Assistant, Message, System, Text, ToolResult, User
from ...wire.losses import Losses, Rule

_OPENING = "[The conversation begins with a message of the assistant.]"
_CONTINUE = "Continue your last message exactly where it ends. Do not repeat any of it."
_EMPTY = "[no text]"

_MOVED = Rule("mapped", "instructions go before the conversation")
_OPENED = Rule("mapped", "a message of the user was put before it")
_CONTINUED = Rule("mapped", "a message of the user asks to continue it")
_ASKED = Rule("mapped", "the instructions are sent as a message of the user")
_FILLED = Rule("mapped", "a text says that there is none")


def settle(messages: Sequence[Message], root: str, losses: Losses) -> Sequence[Message]:
    """Return the conversation in the form that every wire accepts; record each change."""
    messages = _lead_with_system(messages, root, losses)
    first = sum([type(message) is System for message in messages])
    talk = [
        _fill(message, f"{root}[{at}]", losses)
        for at, message in enumerate(messages[first:], first)
    ]
    talk = [
        message for message in talk if not (type(message) is Assistant and not message.content)
    ]
    system = [message for message in messages[:first] if isinstance(message, System)]
    if not talk and system:
        losses.leave(f"{root}[{first - 1}]", _ASKED, "system_sent_as_user")
        return [*system[:-1], User(system[-1].content)]
    if talk and type(talk[0]) is not User:
        losses.leave(f"{root}[{first}]", _OPENED, "opening_added")
        talk.insert(0, User(_OPENING))
    if talk and type(talk[-1]) is Assistant:
        losses.leave(f"{root}[{len(messages) - 1}]", _CONTINUED, "prefill_rewritten")
        talk.append(User(_CONTINUE))
    return [*system, *talk]


def _lead_with_system(messages: Sequence[Message], root: str, losses: Losses) -> Sequence[Message]:
    leading: list[Message] = []
    talk: list[Message] = []
    for at, message in enumerate(messages):
        if type(message) is not System:
            talk.append(message)
        elif message.content:
            if talk:
                losses.leave(f"{root}[{at}]", _MOVED, "system_moved")
            leading.append(message)
    return [*leading, *talk]


def _fill(message: Message, path: str, losses: Losses) -> Message:
    """Return a message without its empty texts; an empty user message gets a placeholder text."""
    content = message.content
    if isinstance(content, str) or all(map(_has_content, content)):
        if content or type(message) is not User:
            return message
    else:
        blocks = tuple([block for block in content if _has_content(block)])
        if blocks or type(message) is not User:
            return _with_content(message, blocks)
    losses.leave(path, _FILLED, "empty_text_filled")
    return User(_EMPTY)


def _has_content(block: object) -> bool:
    return not isinstance(block, Text) or bool(block.text) or block.continuity is not None


def _with_content(message: Message, blocks: tuple[object, ...]) -> Message:
    if isinstance(message, ToolResult) and not blocks:
        return replace(message, content="")
    return replace(message, content=blocks)
