"""How long it is."""

from __future__ import annotations

from typing import Any

__all__ = ["estimate_input_tokens"]


def estimate_input_tokens(messages: Any, tools: Any = (), system_prompt: str | None = None) -> int:
    """About how many tokens; replaced by a better estimate soon."""
    return (
        sum(len(str(message.content)) for message in messages) // 4
        + len(str(tools)) // 4
        + len(system_prompt or "") // 4
    )
