"""Read what a server of the openai wire states about a model in its model list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...messages import EFFORTS
from ..described import Description, find_day, find_limit, keep_known
from ..json import dict_of, list_of
from ..reasoning import NOT_REASONING, ReasoningStyle, is_off

# vLLM, Groq, and OpenRouter or Moonshot, in this order.
_WINDOWS = ("max_model_len", "context_window", "context_length")
_OUTPUTS = ("top_provider.max_completion_tokens", "max_completion_tokens")
# OpenAI (openai-python 3.48.0, types/model.py), OpenRouter, Mistral (seen 2026-11-19).
_ENDS = ("shutdown_date", "expiration_date", "deprecation")


def describe_entry(entry: Mapping[str, Any], style: ReasoningStyle | None) -> Description:
    """Return what an entry of a model list states; ``style`` is what is believed of reasoning."""
    successor = entry.get("deprecation_replacement_model")
    facts = {
        "max_context_tokens": find_limit(entry, _WINDOWS),
        "max_output_tokens": find_limit(entry, _OUTPUTS),
        "end_date": find_day(entry, _ENDS),
        "successor": successor if isinstance(successor, str) and successor else None,
    }
    stated = dict_of(entry.get("reasoning"))
    if not isinstance(stated.get("mandatory"), bool) or style is None or style.effort is None:
        return Description(keep_known(facts))
    quirks: dict[str, Any] = {"reasoning": _limit_style(stated, style)}
    if isinstance(stated.get("default_enabled"), bool):
        quirks["reasons_unasked"] = stated["default_enabled"] or stated["mandatory"]
    return Description(keep_known(facts), quirks)


def _limit_style(stated: Mapping[str, Any], style: ReasoningStyle) -> ReasoningStyle:
    """Return a style with the efforts that OpenRouter lists for a model.

    ``mandatory`` means that reasoning cannot be turned off, and no list that every effort is
    accepted (openrouter.ai/docs/client-sdks/python/components/modelreasoning, seen 2026-11-19).
    """
    assert style.effort is not None
    words = list_of(stated.get("supported_efforts"))
    efforts = tuple([effort for effort in EFFORTS if effort in words and not is_off(effort)])
    if words and not efforts:
        return NOT_REASONING
    takes_budget = stated.get("supports_max_tokens") is True
    return replace(
        style,
        efforts=efforts or style.efforts,
        budget=style.budget if takes_budget else None,
        off=None if stated["mandatory"] else {style.effort: "none"},
    )
