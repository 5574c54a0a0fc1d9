"""Quirks: settings for the differences between servers and models of the Gemini wire."""

from __future__ import annotations

from string import digits
from typing import Any, Literal

from msgspec import field

from ..ids import IdRule, NameRule
from ..quirks import ResultQuirks


class Quirks(ResultQuirks, frozen=True):
    """How an endpoint of the Gemini wire differs from others. The defaults suit current models."""

    name_rule: NameRule | None = NameRule(64, also="_-.:", never_first=digits + "-.:")
    """Which tool names the server accepts: letters, digits, underscores, dots, colons and dashes,
    with a letter or an underscore first. Its documentation allows 128 characters; its error says
    64.
    """

    late_system: Literal["user", "first"] = "user"
    """How a system message in the middle of the conversation is sent: at its place as a message of
    the ``user``, or at the end of the system prompt (``first``). This wire has no role for it.
    """

    structured: Literal["native", "prompt"] = "native"
    """How a ``response_schema`` is requested: in the field ``responseJsonSchema``, or in the
    prompt. Older servers answer 400 or 500 to this field; then the quirk changes automatically.
    """

    structured_with_tools: Literal["native", "prompt"] = "native"
    """How a ``response_schema`` is requested in calls with tools: in the field
    ``responseJsonSchema``, or in the prompt. Gemini 2.5 rejects tools together with this field;
    then the quirk changes automatically. Gemini 3 accepts them.
    """

    tool_schema: Literal["parametersJsonSchema", "parameters"] = "parametersJsonSchema"
    """The field for a tool's schema. ``parameters`` is for servers without
    ``parametersJsonSchema``. It accepts only a subset of JSON Schema: references are inlined, and
    unsupported keywords are omitted with a warning. An error about the field changes the quirk
    automatically.
    """

    server_invocations: bool | None = None
    """Whether requests with functions and with tools that the server runs set
    ``toolConfig.includeServerSideToolInvocations``, without which Gemini 3 rejects them. The
    function mode ``AUTO`` is then sent as ``VALIDATED``. Vertex AI rejects the field. Both errors
    change the quirk automatically.
    """

    call_ids: bool = True
    """Whether the ids of calls are sent back. Models before Gemini 3 answer 400 to ids on Vertex AI
    (until September 2026 newer models did, too), and pair calls and results by name and order. Such
    an error changes the quirk automatically.
    """

    id_rule: IdRule | None = None
    """Which tool-call ids the server accepts. By default every string is accepted, including ids
    from other wires.
    """

    prefill: bool = True
    """Whether the model continues its own message at the end of the conversation. Gemini 3.6 Flash
    and 3.5 Flash-Lite reject it (langchain-ai/langchain-google#1897, 2026-07; seen 2026-11-19).
    With ``False``, a message of the user follows and asks to continue.
    """

    placeholder_signature: str | None = None
    """The placeholder signature for calls without a signature, such as calls that another model
    made. Gemini 3 rejects unsigned calls and gets ``skip_thought_signature_validator``, which
    Google documents for this case. An error about a signature sets the quirk too.
    """

    effort_budgets: dict[str, int] = field(default_factory=dict)
    """The token budget for each effort of ``config.reasoning``, for models that accept only a
    budget (Gemini 2.5).
    """

    body: dict[str, Any] = field(default_factory=dict)
    """Fields that are added to the root of every request, such as ``safetySettings`` and
    ``cachedContent``. Server-side ``tools`` are added to the caller's tools.
    """
