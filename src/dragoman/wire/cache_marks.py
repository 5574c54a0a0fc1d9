"""Prompt cache marks: ``cache_control`` on at most four blocks of a request.

The anthropic wire calls a marked block a breakpoint: the prefix up to this block is cached. A
prefix has the tools, then the system prompt, then the turns. The server looks for an existing
cache entry at each of the last 20 blocks before a breakpoint. A growing conversation therefore
gets two breakpoints: one at its end, where this call writes an entry, and one at the end of the
previous user turn, where the previous call wrote its entry. Routers of the openai wire forward
marks to such models.
"""

from __future__ import annotations

from typing import Any

from ..messages import PromptCache, System, ToolResult, User, UserBlock
from .codec import Notes

LIMIT = 4
_KEY = "cache_control"
_MARK = {"type": "ephemeral"}
_SYSTEM = ("system", "developer")


def mark_of(value: System | User | ToolResult | UserBlock) -> dict[str, Any]:
    """Return ``cache_control`` if the caller marked this block or message, otherwise ``{}``."""
    return {_KEY: _MARK} if value.cache else {}


def take_mark(blocks: list[dict[str, Any]]) -> bool:
    """Remove the marks of nested blocks, where the wire rejects them; return whether any had one."""
    return any(block.pop(_KEY, None) is not None for block in blocks)


def mark_end(message: dict[str, Any]) -> None:
    """Mark the last part of a message."""
    _last_block(message, "content")[_KEY] = _MARK


def mark_part(item: dict[str, Any], name: str, message: User | ToolResult | System) -> None:
    """Mark the parts of an item of the Responses wire whose blocks or message the caller marked.

    A string becomes a part first; a mark on its only block counts as a mark on the message.
    """
    blocks = () if isinstance(message.content, str) else message.content
    marked = [block.cache for block in blocks]
    if not message.cache and not any(marked):
        return
    if isinstance(item[name], str):
        item[name] = [{"type": "input_text", "text": item[name]}]
        marked = [True]
    for part, is_marked in zip(item[name], marked, strict=True):
        if is_marked:
            part[_KEY] = _MARK
    if message.cache:
        item[name][-1][_KEY] = _MARK


def place_marks(
    body: dict[str, Any], cache: PromptCache | None, notes: Notes, *, prefix: bool = False
) -> None:
    """Add automatic marks to the caller's; remove all of them if caching is off.

    With ``prefix``, the system prompt and the tools are marked even if the turns are not. If the
    request has more marks than the wire accepts, only the last ones are kept.
    """
    marked = _find_marked(body)
    for block in marked if cache is None else marked[:-LIMIT]:
        del block[_KEY]
        if cache is not None:
            why = f"the wire takes {LIMIT} marks; the last ones are sent"
            notes.drop("messages", "cache_mark_dropped", why)
    if cache is None:
        return
    left = LIMIT - len(marked)
    if left > 0 and (cache.auto or prefix):
        for block in [_last_block(*place) for place in _find_ends(body, cache.auto)]:
            if left and _KEY not in block:
                block[_KEY] = _MARK
                left -= 1
    if cache.ttl in ("1h", "24h"):
        for block in _find_marked(body):
            block[_KEY] = {**_MARK, "ttl": "1h"}
        if cache.ttl == "24h":
            why = "the cache is kept for 1 hour at most"
            notes.rewrite("config.cache.ttl", "cache_ttl_shortened", why, loss=True)


def name_breakpoints(messages: list[Any], notes: Notes) -> None:
    """Replace the marks on parts of messages by breakpoints, as hosted OpenAI names them.

    A request may have four, and the server adds one at the end; of more marks, the last are kept.
    """
    limit = LIMIT - 1
    marked = _find_marked({"messages": messages})
    for at, block in enumerate(marked):
        del block[_KEY]
        if at >= len(marked) - limit:
            block["prompt_cache_breakpoint"] = {"mode": "explicit"}
        else:
            why = f"the wire takes {limit} marks; the last ones are sent"
            notes.drop("messages", "cache_mark_dropped", why)


def _find_marked(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every block that has a mark, in the order of the prompt."""
    found = []
    for holder in (body.get("tools"), body.get("system"), *body["messages"]):
        content = holder
        if isinstance(holder, dict):
            content = holder.get("content", holder.get("output"))
        for block in content if isinstance(content, list) else ():
            if _KEY in block:
                found.append(block)
    return found


def _find_ends(body: dict[str, Any], auto: bool) -> list[tuple[dict[str, Any], str]]:
    """Return where a mark at the end is useful, the most useful first: an object and a field."""
    messages = body["messages"]
    turns = [message for message in messages if message["role"] in ("user", "tool")]
    found = [(message, "content") for message in reversed(turns[-2:])] if auto else []
    # on the openai wire, the system prompt is the first message
    found += [(each, "content") for each in messages[:1] if each["role"] in _SYSTEM]
    return found + [(body, name) for name in ("system", "tools") if body.get(name)]


def _last_block(holder: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the last block of a message or system prompt; a string becomes a text block first."""
    if isinstance(holder[name], str):
        holder[name] = [{"type": "text", "text": holder[name]}]
    block: dict[str, Any] = holder[name][-1]
    return block
