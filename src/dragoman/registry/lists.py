"""Read public lists of models into capabilities and prices for the catalogue.

Three formats are recognised by their shape; ``catalog/sources.json`` maps their vendor names to
the catalogue's:

=============  =====================================================================================
``by_key``     a mapping of model names, each with its provider, limits and costs per token
``by_vendor``  a mapping of vendors, each with a mapping of models
``as_list``    ``{"data": [...]}``, the models of one vendor
=============  =====================================================================================

Only models that take messages and answer with text are read. Impossible values are rejected, not
corrected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct

MAX_BYTES = 64 * 1024 * 1024
_MAX_TOKENS = 100_000_000
_MAX_PRICE = Decimal(10_000)  # the highest plausible price, in US dollars for a million tokens
_MILLION = Decimal(1_000_000)
_RATES = ("input", "output", "cache_read", "cache_write")
# Entries that are not models: prices by region or model size, containers, wildcards.
_UNUSABLE = re.compile(
    r"^(eu|us|us-gov|global|global-standard|apac|au|in|jp|uk)/|-ai-\d|container|\*"
)


class ListError(ValueError):
    """A list of models cannot be used; the message gives the reason."""


class ListedModel(Struct, frozen=True):
    """One model of a list, with capabilities and prices under the catalogue's keys.

    Prices are in US dollars per million tokens. ``tiers`` are the prices of long inputs, by the
    number of input tokens above which they apply.
    """

    facts: dict[str, Any]
    prices: dict[str, str]
    tiers: dict[int, dict[str, str]] = {}


Listed = dict[str, dict[str, ListedModel]]


def read_list(data: bytes) -> tuple[str, Listed]:
    """Read a public list of models; return the name of its format and its models by vendor.

    Raise ``ListError`` if the list is invalid.
    """
    if len(data) > MAX_BYTES:
        raise ListError(f"the list is larger than {MAX_BYTES // 1024 // 1024} MiB")
    try:
        content = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ListError(f"the list is not JSON: {error}") from None
    kind = _find_format(content)
    vendors = read_sources()[kind]["vendors"]
    found: Listed = {}
    for theirs, name, record in _READERS[kind](content):
        if theirs in vendors and not _UNUSABLE.search(name):
            _check_name(name)
            model = _WRITERS[kind](record)
            _check_model(f"{vendors[theirs]}:{name}", model)
            found.setdefault(vendors[theirs], {})[name] = model
    if not found:
        raise ListError("the list has no chat model of a known vendor")
    return kind, found


@cache
def read_sources() -> dict[str, Any]:
    """Return the list formats, each with its publisher and the vendor names that it uses."""
    sources: dict[str, Any] = msgspec.json.decode(
        files("dragoman").joinpath("catalog", "sources.json").read_bytes()
    )
    return sources


def _find_format(content: Any) -> str:
    if isinstance(content, dict):
        if isinstance(content.get("data"), list):
            return "as_list"
        records = [record for record in content.values() if isinstance(record, dict)]
        if any(isinstance(record.get("models"), dict) for record in records):
            return "by_vendor"
        if any("mode" in record or "max_tokens" in record for record in records):
            return "by_key"
    raise ListError("the list has no known format")


def _check_name(name: str) -> None:
    if not name.isprintable() or not 0 < len(name) <= 200:
        raise ListError(f"not the name of a model: {name[:60]!r}")


def _check_model(name: str, model: ListedModel) -> None:
    for fact in ("context", "output"):
        value = model.facts.get(fact)
        if value is not None and not 0 < value <= _MAX_TOKENS:
            raise ListError(f"{name}: {fact} of {value} tokens cannot be")
    for rate, text in [
        rate for prices in (model.prices, *model.tiers.values()) for rate in prices.items()
    ]:
        price = Decimal(text)
        if not 0 <= price <= _MAX_PRICE:
            raise ListError(f"{name}: {rate} of {price} dollars for a million tokens cannot be")


# --- formats of model lists --------------------------------------------------------------------


def _by_key(content: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for key, record in content.items():
        if isinstance(record, dict) and record.get("mode") in ("chat", "responses"):
            # Leave out models that output speech or music instead of text.
            if _holds("text", record.get("supported_output_modalities")) is False:
                continue
            vendor = next(
                (value for field, value in record.items() if field.endswith("_provider")), ""
            )
            yield vendor, key.removeprefix(f"{vendor}/"), record


def _by_vendor(content: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for vendor, group in content.items():
        for name, record in _part(group, "models").items():
            if _part(record, "modalities").get("output") == ["text"] and "embedding" not in name:
                yield vendor, name, record


def _as_list(content: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    named = [
        record
        for record in content["data"]
        if isinstance(record, dict) and isinstance(record.get("id"), str)
    ]
    for record in named:
        if "text" in (_part(record, "architecture").get("output_modalities") or ["text"]):
            yield "", record["id"], record


_KEYS = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cache_read": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
}
_RATE_OF = {key: rate for rate, key in _KEYS.items()}
_ABOVE = re.compile(rf"({'|'.join(_RATE_OF)})_above_(\d+)k_tokens")


def _write_key(record: dict[str, Any]) -> ListedModel:
    facts = {
        "context": _count(record.get("max_input_tokens") or record.get("max_tokens")),
        "output": _count(record.get("max_output_tokens")),
        "images": record.get("supports_vision"),
        "documents": record.get("supports_pdf_input"),
        "tools": record.get("supports_function_calling"),
        "thinking": record.get("supports_reasoning"),
        "structured": record.get("supports_response_schema"),
        "system": record.get("supports_system_messages"),
        "parallel_tools": record.get("supports_parallel_function_calling"),
        "caching": record.get("supports_prompt_caching"),
        "streaming": record.get("supports_native_streaming"),
    }
    costs = {rate: record.get(theirs) for rate, theirs in _KEYS.items()}
    tiers: dict[int, dict[str, Any]] = {}
    for key, value in record.items():
        if found := _ABOVE.fullmatch(key):
            tiers.setdefault(int(found[2]) * 1000, {})[_RATE_OF[found[1]]] = value
    prices = _price(costs, _MILLION)
    return ListedModel(_known(facts), prices, _price_tiers(prices, tiers, _MILLION))


def _write_vendor(record: dict[str, Any]) -> ListedModel:
    seen, limit, cost = (
        _part(record, "modalities").get("input"),
        _part(record, "limit"),
        _part(record, "cost"),
    )
    calls = _part(record, "tool_call")
    facts = {
        "context": _count(limit.get("context")),
        "output": _count(limit.get("output")),
        "images": _holds("image", seen),
        "documents": _holds("pdf", seen),
        "tools": calls.get("supported", record.get("tool_call")),
        "streaming_tools": calls.get("streaming"),
        "parallel_tools": calls.get("parallel"),
        "thinking": record.get("reasoning"),
        "structured": record.get("structured_output"),
    }
    prices = _price({rate: cost.get(rate) for rate in _RATES}, Decimal(1))
    long = {rate: _part(cost, "context_over_200k").get(rate) for rate in _RATES}
    return ListedModel(_known(facts), prices, _price_tiers(prices, {200_000: long}, Decimal(1)))


def _write_entry(record: dict[str, Any]) -> ListedModel:
    seen = _part(record, "architecture").get("input_modalities")
    taken, pricing = record.get("supported_parameters"), _part(record, "pricing")
    facts = {
        "context": _count(record.get("context_length")),
        "output": _count(_part(record, "top_provider").get("max_completion_tokens")),
        "images": _holds("image", seen),
        "documents": _holds("file", seen),
        "tools": _holds("tools", taken),
        "thinking": _holds("reasoning", taken),
        "structured": _holds("structured_outputs", taken),
    }
    named = zip(
        _RATES, ("prompt", "completion", "input_cache_read", "input_cache_write"), strict=True
    )
    costs = {rate: pricing.get(theirs) for rate, theirs in named}
    # A router such as openrouter/auto has the price -1: the chosen model determines the price.
    return ListedModel(_known(facts), {} if "-1" in costs.values() else _price(costs, _MILLION))


def _part(record: Any, key: str) -> dict[str, Any]:
    """Return the mapping under a key of a record; an empty mapping if there is none."""
    part = record.get(key) if isinstance(record, dict) else None
    return part if isinstance(part, dict) else {}


def _holds(word: str, words: Any) -> bool | None:
    """Return whether ``words`` contains a word; ``None`` if ``words`` is not a list."""
    return word in words if isinstance(words, list) else None


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if isinstance(value, bool | int)}


def _count(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return (
        int(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and value
        else None
    )


def _price(costs: dict[str, Any], factor: Decimal) -> dict[str, str]:
    rates = _convert(costs, factor)
    return rates if "input" in rates and "output" in rates else {}


def _price_tiers(
    prices: dict[str, str], tiers: dict[int, dict[str, Any]], factor: Decimal
) -> dict[int, dict[str, str]]:
    """Return the prices of long inputs; for a rate that a tier omits, the model's rate applies."""
    found = {above: _convert(costs, factor) for above, costs in sorted(tiers.items())}
    return {above: rates for above, rates in found.items() if prices and rates}


def _convert(costs: dict[str, Any], factor: Decimal) -> dict[str, str]:
    found = {}
    for rate, cost in costs.items():
        try:
            price = Decimal(str(cost)) * factor
        except InvalidOperation:
            continue
        if price.is_finite():
            found[rate] = format(price.normalize(), "f")
    return found


_READERS = {"by_key": _by_key, "by_vendor": _by_vendor, "as_list": _as_list}
_WRITERS = {"by_key": _write_key, "by_vendor": _write_vendor, "as_list": _write_entry}
