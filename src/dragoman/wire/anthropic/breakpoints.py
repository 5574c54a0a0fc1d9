"""Prompt cache breakpoints: ``cache_control`` on at most four blocks.

A prefix is everything before a breakpoint: tools, then the system prompt, then the turns. The
server looks for an existing cache entry at each of the last 20 blocks before a breakpoint. A
growing conversation therefore gets two breakpoints: one at its end, where this call writes an
entry, and one at the end of the previous user turn, where the previous call wrote its entry.
"""

from __future__ import annotations

from typing import Any

from ...messages import Document, Image, PromptCache, System, Text, ToolResult, User
from ..codec import Notes
from .quirks import Quirks

LIMIT = 4
_KEY = "cache_control"
_MARK = {"type": "ephemeral"}


def mark_of(value: System | User | ToolResult | Text | Image | Document) -> dict[str, Any]:
    """Return ``cache_control`` if the caller marked this block or message, otherwise ``{}``."""
    return {_KEY: _MARK} if value.cache else {}


def place_breakpoints(
    body: dict[str, Any], cache: PromptCache | None, quirks: Quirks, notes: Notes
) -> None:
    """Add automatic cache breakpoints to the caller's; remove all of them if caching is off."""
    marked = [block for block in _blocks(body) if _KEY in block]
    if cache is None:
        for block in marked:
            del block[_KEY]
        return
    for block in marked[:-LIMIT]:
        del block[_KEY]
        notes.drop(
            "messages",
            "cache_mark_dropped",
            f"the wire takes {LIMIT} marks; the last ones are sent",
        )
    left = LIMIT - len(marked)
    for block in [] if left <= 0 else _candidates(body, cache, quirks):
        if left and _KEY not in block:
            block[_KEY] = _MARK
            left -= 1
    if cache.ttl in ("1h", "24h"):
        for block in _blocks(body):
            if _KEY in block:
                block[_KEY] = {**_MARK, "ttl": "1h"}
        if cache.ttl == "24h":
            notes.rewrite(
                "config.cache.ttl",
                "cache_ttl_shortened",
                "the cache is kept for 1 hour at most",
                loss=True,
            )


def _blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every block that can have a cache breakpoint, in the order of the prompt."""
    system = body.get("system")
    found = [*body.get("tools", ()), *(system if isinstance(system, list) else ())]
    for turn in body["messages"]:
        found += turn["content"] if isinstance(turn["content"], list) else ()
    return found


def take_mark(blocks: list[dict[str, Any]]) -> bool:
    """Remove cache breakpoints from nested blocks, where the wire rejects them.

    Return whether any breakpoint was removed.
    """
    return any(block.pop(_KEY, None) is not None for block in blocks)


def _candidates(body: dict[str, Any], cache: PromptCache, quirks: Quirks) -> list[dict[str, Any]]:
    """Return the blocks where a cache breakpoint is useful, the most useful first."""
    found = []
    if cache.auto:
        turns = [turn for turn in body["messages"] if turn["role"] == "user"]
        found += [_last_block(turn, "content") for turn in reversed(turns[-2:])]
    if cache.auto or quirks.cache == "system+tools":
        found += [_last_block(body, "system")] if body.get("system") else []
        found += body.get("tools", ())[-1:]
    return found


def _last_block(holder: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the last block of a message or system prompt; a string becomes a text block first."""
    if isinstance(holder[name], str):
        holder[name] = [{"type": "text", "text": holder[name]}]
    block: dict[str, Any] = holder[name][-1]
    return block
