"""Implement the command ``dragoman models``."""

from __future__ import annotations

import asyncio
import fnmatch
import shutil
import sys
from collections import Counter
from typing import Annotated, Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from ..capabilities import NOTICE_DAYS, Capabilities, describe_end
from ..errors import InvalidModelError
from ..local import is_installed, list_models
from ..prices import PricedAs, PriceRow, PriceTable, Tier, Unpriced
from ..provider.http_model import show_url
from ..registry import (
    NEEDS,
    Choice,
    ModelEntry,
    Registry,
    choose_among,
    list_served,
    read_wanted,
)
from .completion import ModelName
from .console import format_table, legible, show_json, show_pages, show_table
from .errors import report_errors
from .options import load_registry
from .parameters import Json, add_options, option
from .update import update_command

_SHOWN = (
    "supports_images", "supports_documents", "supports_tools", "supports_thinking",
    "supports_structured_output",
)  # fmt: skip
_RATES = ("input", "output", "cache_read", "cache_write", "reasoning")
_HEADS = (
    "MODEL", "USE", "CONTEXT", "TOOLS", "$ IN", "$ OUT", "IMAGES", "THINKS", "SCHEMA", "DOCS",
    "OUTPUT", "ENDS", "ALIASES",
)  # fmt: skip
# Capabilities that are relevant only for embedding and reranking models.
_RETRIEVAL = (
    "supports_embeddings", "supports_reranking", "supports_dimensions", "max_dimensions",
    "max_batch_size",
)  # fmt: skip
_RIGHT = ("CONTEXT", "OUTPUT", "$ IN", "$ OUT")
_SECONDS = 1.0  # how many seconds a local server may take to list its models


