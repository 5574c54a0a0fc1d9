"""Prompt cache marks: ``cache_control`` on parts of messages.

Routers forward these marks to models of the anthropic wire, which accepts at most four marks in a
request.
"""

from __future__ import annotations

from typing import Any

from ...messages import ToolResult, User, UserBlock
from ..codec import Notes

LIMIT = 4
_KEY = "cache_control"
_MARK = {"type": "ephemeral"}


def mark_message(written: dict[str, Any], message: User | ToolResult) -> None:
    """Put a cache mark on the last part of a message, if the caller marked the message.

    A mark on a block counts as a mark on the message if the content is sent as one string.
    """
    blocks = () if isinstance(message.content, str) else message.content
    inside = isinstance(written["content"], str) and any(block.cache for block in blocks)
    if message.cache or inside:
        mark_end(written)


def mark_part(part: dict[str, Any], block: UserBlock) -> dict[str, Any]:
    """Return a part, with ``cache_control`` if the caller marked its block."""
    return {**part, _KEY: _MARK} if block.cache else part


def mark_end(message: dict[str, Any]) -> None:
    """Put a cache mark on the last part of a message; a string becomes a list with one part."""
    if isinstance(message["content"], str):
        message["content"] = [{"type": "text", "text": message["content"]}]
    last: dict[str, Any] = message["content"][-1]
    last[_KEY] = _MARK


def place_marks(written: list[Any], notes: Notes, *, auto: bool) -> None:
    """Add automatic cache marks on the system prompt and the last two turns.

    If the request then has more marks than the wire accepts, only the last ones are kept.
    """
    if auto:
        asked = [at for at, message in enumerate(written) if _role_of(message) in ("user", "tool")]
        system = [0] if _role_of(written[0]) not in ("user", "tool") else []
        for at in [*reversed(asked[-2:]), *system]:
            if isinstance(message := written[at], User):
                message = written[at] = {"role": "user", "content": message.content}
            if len(_marked(written)) < LIMIT:
                mark_end(message)
    for part in _marked(written)[:-LIMIT]:
        del part[_KEY]
        notes.drop(
            "messages",
            "cache_mark_dropped",
            f"the wire takes {LIMIT} marks; the last ones are sent",
        )


def _role_of(message: Any) -> str:
    if isinstance(message, dict):
        return str(message["role"])
    return str(message.__struct_config__.tag)


def _marked(written: list[Any]) -> list[dict[str, Any]]:
    contents = [message["content"] for message in written if isinstance(message, dict)]
    return [
        part
        for content in contents
        if isinstance(content, list)
        for part in content
        if _KEY in part
    ]
