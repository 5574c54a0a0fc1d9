"""Read the token counts of this wire, under the names that different servers use."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from ...events import Usage


def _counts(record: Any) -> dict[str, int]:
    """Return the entries of a usage record that are valid token counts."""
    if not record or type(record) is not dict:
        return _NONE
    return {name: value for name, value in record.items() if type(value) is int and value >= 0}


def read_usage(record: Any) -> Usage | None:
    """Return the token counts of a usage record; ``None`` if it is not an object."""
    if type(record) is not dict:
        return None
    counts, asked, made = _counts(record), _NONE, _NONE
    prompt, completion = counts.get("prompt_tokens"), counts.get("completion_tokens")
    total = counts.get("total_tokens")
    if len(record) == 3 and None not in (prompt, completion, total):
        return Usage(prompt, completion, total_tokens=total)
    if len(counts) < len(record):
        asked, made = (
            _counts(record.get("prompt_tokens_details")),
            _counts(record.get("completion_tokens_details")),
        )
    reasoning = made.get("reasoning_tokens", counts.get("reasoning_tokens"))
    if (
        reasoning
        and prompt is not None
        and completion is not None
        and total == prompt + completion + reasoning
    ):
        # xAI does not include the reasoning tokens in the completion tokens.
        completion += reasoning
    cached = asked.get("cached_tokens")
    if cached is None and len(counts) > 3:  # the record has counts besides the three standard ones
        cached = next((counts[name] for name in _CACHED if name in counts), None)
    written = asked.get("cache_write_tokens", counts.get("cache_creation_input_tokens"))
    return Usage(
        prompt, completion, cached, written, reasoning, total, stated_cost_usd=_read_cost(record)
    )


def _read_cost(record: dict[str, Any]) -> Decimal | None:
    """Return the cost in US dollars that OpenRouter reports, with exactly the digits sent."""
    stated: Any = record.get("cost")
    if type(stated) not in (int, float) or not 0 <= stated < math.inf:
        return None
    return Decimal(str(stated))


_NONE: dict[str, int] = {}
_CACHED = (
    # DeepSeek's name for cached tokens (case: openai/006-usage-accounting-cache-hit-field).
    "prompt_cache_hit_tokens",
    # The name of Together and Mistral for cached tokens (case:
    # openai/006-usage-accounting-cached-at-the-top).
    "cached_tokens",
    "num_cached_tokens",
    # Databricks' name for cached tokens (case:
    # openai/006-usage-accounting-cache-read-and-creation)
    "cache_read_input_tokens",
)
