"""Quirks: settings for the differences between models of this wire."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...reasoning import ReasoningStyle


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How a model of this wire differs from the others."""

    structured: Literal["tool", "prompt"] = "tool"
    """How a ``response_schema`` is requested. ``tool``: by a forced tool, whose input is the
    answer. If the caller has tools, the model thinks, or the model rejects a forced tool (Llama,
    Titan), ``prompt`` is used. ``prompt``: by an instruction at the end of the system prompt.
    """

    result_media: Literal["inside", "omit"] = "inside"
    """Whether images and documents of a tool result are sent in the result (``inside``) or
    replaced by a text (``omit``). ``omit`` is used for models that are known not to accept images.
    """

    cache: Literal["off", "system+tools", "auto"] = "off"
    """The default cache mode, for calls that do not set ``cache``. The modes are those of the
    anthropic wire; a cache mark is sent as a ``cachePoint``.
    """

    reasoning: ReasoningStyle | None = None
    """How ``config.reasoning`` is sent. By default the model's name selects an entry of
    ``catalog/reasoning.json``.
    """
