"""Quirks: settings for the differences between servers of the ollama wire."""

from __future__ import annotations

from typing import Literal

from ..quirks import ResultQuirks


class Quirks(ResultQuirks, frozen=True):
    """Settings that are sent to an endpoint of the ollama wire with every call."""

    num_ctx: int | None = None
    """The context length that the server loads the model with. Without this setting the server
    uses its default and silently truncates longer prompts.
    """

    keep_alive: str | None = None
    """How long the model stays in memory after a call, such as ``10m``."""

    structured: Literal["native", "prompt"] = "native"
    """How a ``response_schema`` is requested: in the field ``format``, or in the prompt."""
