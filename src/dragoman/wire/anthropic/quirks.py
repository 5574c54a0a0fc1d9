"""How servers and models that speak this wire differ, as data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...reasoning import ReasoningStyle
from ..ids import IdRule


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How a server or model that speaks this wire differs from the rest.

    Each field names who needs it and, in brackets, a recorded exchange that shows it.
    """

    result_media: Literal["inside", "omit"] = "inside"
    """Where images and documents of a tool's result go: into the result, or nowhere, with a text in their place.
    ``omit`` for models known not to see images."""

    structured: Literal["native", "tool", "prompt"] = "native"
    """How a ``response_schema`` is asked for. ``native``: ``output_config.format``; models before
    Claude 4.5 and some resellers answer 400 to it, and then ``tool`` is learned. ``tool``: a tool that must be called
    and whose input is the answer; beside tools of the caller's own, or while the model thinks, the wire does not allow
    that, and words are used. ``prompt``: words at the end of the system prompt. A schema that ``output_config`` cannot
    express (an object with free keys, a recursive one) takes the second way from the start."""

    effort: bool = False
    """The model takes ``output_config.effort`` (Claude Opus 4.5 and later). Without
    it an effort in ``config.reasoning`` is refused before the wire: there is no honest exchange rate between
    a word and a budget in tokens. A budget, and ``"none"``, need no quirk."""

    adaptive: bool = False
    """An effort also turns thinking on, as ``thinking: {"type": "adaptive"}``. Claude 4.6 and later think by
    themselves in that mode, and not at all with an effort alone."""

    cache: Literal["off", "system+tools", "auto"] = "off"
    """What calls without the setting ``cache`` do. ``auto``: as with ``cache="auto"``. ``system+tools``: mark the last
    tool and the system prompt for the provider's prompt cache, two of the four breakpoints it allows. Writing to the
    cache is billed, so it is off unless asked for."""

    id_rule: IdRule | None = IdRule(64, also="_-")
    """Which tool-call ids are taken: ``^[a-zA-Z0-9_-]{1,64}$``. Imitators take any."""

    reasoning: ReasoningStyle | None = None
    """How the endpoint takes ``config.reasoning``; by default ``catalog/reasoning.json`` knows it by the model's
    name."""

    parallel_tools: bool = True
    """Whether the model may make several calls in one turn. ``False`` sends the switch of this wire with every request
    that has tools; ``supports_parallel_tool_calls: false`` sets it."""

    raw_predict: bool = False
    """The model is served by Google Cloud: its name is in the address, ``/models/NAME:rawPredict``, and the version of
    the wire in the body. ``base_url`` ends with ``/publishers/anthropic``; there is no list of models to ask for."""
