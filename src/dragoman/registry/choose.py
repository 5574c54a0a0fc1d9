"""The resolver: find the models that meet a program's needs, and explain why others do not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

from msgspec import Struct

from ..errors import InvalidModelError
from ..prices import PriceRow, PriceTable, Unpriced
from .entries import ModelEntry

# Map each need to the capability that a model must have, and to the reason code for a model
# without it. The adapter contract defines the codes.
_FLAGS = {
    "images": ("supports_images", "no_vision_support"),
    "documents": ("supports_documents", "no_document_support"),
    "tools": ("supports_tools", "no_tool_support"),
    "thinking": ("supports_thinking", "no_thinking_support"),
    "system_prompt": ("supports_system_prompt", "no_system_prompt_support"),
    "structured_output": ("supports_structured_output", "no_structured_output_support"),
    "streaming": ("supports_streaming", "no_streaming_support"),
    "streaming_tool_calls": ("supports_streaming_tool_calls", "no_streaming_tool_call_support"),
    "parallel_tool_calls": ("supports_parallel_tool_calls", "no_parallel_tool_call_support"),
    "prompt_caching": ("supports_prompt_caching", "no_prompt_caching_support"),
    "embeddings": ("supports_embeddings", "no_embedding_support"),
    "reranking": ("supports_reranking", "no_reranking_support"),
}
_LIMITS = {
    "context": ("max_context_tokens", "exceeds_context_window"),
    "output": ("max_output_tokens", "exceeds_output_limit"),
}
_OTHER_NAMES = {
    "vision": "images", "structured": "structured_output", "schema": "structured_output",
    "caching": "prompt_caching",
    "system": "system_prompt", "reasoning": "thinking", "pdf": "documents",
    "max_context_tokens": "context", "max_output_tokens": "output",
    **{fact: need for need, (fact, _) in _FLAGS.items()},
}  # fmt: skip
_SIZES = {"": 1, "k": 1000, "m": 1_000_000}

NEEDS = (*_FLAGS, *[f"{name}=N" for name in _LIMITS])
"""The names of the requirements that ``choose`` accepts."""

Needs: TypeAlias = str | Iterable[str] | Mapping[str, bool | int]


class Choice(Struct, frozen=True):
    """The models that meet the requirements, cheapest first, and why others were excluded."""

    models: tuple[ModelEntry, ...]
    excluded: dict[str, tuple[str, ...]]

    @property
    def best(self) -> ModelEntry:
        """The cheapest model that meets the requirements.

        If no model does, raise ``InvalidModelError``, which names the most common reasons.
        """
        if self.models:
            return self.models[0]
        counts = Counter([reason for reasons in self.excluded.values() for reason in reasons])
        shown = ", ".join([f"{reason} ({count})" for reason, count in counts.most_common(4)])
        raise InvalidModelError(f"no model fits; {len(self.excluded)} are excluded: {shown}")


class Wanted(Struct, frozen=True, kw_only=True):
    """The requirements that a model must meet."""

    needs: dict[str, int]
    max_input_price: Decimal | None = None
    max_output_price: Decimal | None = None
    tier: str | None = None
    configured: bool = False

    def exclude(self, entry: ModelEntry, price: PriceRow | Unpriced) -> tuple[str, ...]:
        """Return why a model does not meet the requirements; an empty tuple if it meets them."""
        reasons = ["not_configured"] if self.configured and entry.status != "configured" else []
        known = entry.capabilities
        for need, amount in self.needs.items():
            fact, lack = _FLAGS.get(need) or _LIMITS[need]
            value = known.known(fact)
            if value is None:
                reasons.append(f"unknown_{fact}")
            elif (value < amount) if need in _LIMITS else not value:
                reasons.append(lack)
        if self.tier is not None and entry.tier != self.tier:
            reasons.append("other_tier")
        for limit, rate in ((self.max_input_price, "input"), (self.max_output_price, "output")):
            if limit is None:
                continue
            if isinstance(price, Unpriced):
                reasons.append("unknown_price")
            elif (getattr(price, rate) or 0) > limit:
                reasons.append(f"exceeds_max_{rate}_price")
        return tuple(dict.fromkeys(reasons))


def read_wanted(
    needs: Needs | None = None,
    *,
    max_input_price: Decimal | float | str | None = None,
    max_output_price: Decimal | float | str | None = None,
    tier: str | None = None,
    configured: bool = False,
) -> Wanted:
    """Parse the caller's requirements; raise a ``ValueError`` that names the first invalid one."""
    return Wanted(
        needs=_read_needs(needs or ()),
        max_input_price=_read_price("max_input_price", max_input_price),
        max_output_price=_read_price("max_output_price", max_output_price),
        tier=tier,
        configured=configured,
    )


def choose_among(entries: Iterable[ModelEntry], wanted: Wanted, prices: PriceTable) -> Choice:
    """Return the models that meet the requirements, cheapest first, and why others fail them."""
    fitting: list[tuple[tuple[bool, Decimal], ModelEntry]] = []
    excluded: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        price = prices.find(entry.priced_as.model)
        reasons = wanted.exclude(entry, price)
        if reasons:
            excluded[entry.id] = reasons
        else:
            fitting.append((_rank(price), entry))
    fitting.sort(key=lambda each: each[0])
    return Choice(tuple([entry for _, entry in fitting]), excluded)


def _rank(price: PriceRow | Unpriced) -> tuple[bool, Decimal]:
    if isinstance(price, Unpriced):
        return True, Decimal(0)
    return False, (price.input or Decimal(0)) + (price.output or Decimal(0))


def _read_needs(given: Any) -> dict[str, int]:
    if isinstance(given, Mapping):
        pairs = [(name, amount) for name, amount in given.items() if amount is not False]
    else:
        words = given.split(",") if isinstance(given, str) else list(given)
        pairs = [
            (name, amount or True)
            for name, _, amount in [word.strip().partition("=") for word in words]
            if name
        ]
    found: dict[str, int] = {}
    for name, amount in pairs:
        need = _OTHER_NAMES.get(name.strip().replace("-", "_"), name.strip().replace("-", "_"))
        if need in _LIMITS:
            found[need] = _read_amount(need, amount)
        elif need in _FLAGS and amount is True:
            found[need] = 1
        else:
            raise ValueError(f"needs: {name!r} is not one of {', '.join(NEEDS)}")
    return found


def _read_amount(name: str, amount: Any) -> int:
    if isinstance(amount, int) and not isinstance(amount, bool) and amount > 0:
        return amount
    read = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([km]?)", str(amount).strip().lower())
    if read is None or not float(read[1]):
        raise ValueError(
            f"needs: {name} must be a number of tokens such as {name}=200k, not {amount!r}"
        )
    return int(float(read[1]) * _SIZES[read[2]])


def _read_price(name: str, given: Decimal | float | str | None) -> Decimal | None:
    if given is None:
        return None
    try:
        price = Decimal(str(given))
    except InvalidOperation:
        price = Decimal("nan")
    if not price.is_finite() or price < 0:
        raise ValueError(f"{name} must be US dollars for a million tokens, not {given!r}")
    return price
