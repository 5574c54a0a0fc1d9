"""Build the request fields for reasoning; warn if a model supports only an approximate amount."""

from __future__ import annotations

from typing import Any

from ..messages import Issuer, RuntimeConfig
from ..reasoning import ReasoningStyle, find_style, translate_reasoning
from .codec import Notes

PATH = "config.reasoning"


def reasoning_fields(
    config: RuntimeConfig,
    style: ReasoningStyle | None,
    home: Issuer,
    notes: Notes,
    room: int | None = None,
) -> dict[str, Any] | None:
    """Return the request fields that set the amount of reasoning; ``None`` if no amount is set.

    ``style`` comes from the endpoint's quirks. If it is ``None``, the catalogue chooses a style by
    model family; for an unknown family the result is ``None``. ``room`` is the token limit of the
    reply. A reasoning budget must be smaller than this limit.
    """
    if config.reasoning is None:
        return None
    style = style or find_style(home.wire, home.vendor, home.model or "")
    if style is None:
        return None
    fields, approximate = translate_reasoning(config.reasoning, style, room)
    if approximate is not None:
        notes.rewrite(PATH, "reasoning_approximated", approximate, loss=True)
    return fields
