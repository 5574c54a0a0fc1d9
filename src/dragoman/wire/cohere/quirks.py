"""How servers and models that speak this wire differ, as data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...reasoning import ReasoningStyle


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How a server or model that speaks this wire differs from the rest."""

    structured: Literal["native", "prompt"] = "native"
    """How a ``response_schema`` is asked for. ``native``: ``response_format`` with a ``json_schema``; the server takes
    it without tools and documents, and models before Command R 08-2024 do not have it. ``prompt``: words at the end of
    the system prompt."""

    reasoning: ReasoningStyle | None = None
    """How the endpoint takes ``config.reasoning``; by default ``catalog/reasoning.json`` knows it by the model's
    name."""
