"""Quirks that several wires have: settings for the differences between servers and models."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import fields

from .ids import NameRule
from .reasoning import ReasoningStyle, is_off


class WireQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How a server or model of a wire differs from the others. The defaults suit most of them.

    The documentation of each field names the servers that need it, and often a case or, in
    brackets, a recorded exchange that shows it. Some quirks change automatically after a server
    error that names the field.
    """

    reasoning: ReasoningStyle | None = None
    """How ``config.reasoning`` is sent. By default the model's name selects a row of
    ``catalog/families``.
    """

    reasons_unasked: bool = False
    """Whether the model reasons if a request sets no amount of reasoning."""

    refused_settings: dict[str, Any] = field(default_factory=dict)
    """The settings that the model rejects, such as ``temperature`` or ``top_k``, each with the
    value that the model uses anyway. They are not sent. Any other value is reported as lost.
    """

    refused_while_reasoning: dict[str, Any] = field(default_factory=dict)
    """The same for settings that the model rejects only in requests in which it reasons."""

    one_setting_of: tuple[str, ...] = ()
    """Settings that the model rejects together. The first of those that a request sets is sent, and
    the others are reported as lost. Claude 4.1 to 4.6 answers "`temperature` and `top_p` cannot
    both be specified for this model".
    """

    forced_tools: Literal["yes", "not_reasoning", "no"] = "yes"
    """Whether a request may force a tool call. ``not_reasoning``: only if reasoning is off, so a
    request that forces a tool turns reasoning off where the model can do without. ``no``: the
    choice is sent as ``auto``. Both changes are reported.
    """

    late_system: Literal["in_place", "user", "first"] = "user"
    """How a system message in the middle of the conversation is sent. ``in_place``: at its place.
    ``user``: at its place, as a message of the user. ``first``: at the end of the system prompt,
    which changes the beginning of the request, so that nothing of a cached prefix is read, and
    thinking that is bound to it is lost (BerriAI/litellm#41043, looplj/axonhub#2061). The last two
    are reported. Chat templates of Qwen answer "System message must be at the beginning"
    (vllm-project/vllm#44505, ggml-org/llama.cpp#27367; seen 2026-11-19).
    """

    server_tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields that replace those of the wire's form of a portable server tool, by the portable
    name. New models have newer forms of a tool and refuse the old one: hosted OpenAI answers
    "Tool 'computer_use_preview' is not supported with gpt-5.4" (openai/openai-agents-python#2624).
    """

    name_rule: NameRule | None = None
    """Which tool names the server accepts. Every other name is replaced in the request, as
    ``math.sum`` by ``math_sum``, and the reply has the original name again. ``null`` sends every
    name unchanged.
    """

    canonical: bool = False
    """Whether the keys of schemas, arguments, extras and options are sorted, so that equal requests
    have equal bytes, for a cache that compares them. By default, the caller's order is kept, in
    which a model writes the properties of its answer.
    """

    def reasons(self, amount: str | int | None) -> bool:
        """Return whether the model reasons if a request sets this amount of reasoning."""
        style = self.reasoning
        if amount is None:
            return self.reasons_unasked
        if style is None:
            return not is_off(amount)
        return style.reasons and (not is_off(amount) or style.off is None)


class ResultQuirks(WireQuirks, frozen=True):
    """Quirks of a wire whose tool results may have media."""

    result_media: Literal["inside", "omit"] = "inside"
    """Whether images and documents of a tool result are sent in the result (``inside``) or
    replaced by a text (``omit``). ``omit`` is used for models that are known not to accept images.
    """


@cache
def list_types(kind: type[Struct]) -> dict[str, Any]:
    """Return the types of the fields of quirks, whose annotations take milliseconds to evaluate."""
    return {each.name: each.type for each in fields(kind)}
