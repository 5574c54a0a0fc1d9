"""Convert conversations to a form that every wire accepts.

In this form, a user message follows the system prompt, and the last message is a user message or a
tool result, which instructions may follow. Each vendor also accepts other forms: a greeting by the
assistant, or a partial answer that the model continues. They are converted to the common form, and
each change is reported. The codec of the model decides how later instructions are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec.structs import replace

from ...messages import Assistant, Message, System, Text, ToolResult, User
from ..conversation import CONTINUE
from ..rules import FieldRule

Change: TypeAlias = tuple[str, FieldRule, str]
"""The path of a changed message, the rule for it, and the code of the loss."""

_OPENING = "[The conversation begins with a message of the assistant.]"
_EMPTY = "[no text]"

_OPENED = FieldRule("mapped", "a message of the user was put before it")
_CONTINUED = FieldRule("mapped", "a message of the user asks to continue it")
_ASKED = FieldRule("mapped", "the instructions are sent as a message of the user")
_FILLED = FieldRule("mapped", "a text says that there is none")


def normalise(
    messages: Sequence[Message], root: str, changes: list[Change]
) -> tuple[Message, ...]:
    """Return the conversation in the form that every wire accepts; add each change to a list."""
    filled = [_fill(message, root, at, changes) for at, message in enumerate(messages)]
    kept = [each for each in filled if each.content or type(each) not in (Assistant, System)]
    first = next((at for at, each in enumerate(kept) if type(each) is not System), len(kept))
    system = [each for each in kept[:first] if isinstance(each, System)]
    talk = kept[first:]
    last = len(messages) - 1
    if not talk and system:
        changes.append((f"{root}[{last}]", _ASKED, "system_sent_as_user"))
        return (*system[:-1], User(system[-1].content))
    if talk and type(talk[0]) is not User:
        changes.append((f"{root}[{first}]", _OPENED, "opening_added"))
        talk.insert(0, User(_OPENING))
    end = next((type(each) for each in reversed(talk) if type(each) is not System), None)
    if end is Assistant and isinstance(instructions := talk[-1], System):
        changes.append((f"{root}[{last}]", _ASKED, "system_sent_as_user"))
        talk[-1] = User(instructions.content)
    elif end is Assistant:
        changes.append((f"{root}[{last}]", _CONTINUED, "prefill_rewritten"))
        talk.append(User(CONTINUE))
    return (*system, *talk)


def _fill(message: Message, root: str, at: int, changes: list[Change]) -> Message:
    """Return a message without its empty texts; an empty user message gets a placeholder text."""
    content = message.content
    if isinstance(content, str) or all(map(_has_content, content)):
        if content or type(message) is not User:
            return message
    else:
        blocks = tuple([block for block in content if _has_content(block)])
        if isinstance(message, ToolResult) and not blocks:
            return replace(message, content="")
        if blocks or type(message) is not User:
            return replace(message, content=blocks)
    changes.append((f"{root}[{at}]", _FILLED, "empty_text_filled"))
    return User(_EMPTY)


def _has_content(block: object) -> bool:
    return not isinstance(block, Text) or bool(block.text) or block.continuity is not None