class _Models(click.Group):
    """Treat ``dragoman models`` alone, or with a name or options, as ``dragoman models list``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] == "search":  # what people type first
            args = args[1:]
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group("models", cls=_Models)
def command() -> None:
    """List models (dragoman models [NAME]), or update the catalogue.

    "dragoman models" without a subcommand does the same as "dragoman models list".
    """


class ModelFilter(Struct):
    """The options that choose models."""

    configured: Annotated[bool, "List only models that can be used now."] = False
    needs: Annotated[
        str | None, f"List only models with all needs of LIST: {', '.join(NEEDS)}.", option("LIST")
    ] = None
    max_input_price: Annotated[
        str | None, "List only models up to this price of a million input tokens.", option("USD")
    ] = None
    max_output_price: Annotated[
        str | None, "List only models up to this price of a million output tokens.", option("USD")
    ] = None
    tier: Annotated[str | None, "List only this tier of your models.yaml.", option("WORD")] = None


@command.command("list")
@click.argument("name", type=ModelName(), required=False)
@add_options
def list_command(
    name: str | None,
    *,
    wanted: ModelFilter,
    excluded: Annotated[
        bool, "List the models that the other options exclude, with reasons."
    ] = False,
    everything: Annotated[
        bool, "List embedding and transcription models as well.", option(flags="--all")
    ] = False,
    live: Annotated[bool, "List the models that servers on this machine serve now."] = True,
    no_pager: Annotated[bool, "Print a long list without a pager."] = False,
    as_json: Annotated[Json, "Print every fact with its source as JSON."] = False,
) -> None:
    """List models with their capabilities and prices.

    If NAME is a model or an alias, each of its capabilities is shown with its source; if it is a
    pattern such as groq:* or llama, the matching models are listed. Prices are US dollars per
    million tokens; "?" means unknown; it does not mean no. Local servers, such as Ollama, are
    queried for their models. A long list is shown through $PAGER at a terminal.

    With --needs, --tier or a price limit, models that do not meet the condition, or for which it
    is unknown, are omitted; --json then prints an object with "models" and "excluded".
    """
    with report_errors():
        registry = load_registry()
        found = _local_entries() | _live_entries(registry, name, live=live)
        catalogue = _ModelList(registry, registry.prices(), found)
        entries = catalogue.find(name)
        if excluded or replace(wanted, configured=False) != ModelFilter():
            chats = [entry for entry in entries if everything or catalogue.chats(entry)]
            choice = _choose(catalogue, chats, wanted)
            _show_choice(catalogue, choice, as_json=as_json, listed=excluded)
            return
        if wanted.configured:
            entries = [entry for entry in entries if entry.status == "configured"]
        if as_json:
            show_json([catalogue.as_data(entry) for entry in entries])
        elif len(entries) == 1 and name in (entries[0].id, *entries[0].aliases):
            _show_one(catalogue, entries[0])
        else:
            _show_all(catalogue, entries, everything=everything, use_pager=not no_pager)


command.add_command(update_command)


def _choose(catalogue: _ModelList, entries: list[ModelEntry], options: ModelFilter) -> Choice:
    try:
        wanted = read_wanted(**asdict(options))
    except ValueError as error:
        option, _, problem = str(error).partition(" " if str(error).startswith("max") else ": ")
        raise click.UsageError(f"--{option.replace('_', '-')}: {problem}") from error
    single = [entry for entry in entries if entry.group is None]
    return choose_among(single, wanted, catalogue.prices)


def _show_choice(catalogue: _ModelList, choice: Choice, *, as_json: bool, listed: bool) -> None:
    """Print the models that fit, and the excluded ones: how many, or a list with reasons."""
    if as_json:
        models = [catalogue.as_data(entry) for entry in choice.models]
        show_json({"models": models, "excluded": choice.excluded})
        return
    rows = [_row(catalogue, entry)[:-1] for entry in choice.models]
    if rows:
        show_pages(format_table(_HEADS[:-1], rows, right=_RIGHT), use_pager=False)
    if listed:
        reasons = [[name, ", ".join(why)] for name, why in choice.excluded.items()]
        show_table(["EXCLUDED", "WHY"], reasons)
    counts = Counter([reason for reasons in choice.excluded.values() for reason in reasons])
    why = ", ".join([f"{reason} {count}" for reason, count in counts.most_common()])
    more = f"; {len(choice.excluded)} are excluded: {why}" if why else ""
    hint = "; --excluded lists them" if why and not listed else ""
    click.echo(f"{len(rows)} models fit, cheapest first{more}{hint}")


# --- lookup of models --------------------------------------------------------------------------


class _ModelList(Struct):
    """The models to list: those found on this machine, then those in the registry."""

    registry: Registry
    prices: PriceTable
    found: dict[str, ModelEntry]

    def find(self, name: str | None) -> list[ModelEntry]:
        """Return the model with this name, or else all models that match it as a pattern."""
        names = [*self.found, *[each for each in self.registry.names() if each not in self.found]]
        if name is None:
            return [self.entry(each) for each in names]
        if name not in names and name not in self.registry.aliases():
            is_pattern = any(sign in name for sign in "*?[")
            pattern = (name if is_pattern else f"*{name}*").lower()
            fitting = [each for each in names if fnmatch.fnmatchcase(each.lower(), pattern)]
            if fitting:
                return [self.entry(each) for each in fitting]
            # A name that is not listed is accepted unless it is a pattern: a local server that is
            # not running lists no models.
            if is_pattern:
                raise InvalidModelError(f"no model that is listed fits {name!r}", model=name)
        return [self.entry(name)]

    def entry(self, name: str) -> ModelEntry:
        return self.found[name] if name in self.found else self.registry.find(name)

    def price(self, entry: ModelEntry) -> PriceRow | Unpriced:
        return self.prices.find(entry.priced_as.model)

    def chats(self, entry: ModelEntry) -> bool:
        """Return whether a model accepts messages, unlike embedding and transcription models."""
        if entry.adapter == "local":
            return True
        vendor = self.registry.adapter(entry.adapter).vendor
        return vendor is None or entry.wire_name not in vendor.not_chat

    def needs(self, entry: ModelEntry) -> str:
        """Return what the user must set or install before using a model, or an empty string."""
        if entry.status == "configured":
            return ""
        if entry.adapter == "local":
            return "pip install 'dragoman[local]'"
        adapter = self.registry.adapter(entry.adapter)
        return str(adapter.api_key_env) if adapter.base_url else "base_url in models.yaml"

    def key_variable(self, entry: ModelEntry) -> str | None:
        is_local = entry.adapter == "local"
        return None if is_local else self.registry.adapter(entry.adapter).api_key_env

    def address(self, entry: ModelEntry) -> tuple[str | None, str | None]:
        """Return the address of a model's server, and the variable that it comes from, if any."""
        if entry.adapter == "local":
            return None, None
        adapter = self.registry.adapter(entry.adapter)
        return adapter.base_url and show_url(adapter.base_url), adapter.address_env

    def as_data(self, entry: ModelEntry) -> dict[str, Any]:
        address, address_env = self.address(entry)
        price = self.price(entry)
        unknown = {"value": None, "source": "unknown"}
        known = asdict(entry.capabilities)
        facts = {name: unknown | msgspec.to_builtins(fact) for name, fact in known.items()}
        return {
            "id": entry.id,
            "adapter": entry.adapter,
            "wire_name": entry.wire_name,
            "status": entry.status,
            "configured": entry.status == "configured",
            "address": address,
            "address_env": address_env,
            "api_key_env": self.key_variable(entry),
            "served_here": entry.id in self.found,
            "chats": self.chats(entry),
            "tier": entry.tier,
            "can_delegate": entry.can_delegate,
            "aliases": list(entry.aliases),
            "tokens": entry.tokens,
            "capabilities": facts,
            "end_notice": describe_end(entry.id, entry.capabilities),
            "price": None if isinstance(price, Unpriced) else self._price_as_data(price),
            "price_unknown": price.reason if isinstance(price, Unpriced) else None,
        }

    def _price_as_data(self, price: PriceRow) -> dict[str, Any]:
        return {
            **{rate: msgspec.to_builtins(getattr(price, rate)) for rate in _RATES},
            "currency": "USD",
            "per_tokens": 1_000_000,
            "free": price.free,
            "has_tiers": bool(price.tiers),
            "pricing_version": self.prices.version,
        }


