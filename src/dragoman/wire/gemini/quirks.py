"""How servers and models that speak this wire differ, as data."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from ...reasoning import ReasoningStyle
from ..ids import IdRule


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How an endpoint of this wire differs from the rest. The defaults suit the current models.

    Each field names who needs it and, in brackets, a recorded exchange that shows it. Those marked
    *learned* set themselves once a server has refused the default with an error that names it.
    """

    result_media: Literal["inside", "omit"] = "inside"
    """Where images and documents of a tool's result go: into the result, or nowhere, with a text in their place.
    ``omit`` for models known not to see images."""

    structured: Literal["native", "prompt"] = "native"
    """Whether ``responseJsonSchema`` works. Servers older than it answer 400 (or 500) and name it; *learned*."""

    structured_with_tools: Literal["native", "prompt"] = "native"
    """The same for calls that also offer tools. Gemini 2.5 refuses the pair, Gemini 3 takes it; *learned*."""

    tool_schema: Literal["parametersJsonSchema", "parameters"] = "parametersJsonSchema"
    """``parameters`` takes only a subset of JSON Schema: what is outside it is left out, with a warning each, and
    references are written out. For servers that do not know the other field; *learned*."""

    call_ids: bool = True
    """Send a call's id back. Vertex and older models answer 400 to it and pair by name and order; *learned*."""

    id_rule: IdRule | None = None
    """Which tool-call ids are taken. Any text, as far as is known: ids of other wires are taken."""

    placeholder_signature: str | None = None
    """What stands in for the signature of calls that never had one (another model's). Gemini 3 refuses unsigned
    calls and documents ``skip_thought_signature_validator`` for this case; *learned*."""

    effort_budgets: dict[str, int] = field(default_factory=dict)
    """Tokens for each effort of ``config.reasoning``, for models that take a budget and no level (Gemini 2.5)."""

    body: dict[str, Any] = field(default_factory=dict)
    """Fields for the root of every request, where ``extras`` do not reach: ``safetySettings``, ``cachedContent``,
    or ``tools`` of the server's own, which are added to the caller's."""

    reasoning: ReasoningStyle | None = None
    """How the endpoint takes ``config.reasoning``; by default ``catalog/reasoning.json`` knows it by the model's
    name."""
