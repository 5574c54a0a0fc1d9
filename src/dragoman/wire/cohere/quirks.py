"""Quirks: settings for the differences between servers and models of the cohere wire."""

from __future__ import annotations

from string import digits
from typing import Literal

from ..ids import NameRule
from ..quirks import WireQuirks


class Quirks(WireQuirks, frozen=True):
    """How a server or model of the cohere wire differs from the others."""

    name_rule: NameRule | None = NameRule(64, also="_", never_first=digits)
    """Which tool names the server accepts: letters, digits and underscores, and no digit first. It
    documents no limit of the length; 64 suits all other servers.
    """

    structured: Literal["native", "prompt"] = "native"
    """How a ``response_schema`` is requested. ``native``: by ``response_format`` with a
    ``json_schema``. The server accepts this field only without tools and documents, and models
    before Command R 08-2024 do not support it. ``prompt``: by an instruction at the end of the
    system prompt.
    """

    result_media: Literal["after", "omit"] | None = None
    """Where images of a tool result are sent. The result itself can only be text on this wire.
    ``after``: in a user message after the results. ``omit``: they are not sent; a text replaces
    them. The default is ``after`` for models that are known to accept images, otherwise ``omit``,
    because most models of this wire read texts only.
    """
