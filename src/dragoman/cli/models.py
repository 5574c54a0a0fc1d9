"""``dragoman models``."""

from __future__ import annotations

import fnmatch
from typing import Any

import click
import msgspec

from ..capabilities import Capabilities
from ..errors import InvalidModelError
from ..prices import PriceRow, Unpriced
from ..registry import ModelEntry, Registry
from .completion import ModelName
from .console import show_json, show_table
from .errors import report_errors
from .options import json_option, load_registry

_SHOWN = ("supports_images", "supports_documents", "supports_tools", "supports_thinking", "supports_structured_output")
_RATES = ("input", "output", "cache_read", "cache_write", "reasoning")


@click.command("models")
@click.argument("name", type=ModelName(), required=False)
@click.option("--configured", is_flag=True, help="Only those that can be used as things are.")
@json_option("every fact with where it is from")
def command(name: str | None, *, configured: bool, as_json: bool) -> None:
    """List models: what they can do, how we know, and what they cost.

    NAME is a model or an alias, shown with every fact and its source; or a pattern such as groq:* or
    llama, and then a list. Prices are US dollars for a million tokens; "?" is unknown, which is not no.
    """
    with report_errors():
        registry = load_registry()
        entries = [each for each in _find(registry, name) if not configured or each.status == "configured"]
        if as_json:
            show_json([_as_data(entry) for entry in entries])
        elif len(entries) == 1 and name in (entries[0].id, *entries[0].aliases):
            _show_one(entries[0])
        else:
            _show_all(entries)


def _find(registry: Registry, name: str | None) -> list[ModelEntry]:
    """One model by its name, else all that fit a pattern; ``InvalidModelError`` suggests when nothing does."""
    names = registry.names()
    if name is None:
        return [registry.find(each) for each in names]
    if name not in names and name not in registry.aliases():
        is_pattern = any(sign in name for sign in "*?[")
        pattern = name if is_pattern else f"*{name}*"
        found = [each for each in names if fnmatch.fnmatchcase(each.lower(), pattern.lower())]
        if found:
            return [registry.find(each) for each in found]
        if is_pattern:  # of a server of one's own nothing is listed, and any name could be asked for
            raise InvalidModelError(f"no model that is listed fits {name!r}", model=name)
    return [registry.find(name)]


def _price(entry: ModelEntry) -> PriceRow | Unpriced:
    return load_registry().prices().find(entry.priced_as.model)


def _as_data(entry: ModelEntry) -> dict[str, Any]:
    price = _price(entry)
    facts = {fact: msgspec.to_builtins(getattr(entry.capabilities, fact)) for fact in Capabilities.__struct_fields__}
    unknown = {"value": None, "source": "unknown"}
    return {
        "id": entry.id,
        "adapter": entry.adapter,
        "wire_name": entry.wire_name,
        "status": entry.status,
        "configured": entry.status == "configured",
        "tier": entry.tier,
        "can_delegate": entry.can_delegate,
        "aliases": list(entry.aliases),
        "tokens": entry.tokens,
        "capabilities": {fact: unknown | value for fact, value in facts.items()},
        "price": None if isinstance(price, Unpriced) else _price_as_data(price),
        "price_unknown": price.reason if isinstance(price, Unpriced) else None,
    }


def _price_as_data(price: PriceRow) -> dict[str, Any]:
    rates = {rate: None if getattr(price, rate) is None else str(getattr(price, rate)) for rate in _RATES}
    return {
        **rates,
        "currency": "USD",
        "per_tokens": 1_000_000,
        "free": price.free,
        "has_tiers": bool(price.tiers),
        "pricing_version": load_registry().prices().version,
    }


# --- for people -------------------------------------------------------------------------------------


def _show_all(entries: list[ModelEntry]) -> None:
    heads = ["MODEL", "STATUS", "CONTEXT", "OUTPUT", "IMAGES", "DOCS", "TOOLS", "THINKS", "SCHEMA", "$ IN", "$ OUT"]
    rows = []
    for entry in entries:
        known = entry.capabilities
        rows.append([
            ", ".join([entry.id, *entry.aliases]),
            entry.status.replace("_", " "),
            _say(known.max_context_tokens.value),
            _say(known.max_output_tokens.value),
            *[_say(known.known(fact)) for fact in _SHOWN],
            *_say_price(_price(entry)),
        ])  # fmt: skip
    if rows:
        show_table(heads, rows, right=[2, 3, 9, 10])
    usable = sum(entry.status == "configured" for entry in entries)
    click.echo(f"{len(rows)} models, {usable} of them configured; dragoman models NAME tells where each fact is from")


def _say(value: Any) -> str:
    if value is None:
        return "?"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else ", ".join(value)


def _say_price(price: PriceRow | Unpriced) -> tuple[str, str]:
    if isinstance(price, Unpriced):
        return "?", "?"
    more = "+" if price.tiers else ""  # dearer for long inputs
    return f"{price.input}{more}", f"{price.output}{more}"


def _show_one(entry: ModelEntry) -> None:
    click.echo(f"{entry.id}: {entry.status.replace('_', ' ')}")
    said = {
        "adapter": entry.adapter,
        "sent as": entry.wire_name,
        "aliases": ", ".join(entry.aliases),
        "tier": entry.tier,
        "can delegate": "yes" if entry.can_delegate else "",
        "vocabulary": entry.tokens,
    }
    for label, value in said.items():
        if value:
            click.echo(f"  {label}: {value}")
    facts = [(name, getattr(entry.capabilities, name)) for name in Capabilities.__struct_fields__]
    rows = [[name, _say(fact.value), fact.source, fact.by or "", fact.at or ""] for name, fact in facts]
    show_table(["FACT", "VALUE", "SOURCE", "BY", "AT"], rows)
    price = _price(entry)
    if isinstance(price, Unpriced):
        click.echo(f"price unknown: {price.reason}")
        return
    rates = [f"{rate} {getattr(price, rate)}" for rate in _RATES if getattr(price, rate) is not None]
    words = "free" if price.free else ", ".join(rates)
    click.echo(f"$ for a million tokens: {words} (table {load_registry().prices().version})")
    for tier in price.tiers:
        dearer = [f"{rate} {getattr(tier, rate)}" for rate in _RATES if getattr(tier, rate) is not None]
        click.echo(f"  with more than {tier.above:,} input tokens: {', '.join(dearer)}")
