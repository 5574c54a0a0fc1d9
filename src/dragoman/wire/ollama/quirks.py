"""Quirks: settings for the differences between servers of this wire."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...reasoning import ReasoningStyle


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings that are sent to an endpoint of this wire with every call."""

    result_media: Literal["inside", "omit"] = "inside"
    """Whether images of a tool result are sent in the result (``inside``) or replaced by a text
    (``omit``). ``omit`` is used for models that are known not to accept images.
    """

    num_ctx: int | None = None
    """The context length that the server loads the model with. Without this setting the server
    uses its default and silently truncates longer prompts.
    """

    keep_alive: str | None = None
    """How long the model stays in memory after a call, such as ``10m``."""

    structured: Literal["native", "prompt"] = "native"
    """How a ``response_schema`` is requested: in the field ``format``, or in the prompt."""

    reasoning: ReasoningStyle | None = None
    """How ``config.reasoning`` is sent. By default the model's name selects an entry of
    ``catalog/reasoning.json``.
    """
