"""Read public lists of models into capabilities and prices for the catalogue.

Three formats are recognised by their shape; ``catalog/sources.json`` maps their vendor names and
fields to the catalogue's:

=============  =====================================================================================
``by_key``     a mapping of model names, each with its provider, limits and costs per token
``by_vendor``  a mapping of vendors, each with a mapping of models
``as_list``    ``{"data": [...]}``, the models of one vendor
=============  =====================================================================================

Only models that take messages and answer with text are read. Impossible values are rejected, not
corrected.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct

MAX_BYTES = 64 * 1024 * 1024
_MAX_TOKENS = 100_000_000
_MAX_PRICE = Decimal(10_000)  # the highest plausible price, in US dollars for a million tokens
_COUNTS = ("context", "output")
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


class ListFormat(Struct, frozen=True, forbid_unknown_fields=True):
    """A format of public lists: its publisher, and where a model's facts and prices are.

    ``vendors`` maps the list's names of vendors to the catalogue's. A fact has the paths of its
    fields, of which the first known one counts; ``path[word]`` is whether a list has a word.
    ``factor`` converts prices to those of a million tokens; ``tiers`` are those of long inputs.
    """

    format: str
    vendors: dict[str, str]
    facts: dict[str, tuple[str, ...]]
    prices: dict[str, str]
    factor: int
    tiers: dict[int, dict[str, str]] = {}


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
    form = read_sources()[kind]
    found: Listed = {}
    for vendor_name, name, record in _READERS[kind](content):
        vendor = form.vendors.get(vendor_name)
        if vendor is not None and not _UNUSABLE.search(name):
            if not name.isprintable() or not 0 < len(name) <= 200:
                raise ListError(f"not the name of a model: {name[:60]!r}")
            model = _read_model(form, record)
            _check_model(f"{vendor}:{name}", model)
            found.setdefault(vendor, {})[name] = model
    if not found:
        raise ListError("the list has no chat model of a known vendor")
    return kind, found


@cache
def read_sources() -> dict[str, ListFormat]:
    """Return the list formats by name."""
    data = files("dragoman").joinpath("catalog", "sources.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, ListFormat])


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


def _check_model(name: str, model: ListedModel) -> None:
    for fact in _COUNTS:
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
            # Vertex AI has a name for each publisher (vertex_ai-anthropic_models), and one prefix.
            kind = vendor.partition("-")[0]
            yield vendor, key.removeprefix(f"{vendor}/").removeprefix(f"{kind}/"), record


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


_READERS = {"by_key": _by_key, "by_vendor": _by_vendor, "as_list": _as_list}
_ABOVE = re.compile(r"(\w+)_above_(\d+)k_tokens")


# --- facts and prices of a model ---------------------------------------------------------------


def _read_model(form: ListFormat, record: dict[str, Any]) -> ListedModel:
    facts = {fact: _read_fact(fact, record, paths) for fact, paths in form.facts.items()}
    known = {fact: value for fact, value in facts.items() if value is not None}
    costs = {rate: _find(record, path) for rate, path in form.prices.items()}
    # A router such as openrouter/auto has the price -1: the chosen model determines the price.
    prices = {} if "-1" in costs.values() else _convert(costs, form.factor)
    if "input" not in prices or "output" not in prices:
        return ListedModel(known, {})
    tiers = {
        above: {rate: _find(record, path) for rate, path in paths.items()}
        for above, paths in form.tiers.items()
    }
    for key, value in record.items():
        if found := _ABOVE.fullmatch(key):
            rates = [rate for rate, path in form.prices.items() if path == found[1]]
            tiers.setdefault(int(found[2]) * 1000, {}).update(dict.fromkeys(rates, value))
    read = {above: _convert(tier, form.factor) for above, tier in sorted(tiers.items())}
    return ListedModel(known, prices, {above: rates for above, rates in read.items() if rates})


def _read_fact(fact: str, record: dict[str, Any], paths: Iterable[str]) -> bool | int | str | None:
    for path in paths:
        value = _find(record, path)
        if fact == "ends":
            return _read_day(value)
        if fact in _COUNTS:
            value = _count(value)
        if isinstance(value, bool | int):
            return value
    return None


def _read_day(value: Any) -> str | None:
    """Return a day such as ``2026-12-11``; ``None`` for a value in another form."""
    try:
        return datetime.date.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        return None


def _find(record: Any, path: str) -> Any:
    """Return the value at a path such as ``limit.output``; ``None`` if there is none."""
    path, _, word = path.rstrip("]").partition("[")
    *outer, last = path.split(".")
    for part in outer:
        record = _part(record, part)
    value = record.get(last)
    return _holds(word, value) if word else value


def _part(record: Any, key: str) -> dict[str, Any]:
    """Return the mapping under a key of a record; an empty mapping if there is none."""
    part = record.get(key) if isinstance(record, dict) else None
    return part if isinstance(part, dict) else {}


def _holds(word: str, words: Any) -> bool | None:
    """Return whether ``words`` contains a word; ``None`` if ``words`` is not a list."""
    return word in words if isinstance(words, list) else None


def _count(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and value else None


def _convert(costs: dict[str, Any], factor: int) -> dict[str, str]:
    found = {}
    for rate, cost in costs.items():
        try:
            price = Decimal(str(cost)) * factor
        except InvalidOperation:
            continue
        if price.is_finite():
            found[rate] = format(price.normalize(), "f")
    return found
