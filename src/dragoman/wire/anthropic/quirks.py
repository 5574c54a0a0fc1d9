"""Quirks: how servers and models of this wire differ, as data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...reasoning import ReasoningStyle
from ..ids import IdRule


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How a server or model of this wire differs from the others.

    The documentation of each field names the servers that need it and, in brackets, a recorded
    exchange that shows it.
    """

    result_media: Literal["inside", "omit"] = "inside"
    """Where images and documents of a tool result are sent: in the result, or nowhere (``omit``),
    with a text in their place. ``omit`` is used for models that are known not to accept images."""

    structured: Literal["native", "tool", "prompt"] = "native"
    """How a ``response_schema`` is requested. ``native``: ``output_config.format``; models before
    Claude 4.5 and some resellers answer 400 to it, and then ``tool`` is used. ``tool``: a forced
    tool whose input is the answer; with tools of the caller, or while the model thinks, the wire
    does not allow a forced tool, and ``prompt`` is used. ``prompt``: an instruction at the end of
    the system prompt. A schema that ``output_config`` cannot express (an object with free keys, a
    recursive one) uses ``tool`` from the start.
    """

    effort: bool = False
    """The model accepts ``output_config.effort`` (Claude Opus 4.5 and later). Without it an effort
    in ``config.reasoning`` is rejected locally, because an effort cannot be converted to a budget
    in tokens. A budget, and ``"none"``, need no quirk.
    """

    adaptive: bool = False
    """An effort also turns thinking on, as ``thinking: {"type": "adaptive"}``. Claude 4.6 and
    later decide in that mode whether to think; with an effort alone they do not think.
    """

    cache: Literal["off", "system+tools", "auto"] = "off"
    """The cache mode of calls without the setting ``cache``. ``auto``: as with ``cache="auto"``.
    ``system+tools``: mark the last tool and the system prompt, two of the four breakpoints. Cache
    writes are billed, so caching is off by default.
    """

    id_rule: IdRule | None = IdRule(64, also="_-")
    """Which tool-call ids the server accepts: ``^[a-zA-Z0-9_-]{1,64}$``. Compatible servers accept
    any.
    """

    reasoning: ReasoningStyle | None = None
    """How ``config.reasoning`` is sent; by default ``catalog/reasoning.json`` decides by the
    model's name.
    """

    parallel_tools: bool = True
    """Whether the model may make several calls in one turn. ``False`` sends this wire's field that
    turns parallel calls off, with every request that has tools. The capability
    ``supports_parallel_tool_calls: false`` sets it."""

    raw_predict: bool = False
    """The model is served by Google Cloud: its name is in the URL, ``/models/NAME:rawPredict``,
    and the version of the wire in the body. ``base_url`` ends with ``/publishers/anthropic``;
    there is no model list.
    """
