"""Quirks: settings for the differences between models of the bedrock wire."""

from __future__ import annotations

from typing import Literal

from ..anthropic.quirks import TurnQuirks
from ..ids import NameRule


class Quirks(TurnQuirks, frozen=True):
    """How a model of the bedrock wire differs from the others."""

    name_rule: NameRule | None = NameRule(64)
    """Which tool names the service accepts: ``[a-zA-Z0-9_-]+``, at most 64 characters.
    """

    structured: Literal["native", "tool", "prompt"] = "tool"
    """How a ``response_schema`` is requested. ``native``: in the field ``outputConfig.textFormat``
    (Claude 4.5 and later). A schema that the field cannot express uses ``tool``. ``tool``: by a
    forced tool, whose input is the answer. If the caller has tools, the model thinks, or the model
    rejects a forced tool (Llama, Titan), ``prompt`` is used. ``prompt``: by an instruction at the
    end of the system prompt.
    """

    cache: Literal["off", "system+tools", "auto"] = "off"
    """The default cache mode, for calls that do not set ``cache``. The modes are those of the
    anthropic wire; a cache mark is sent as a ``cachePoint``.
    """
