"""What differs between servers of this wire."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...reasoning import ReasoningStyle


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """What an endpoint of this wire is told with every call."""

    result_media: Literal["inside", "omit"] = "inside"
    """Where images of a tool's result go: into the result, or nowhere, with a text in their place. ``omit`` for
    models known not to see images."""

    num_ctx: int | None = None
    """The context length to load the model with; without it the server's default holds, and cuts in silence."""

    keep_alive: str | None = None
    """How long the model stays in memory after a call, such as ``10m``."""

    structured: Literal["native", "prompt"] = "native"
    """Whether ``format`` with a JSON Schema works."""

    reasoning: ReasoningStyle | None = None
    """How the endpoint takes ``config.reasoning``; by default ``catalog/reasoning.json`` knows it by the model's
    name."""
