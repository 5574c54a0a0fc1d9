"""Quirks: how servers of this wire differ, as data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...reasoning import ReasoningStyle


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings that are sent to an endpoint of this wire with every call."""

    result_media: Literal["inside", "omit"] = "inside"
    """Where images of a tool result are sent: in the result, or nowhere (``omit``), with a text in
    their place. ``omit`` is used for models that are known not to accept images."""

    num_ctx: int | None = None
    """The context length to load the model with; without it the server uses its default and
    silently truncates longer prompts.
    """

    keep_alive: str | None = None
    """How long the model stays in memory after a call, such as ``10m``."""

    structured: Literal["native", "prompt"] = "native"
    """Whether ``format`` with a JSON Schema works."""

    reasoning: ReasoningStyle | None = None
    """How ``config.reasoning`` is sent; by default ``catalog/reasoning.json`` decides by the
    model's name.
    """
