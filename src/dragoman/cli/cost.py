"""Implement the command ``dragoman cost``."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import click
import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from ..errors import InvalidModelError
from ..events import Usage
from ..prices import Cost, Unpriced, cost
from ..prices.results import EXACT
from ..registry import Registry
from ..wire.anthropic.reply import USAGE as MESSAGES_USAGE
from ..wire.openai.usage import read_usage as chat_usage
from ..wire.responses.reply import USAGE as RESPONSES_USAGE
from .completion import ModelName
from .console import Bar, legible, show_json, show_table
from .errors import reject, report_errors
from .options import load_prices, load_registry
from .parameters import ExistingFile, Json, add_options, option

_DIGITS = 60  # the digits before and after the point that an amount is written with
_SOMETHING = re.compile(r"\S")
_Tokens: TypeAlias = Annotated[int | None, option("N", ge=0)]


class Counts(Struct):
    """The options for counts of tokens, named as the fields of ``Usage``."""

    input_tokens: Annotated[
        _Tokens, "Price N input tokens, cached ones included.", option(flags="--input")
    ] = None
    output_tokens: Annotated[
        _Tokens, "Price N output tokens, reasoning included.", option(flags="--output")
    ] = None
    cached_input_tokens: Annotated[
        _Tokens, "Count N input tokens as read from a cache.", option(flags="--cached")
    ] = None
    cache_creation_input_tokens: Annotated[
        _Tokens, "Count N input tokens as written to a cache.", option(flags="--cache-write")
    ] = None
    reasoning_tokens: Annotated[
        _Tokens, "Count N output tokens as reasoning.", option(flags="--reasoning")
    ] = None


@click.command("cost")
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), required=False
)
@add_options
def command(
    file: str | None,
    *,
    model: Annotated[
        str | None, "Use this model's prices.", option("MODEL", type=ModelName())
    ] = None,
    counts: Counts,
    at: Annotated[
        str | None, "Use the prices of a day such as 2026-07-01.", option("WHEN")
    ] = None,
    prices: Annotated[ExistingFile, "Read prices from a file before the bundled ones."] = None,
    as_json: Annotated[Json, "Print the bill as JSON."] = False,
) -> None:
    """Compute the cost of calls, for each kind of token.

    FILE is JSON, or JSON Lines, or - for standard input: a usage, a reply, the events of "ask
    --json", or the export of a log. The counts can also be given as options. An unknown price
    never counts as zero.
    """
    given = {name: value for name, value in asdict(counts).items() if value is not None}
    if (file is None) == (not given):
        raise click.UsageError("give either a FILE, or counts such as --input 1000 --output 200")
    if given and model is None:
        raise click.UsageError("counts need the prices of a model; add --model NAME")
    with report_errors():
        moment = _read_time(at, "--at") if at is not None else None
        own = _Use(msgspec.convert(given, Usage), "", None)
        uses = iter([own]) if file is None else _read_uses(file)
        table = load_prices(prices)
        whole = _Sum()
        models = dict[str, _Sum]()
        registry = load_registry()
        sold_as = cache(lambda name: _find_sold_as(registry, name, is_given=model is not None))
        for use in uses:
            name = sold_as(model or use.model)
            bill = cost(use.usage, name, moment or use.at, table=table)
            whole.add(bill)
            models.setdefault(name, _Sum()).add(bill)
    if not models:
        raise click.UsageError(f"{file} has no usage; give the output of dragoman ask --json")
    if as_json:
        head = {"currency": "USD", "pricing_version": table.version}
        listed = [{"model": name, **each.as_data()} for name, each in models.items()]
        show_json({**head, **whole.as_data(), "models": listed})
    else:
        _show(whole, models, table.version)


def _find_sold_as(registry: Registry, name: str, *, is_given: bool) -> str:
    """Return the name of a model in price tables; ``is_given`` is whether --model names it."""
    if not name:
        raise click.UsageError("the file does not name its model; add --model NAME")
    try:
        return registry.find(name).priced_as.model
    except InvalidModelError:
        if is_given and ":" not in name:
            raise
        return name  # a custom price table may contain an unknown name


# --- reading usage from files ------------------------------------------------------------------


class _Use(Struct, frozen=True):
    """The usage of one call, as read from a file."""

    usage: Usage
    model: str
    at: datetime | None


def _read_uses(path: str) -> Iterator[_Use]:
    speakers: dict[str, str] = {}
    for place, document in _read_documents(path):
        for item in document if isinstance(document, list) else [document]:
            if not isinstance(item, dict):
                raise click.UsageError(f"{path}:{place}: a JSON object was expected")
            with reject(ValueError, OverflowError, about=f"{path}:{place}: "):
                use = _find_use(item, speakers)
            if use is not None:
                yield use


def _read_documents(path: str) -> Iterator[tuple[int, Any]]:
    """Yield the values of a file, JSON or JSON Lines, each with the line that it begins on."""
    with reject(OSError, UnicodeDecodeError, about=f"{path} cannot be read: "):
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
    decoder = json.JSONDecoder()
    at = 0
    line = 1
    with Bar(slow=True) as bar:
        while (begin := _SOMETHING.search(text, at)) is not None:
            line += text.count("\n", at, begin.start())
            with reject(ValueError, RecursionError, about=f"{path}:{line}: not JSON: "):
                value, at = decoder.raw_decode(text, begin.start())
            yield line, value
            line += text.count("\n", begin.start(), at)
            bar("reading", at, len(text))


def _find_use(item: dict[str, Any], speakers: dict[str, str]) -> _Use | None:
    """Return the usage of the call that an object describes; ``None`` if it describes no call."""
    if item.get("type") == "message.start":
        speakers[str(item.get("request_id"))] = _name(item)
        return None
    payload = item.get("payload")
    if isinstance(payload, dict):  # the object is a record of the event log
        if item.get("type") != "llm.call_completed":
            return None
        item = {**payload, "timestamp": item.get("timestamp")}
    usage = item.get("usage", item)
    counts = {"input_tokens", "output_tokens", "prompt_tokens"}
    if not isinstance(usage, dict) or not counts & usage.keys():
        return None
    when = item.get("timestamp") or item.get("at")
    name = speakers.get(str(item.get("request_id"))) or _name(item)
    return _Use(_read_usage(usage), name, _read_time(when, "timestamp") if when else None)


def _name(item: dict[str, Any]) -> str:
    provider = item.get("provider")
    model = item.get("model")
    if not isinstance(model, str):
        return ""
    return f"{provider}:{model}" if isinstance(provider, str) and provider else model


def _read_usage(usage: dict[str, Any]) -> Usage:
    """Read token counts in Dragoman's format or in the format of a wire."""
    counts = {name: value for name, value in usage.items() if value is not None}
    if "prompt_tokens" in counts:
        return chat_usage(counts) or Usage()
    if "cache_read_input_tokens" in counts:
        return MESSAGES_USAGE.read(counts)
    if "input_tokens_details" in counts:
        return RESPONSES_USAGE.read(counts)
    known = {name: counts[name] for name in Usage.__struct_fields__ if name in counts}
    return msgspec.convert(known, Usage)


