"""The token counts of the openai wire, under the names that different servers use."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from ...events import Usage
from ..usage import UsageMap

USAGE = UsageMap(
    {
        "input_tokens": "prompt_tokens",
        "output_tokens": "completion_tokens",
        "total_tokens": "total_tokens",
        "cached_input_tokens": "prompt_tokens_details.cached_tokens",
        "cache_creation_input_tokens": "prompt_tokens_details.cache_write_tokens",
        "reasoning_tokens": "completion_tokens_details.reasoning_tokens",
    },
    also={
        "cached_input_tokens": (
            "prompt_cache_hit_tokens",  # DeepSeek (006-usage-accounting-cache-hit-field)
            # Together and Mistral (006-usage-accounting-cached-at-the-top)
            "cached_tokens",
            "num_cached_tokens",
            # Databricks sends these (006-usage-accounting-cache-read-and-creation).
            "cache_read_input_tokens",
        ),
        "cache_creation_input_tokens": ("cache_creation_input_tokens",),
        "reasoning_tokens": ("reasoning_tokens",),
    },
)


def read_usage(record: Any) -> Usage | None:
    """Return the token counts of a usage record; ``None`` if it is not an object."""
    if type(record) is not dict:
        return None
    usage = USAGE.read(record)
    reasoning = usage.reasoning_tokens
    total = usage.total_tokens
    made = usage.output_tokens
    if reasoning and made is not None and total == (usage.input_tokens or 0) + made + reasoning:
        # xAI does not include the reasoning tokens in the completion tokens.
        usage = replace(usage, output_tokens=made + reasoning)
    stated: Any = record.get("cost")
    if type(stated) in (int, float) and 0 <= stated < math.inf:
        # the cost in US dollars that OpenRouter reports, with exactly the digits sent
        usage = replace(usage, stated_cost_usd=Decimal(str(stated)))
    return usage
