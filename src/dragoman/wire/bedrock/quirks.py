"""Quirks: how models of this wire differ, as data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...reasoning import ReasoningStyle


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How a model of this wire differs from the others."""

    structured: Literal["tool", "prompt"] = "tool"
    """How a ``response_schema`` is requested. ``tool``: a forced tool whose input is the answer;
    with tools of the caller, or while the model thinks, ``prompt`` is used. ``prompt``: an
    instruction at the end of the system prompt. Llama and Titan reject a tool choice; then
    ``prompt`` is used.
    """

    result_media: Literal["inside", "omit"] = "inside"
    """Where images and documents of a tool result are sent: in the result, or nowhere (``omit``),
    with a text in their place. ``omit`` is used for models that are known not to accept images."""

    cache: Literal["off", "system+tools", "auto"] = "off"
    """The cache mode of calls without ``cache``, as on the anthropic wire; a mark is sent as a
    ``cachePoint``.
    """

    reasoning: ReasoningStyle | None = None
    """How ``config.reasoning`` is sent; by default ``catalog/reasoning.json`` decides by the
    model's name.
    """