def _read_time(when: Any, name: str) -> datetime:
    if isinstance(when, int | float) and not isinstance(when, bool):
        return datetime.fromtimestamp(when, UTC)
    try:
        return datetime.fromisoformat(str(when))
    except ValueError:
        problem = "is not a day or a moment, such as 2026-07-01T12:00Z"
        raise click.UsageError(f"{name}: {when!r} {problem}") from None


# --- adding up costs ---------------------------------------------------------------------------


class _Sum:
    """A sum of costs, and the number of calls without a known price."""

    def __init__(self) -> None:
        self.calls = 0
        self.total = Decimal(0)
        self.parts: dict[str, Decimal] = {}
        self.unpriced: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()

    def add(self, bill: Cost | Unpriced) -> None:
        self.calls += 1
        if isinstance(bill, Unpriced):
            self.unpriced[bill.reason] += 1
            return
        self.total = EXACT.add(self.total, bill.total)
        self.notes.update(bill.notes)
        for part, amount in bill.parts.items():
            self.parts[part] = EXACT.add(self.parts.get(part, Decimal(0)), amount)

    def as_data(self) -> dict[str, Any]:
        known = self.calls > self.unpriced.total()
        return {
            "calls": self.calls,
            "total": write_amount(self.total) if known else None,
            "parts": {part: write_amount(amount) for part, amount in self.parts.items()},
            "unpriced": dict(self.unpriced),
            "notes": list(self.notes),
        }


def write_amount(amount: Decimal) -> str:
    """Return an amount of money without an exponent and without trailing zeros.

    A record can contain an amount of any size; one with more digits than any cost is rounded.
    """
    if not amount.is_finite() or not -_DIGITS < amount.adjusted() < _DIGITS:
        return f"{amount:.6e}"
    return f"{amount.normalize(EXACT):f}"


def _show(whole: _Sum, models: dict[str, _Sum], version: str) -> None:
    if len(models) > 1:
        rows = [[model, str(each.calls), _amount(each)] for model, each in models.items()]
        show_table(["MODEL", "CALLS", "USD"], rows, right=["CALLS", "USD"])
        click.echo()
    else:
        click.echo(legible(next(iter(models))))
    parts = [[part, write_amount(amount)] for part, amount in whole.parts.items() if amount]
    if parts:
        show_table(["PART", "USD"], parts, right=["USD"])
    click.echo(f"total: {_amount(whole)} (prices {version})")
    for note in whole.notes:
        click.echo(legible(f"note: {note}"))
    for reason, count in whole.unpriced.items():
        click.echo(legible(f"price unknown, {count} of {whole.calls}: {reason}"))


def _amount(each: _Sum) -> str:
    unknown = each.unpriced.total()
    if unknown == each.calls:
        return "unknown"
    return f"{write_amount(each.total)}{' and more' if unknown else ''}"