def _local_entries() -> dict[str, ModelEntry]:
    """Return the entries for the embedded model and for downloaded models."""
    entries = {}
    for at, model in enumerate(list_models()):
        if at > 0 and not model.is_present:
            continue
        # the first model is the default, which is downloaded on first use
        name = f"local:{model.name}" if at > 0 else "local"
        facts = {} if model.calls_tools is None else {"supports_tools": model.calls_tools}
        entries[name] = ModelEntry(
            id=name,
            adapter="local",
            wire_name=model.name,
            capabilities=Capabilities.of(facts, "catalogue", by="local"),
            status="configured" if is_installed() else "not_configured",
            priced_as=PricedAs.of("free", model.name),
        )
    return entries


def _live_entries(registry: Registry, name: str | None, *, live: bool) -> dict[str, ModelEntry]:
    """Return the models that local servers list.

    Report a server that does not respond, if ``models.yaml`` or an environment variable has its
    address.
    """
    prefix, colon, rest = (name or "").partition(":")
    is_exact = bool(rest) and not any(sign in rest for sign in "*?[")
    own, others = registry.local_adapters() if live and not is_exact else ([], [])
    wanted = [each for each in [*own, *others] if not colon or each.name == prefix]
    if not wanted:
        return {}
    found = asyncio.run(list_served(wanted, _SECONDS))
    failed = [
        f"{each.adapter.name} ({each.problem})"
        for each in found
        if each.problem and (each.adapter in own or each.adapter.address_env)
    ]
    if failed:
        click.echo(f"note: no list of models from {', '.join(failed)}", err=True)
    return {
        entry.id: entry
        for served in found
        for model in served.models
        for entry in [registry.find(f"{served.adapter.name}:{model}")]
    }


# --- showing models as text --------------------------------------------------------------------


