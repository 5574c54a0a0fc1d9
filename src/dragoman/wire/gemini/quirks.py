"""Quirks: how servers and models of this wire differ, as data."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from ...reasoning import ReasoningStyle
from ..ids import IdRule


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How an endpoint of this wire differs from the others. The defaults suit the current models.

    The documentation of each field names the servers that need it and, in brackets, a recorded
    exchange that shows it. Fields marked *learned* change automatically after a server error that
    names the field.
    """

    result_media: Literal["inside", "omit"] = "inside"
    """Where images and documents of a tool result are sent: in the result, or nowhere (``omit``),
    with a text in their place. ``omit`` is used for models that are known not to accept images."""

    structured: Literal["native", "prompt"] = "native"
    """Whether ``responseJsonSchema`` works. Servers older than it answer 400 (or 500) and name it;
    *learned*.
    """

    structured_with_tools: Literal["native", "prompt"] = "native"
    """Whether ``responseJsonSchema`` works in calls that also offer tools. Gemini 2.5 rejects the
    combination, Gemini 3 accepts it; *learned*."""

    tool_schema: Literal["parametersJsonSchema", "parameters"] = "parametersJsonSchema"
    """Use ``parameters``, which accepts only a subset of JSON Schema: other keywords are omitted,
    with a warning each, and references are inlined. For servers without ``parametersJsonSchema``;
    *learned*.
    """

    call_ids: bool = True
    """Send a call's id back. Vertex and older models answer 400 to it and pair by name and order;
    *learned*.
    """

    id_rule: IdRule | None = None
    """Which tool-call ids the server accepts. Any string, as far as is known: ids of other wires
    are accepted.
    """

    placeholder_signature: str | None = None
    """The placeholder for the signature of calls that have none, such as those of another model.
    Gemini 3 rejects unsigned calls and documents ``skip_thought_signature_validator`` for this
    case; *learned*.
    """

    effort_budgets: dict[str, int] = field(default_factory=dict)
    """Tokens for each effort of ``config.reasoning``, for models that accept a budget and not a
    level (Gemini 2.5).
    """

    body: dict[str, Any] = field(default_factory=dict)
    """Fields for the root of every request: ``safetySettings``, ``cachedContent``, or server-side
    ``tools``, which are added to those of the caller."""

    reasoning: ReasoningStyle | None = None
    """How ``config.reasoning`` is sent; by default ``catalog/reasoning.json`` decides by the
    model's name.
    """
