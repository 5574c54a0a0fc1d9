"""How models behind this wire differ, as data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...reasoning import ReasoningStyle


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How a model behind this wire differs from the rest."""

    structured: Literal["tool", "prompt"] = "tool"
    """How a ``response_schema`` is asked for. ``tool``: a tool that must be called, whose input is the answer; beside
    tools of the caller's own, or while the model thinks, words are used. ``prompt``: words at the end of the system
    prompt. Llama and Titan refuse a choice of tool, and then ``prompt`` is learned."""

    result_media: Literal["inside", "omit"] = "inside"
    """Where images and documents of a tool's result go: into the result, or nowhere, with a text in their place.
    ``omit`` for models known not to see images."""

    cache: Literal["off", "system+tools", "auto"] = "off"
    """What calls without the setting ``cache`` do, as on the anthropic wire; a mark is sent as a ``cachePoint``."""

    reasoning: ReasoningStyle | None = None
    """How the endpoint takes ``config.reasoning``; by default ``catalog/reasoning.json`` knows it by the model's
    name."""