def _show_all(
    catalogue: _ModelList, entries: list[ModelEntry], *, everything: bool, use_pager: bool
) -> None:
    shown = [entry for entry in entries if everything or catalogue.chats(entry)]
    heads = _HEADS if any(entry.aliases for entry in shown) else _HEADS[:-1]
    rows = [_row(catalogue, entry)[: len(heads)] for entry in shown]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = format_table(heads, rows, right=_RIGHT, width=width) if rows else []
    usable = sum(entry.status == "configured" for entry in shown)
    advice = "dragoman models NAME shows where each fact is from"
    lines.append(f"{len(shown)} models, {usable} can be used now (*); {advice}")
    missing = list(dict.fromkeys(each for entry in shown if (each := catalogue.needs(entry))))
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        lines.append(f"the others need {', '.join(missing[:3])}{more}; see dragoman keys")
    ending = [each for each in shown if describe_end(each.id, each.capabilities) is not None]
    if ending:
        lines.append(f"{len(ending)} have ended or end within {NOTICE_DAYS} days; see ENDS")
    if hidden := len(entries) - len(shown):
        lines.append(f"{hidden} that embed or transcribe are left out; --all lists them")
    show_pages(lines, use_pager=use_pager)


def _row(catalogue: _ModelList, entry: ModelEntry) -> list[str]:
    known = entry.capabilities
    images, documents, tools, thinking, schema = [_write(known.known(fact)) for fact in _SHOWN]
    price = catalogue.price(entry)
    paid = paid_out = "?"
    if not isinstance(price, Unpriced):
        more = "+" if price.tiers else ""  # a plus sign marks a model whose long inputs cost more
        paid = f"{price.input}{more}"
        paid_out = f"{price.output}{more}"
    usable = "*" if entry.status == "configured" else ""
    context = _write(known.max_context_tokens.value)
    output = _write(known.max_output_tokens.value)
    can_do = [images, thinking, schema, documents]
    ends = "" if known.end_date.value is None else str(known.end_date.value)
    aliases = ", ".join(entry.aliases)
    return [entry.id, usable, context, tools, paid, paid_out, *can_do, output, ends, aliases]


def _write(value: Any) -> str:
    if value is None:
        return "?"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else ", ".join(value)


def _show_one(catalogue: _ModelList, entry: ModelEntry) -> None:
    missing = catalogue.needs(entry)
    variable = catalogue.key_variable(entry)
    if missing and missing == variable:
        missing = f"set {variable}, or: dragoman keys set {variable}"
    status = entry.status.replace("_", " ") + (f"; {missing}" if missing else "")
    click.echo(legible(f"{entry.id}: {status}"))
    notice = describe_end(entry.id, entry.capabilities)
    if notice is not None:
        click.echo(legible(f"  warning: {notice}"))
    address, address_env = catalogue.address(entry)
    labels = {
        "adapter": entry.adapter,
        "address": f"{address} (from {address_env})" if address_env else address,
        "sent as": entry.wire_name,
        "key": variable,
        "aliases": ", ".join(entry.aliases),
        "tier": entry.tier,
        "can delegate": "yes" if entry.can_delegate else "",
        "chats": "" if catalogue.chats(entry) else "no; it embeds or transcribes",
        "vocabulary": entry.tokens,
    }
    for label, value in labels.items():
        if value:
            click.echo(legible(f"  {label}: {value}"))
    rows = [
        [name, _write(fact.value), fact.source, fact.by or "", fact.at or ""]
        for name, fact in asdict(entry.capabilities).items()
        if name not in _RETRIEVAL or fact.value is not None
    ]
    show_table(["FACT", "VALUE", "SOURCE", "BY", "AT"], rows)
    price = catalogue.price(entry)
    if isinstance(price, Unpriced):
        click.echo(f"price unknown: {price.reason}")
        return
    text = "free" if price.free else _write_rates(price)
    click.echo(f"$ for a million tokens: {text} (table {catalogue.prices.version})")
    for tier in price.tiers:
        click.echo(f"  with more than {tier.above:,} input tokens: {_write_rates(tier)}")


def _write_rates(priced: PriceRow | Tier) -> str:
    rates = {rate: getattr(priced, rate) for rate in _RATES}
    return ", ".join([f"{rate} {usd}" for rate, usd in rates.items() if usd is not None])
