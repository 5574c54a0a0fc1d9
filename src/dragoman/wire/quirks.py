"""Quirks that several wires have: settings for the differences between servers and models."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ..reasoning import ReasoningStyle
from .ids import NameRule


class WireQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How a server or model of a wire differs from the others. The defaults suit most of them.

    The documentation of each field names the servers that need it, and often a case or, in
    brackets, a recorded exchange that shows it. Some quirks change automatically after a server
    error that names the field.
    """

    reasoning: ReasoningStyle | None = None
    """How ``config.reasoning`` is sent. By default the model's name selects an entry of
    ``catalog/reasoning.json``.
    """

    name_rule: NameRule | None = None
    """Which tool names the server accepts. Every other name is replaced in the request, as
    ``math.sum`` by ``math_sum``, and the reply has the original name again. ``null`` sends every
    name unchanged.
    """


class ResultQuirks(WireQuirks, frozen=True):
    """Quirks of a wire whose tool results may have media."""

    result_media: Literal["inside", "omit"] = "inside"
    """Whether images and documents of a tool result are sent in the result (``inside``) or
    replaced by a text (``omit``). ``omit`` is used for models that are known not to accept images.
    """
