"""Price a call: split its token counts, so that none is billed twice; multiply by the rates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import overload

from msgspec import Struct
from msgspec.structs import replace

from ..events import Billed, Usage, find_absurd
from .results import EXACT, Cost, Unpriced
from .rows import Match, PriceRow, digest_rows
from .table import PriceTable

_ZERO = Decimal(0)
_MOST = 10**18  # the usage of many calls, such as those of a year, is priced too
STATED = "stated"
"""The pricing version of a cost that the provider states and no price table gives."""

# Each entry names a part of the bill, its rate, and the rate to use if a row lacks that rate.
_PARTS = (
    ("input", "input", "input"),
    ("cached_input", "cache_read", "input"),
    ("cache_write", "cache_write", "input"),
    ("output", "output", "output"),
    ("reasoning", "reasoning", "output"),
)


@overload
def cost(
    usage: Billed,
    model: str | PricedAs | None = None,
    at: date | datetime | None = None,
    *,
    table: PriceTable | None = None,
) -> Cost | Unpriced: ...
@overload
def cost(
    usage: Usage,
    model: str | PricedAs,
    at: date | datetime | None = None,
    *,
    table: PriceTable | None = None,
) -> Cost | Unpriced: ...
def cost(
    usage: Usage | Billed,
    model: str | PricedAs | None = None,
    at: date | datetime | None = None,
    *,
    table: PriceTable | None = None,
) -> Cost | Unpriced:
    """Price a call by its usage, its model as ``"provider:name"``, and its time (default: now).

    ``cost(reply)`` uses the price of the provider that answered (``Provider.priced_as``).
    ``table`` is ``PriceTable.default()`` unless you give your own. If no price is known, the cost
    is the one that the provider states in the usage, if it does. A seller that chooses a price
    for each request (``PriceTable.resolved``) is billed by the cost that it states.
    """
    if not isinstance(usage, Usage):
        if model is None:
            return _cost_of(usage, at, table)
        usage = usage.usage
    if model is None:
        raise TypeError("cost: a Usage needs its model, as in cost(usage, 'vendor:name')")
    if isinstance(model, PricedAs):
        return (model if table is None else replace(model, table=table)).cost(usage, at)
    table = PriceTable.default() if table is None else table
    row = table.find(model, at)
    if isinstance(row, Unpriced):
        return _take_stated(row, usage, model)
    found = _cost_by(row, usage, model, table.version, table)
    stated = usage.stated_cost_usd
    if model.partition(":")[0].lower() not in table.resolved or stated is None or stated < 0:
        return found
    notes = ["as the provider states it"]
    if found.total != stated:
        notes.append(f"the price table gives ${found.total:f}" if found else found.reason)
    return Cost(
        total=stated, parts={"stated": stated}, pricing_version=STATED, row=row, notes=tuple(notes)
    )


def _cost_of(
    reply: Billed, at: date | datetime | None, table: PriceTable | None
) -> Cost | Unpriced:
    if reply.sale is not None and reply.sale.find is not None:
        sold: PricedAs = reply.sale.find()
    else:  # a reply that was read from a file or built by hand has no price setting
        sold = PricedAs(f"{reply.provider or ''}:{reply.model or ''}")
    return (sold if table is None else replace(sold, table=table)).cost(reply.usage, at)


def _take_stated(unknown: Unpriced, usage: Usage, model: str) -> Cost | Unpriced:
    """Replace an unknown cost by the cost that the provider states, if it states one."""
    stated = usage.stated_cost_usd
    if stated is None or find_absurd(usage, _MOST) is not None:
        return unknown
    seller, _, name = model.partition(":")
    row = PriceRow(seller or "unknown", Match((name,)), unpriced=unknown.reason)
    return Cost(
        total=stated,
        parts={"stated": stated},
        pricing_version=STATED,
        row=row,
        notes=("as the provider states it",),
    )


def _cost_by(
    row: PriceRow, usage: Usage, model: str, version: str, table: PriceTable
) -> Cost | Unpriced:
    if row.free:  # a free model costs zero, even if the server reported no token counts
        return Cost(
            total=_ZERO,
            parts={part: _ZERO for part, _, _ in _PARTS},
            pricing_version=version,
            row=row,
        )
    if (absurd := find_absurd(usage, _MOST)) is not None:
        return Unpriced(f"usage is out of range: {absurd}")
    terms = table.find_terms(model, usage.terms)
    if isinstance(terms, Unpriced):
        return _take_stated(terms, usage, model)
    parts: dict[str, Decimal] = {}
    notes: list[str] = []
    if row.input is not None:
        if usage.output_tokens is None and not row.output:
            usage = replace(usage, output_tokens=0)  # an embedding model has no output tokens
        counts = _split(usage)
        if isinstance(counts, Unpriced):
            return _take_stated(counts, usage, model)
        parts, notes = _bill(counts, row, usage.input_tokens or 0)
    if row.search is not None:
        if usage.search_units is None:
            return _take_stated(Unpriced("usage not reported: search_units"), usage, model)
        parts["search"] = EXACT.scaleb(EXACT.multiply(usage.search_units, row.search), -3)
    for term, sold in zip(usage.terms, terms, strict=True):
        parts = {name: EXACT.multiply(each, sold.factor_of(name)) for name, each in parts.items()}
        notes.append(f"{term}: {sold.factor:f} times the usual rates")
    total = _add(parts.values())
    notes += _caveats(usage, row, model)
    stated = usage.stated_cost_usd
    if stated is not None and stated != total:
        notes.append(f"the provider states a cost of ${stated:f}")
    return Cost(total=total, parts=parts, pricing_version=version, row=row, notes=tuple(notes))


def _add(amounts: Iterable[Decimal]) -> Decimal:
    total = _ZERO
    for amount in amounts:
        if amount:
            total = EXACT.add(total, amount)
    return total


def _split(usage: Usage) -> dict[str, int] | Unpriced:
    """Split the counts of a usage, so that every token is in exactly one part of the bill."""
    whole = usage.input_tokens
    produced = usage.output_tokens
    if whole is None or produced is None:
        missing = "input_tokens" if whole is None else "output_tokens"
        return Unpriced(f"usage not reported: {missing}")
    cached = usage.cached_input_tokens or 0
    written = usage.cache_creation_input_tokens or 0
    reasoned = usage.reasoning_tokens or 0
    billed_input = usage.billed_input_tokens
    billed_output = usage.billed_output_tokens
    if cached + written > whole:
        return Unpriced(
            f"usage contradicts itself: cached_input_tokens {cached} and "
            f"cache_creation_input_tokens {written} are more than input_tokens {whole}"
        )
    if reasoned > produced:
        return Unpriced(
            f"usage contradicts itself: reasoning_tokens {reasoned} are more than output_tokens "
            f"{produced}"
        )
    counts = {
        "input": whole - cached - written,
        "cached_input": cached,
        "cache_write": written,
        "output": produced - reasoned,
        "reasoning": reasoned,
    }
    # Billed counts are not split: the provider reports no cached or reasoning part of them.
    if billed_input is not None:
        counts |= {"input": billed_input, "cached_input": 0, "cache_write": 0}
    if billed_output is not None:
        counts |= {"output": billed_output, "reasoning": 0}
    return counts


def _bill(
    counts: dict[str, int], row: PriceRow, input_tokens: int
) -> tuple[dict[str, Decimal], list[str]]:
    parts: dict[str, Decimal] = {}
    notes: list[str] = []
    for part, name, stand_in in _PARTS:
        count = counts[part]
        if not count:
            parts[part] = _ZERO
            continue
        rate = row.rate(name, input_tokens)
        if rate is None:
            rate = row.rate(stand_in, input_tokens) or _ZERO
            # Reasoning is billed as output by every provider; only a missing cache rate is noted.
            if stand_in == "input":
                notes.append(f"no {name} rate: {part} is billed at the input rate")
        parts[part] = EXACT.scaleb(EXACT.multiply(count, rate), -6)
    return parts, notes


def _caveats(usage: Usage, row: PriceRow, model: str) -> Iterator[str]:
    """Yield notes about uncertainties of a bill, such as estimated counts or disputed prices."""
    if usage.estimated:
        yield "the token counts are estimates"
    counted = (usage.input_tokens or 0) + (usage.output_tokens or 0)
    if usage.total_tokens not in (None, counted):
        yield f"total_tokens is {usage.total_tokens}, but input and output add up to {counted}"
    if (
        usage.cached_input_tokens is None
        and usage.billed_input_tokens is None
        and row.cache_read is not None
    ):
        yield "cached_input_tokens not reported: all input is billed as not cached"
    if usage.cache_creation_input_tokens and "cache_write_1h" in row.ignored:
        yield "cache writes are billed at the rate of the shortest lifetime; longer ones cost more"
    if (
        usage.reasoning_tokens is None
        and usage.billed_output_tokens is None
        and row.reasoning is not None
    ):
        yield "reasoning_tokens not reported: all output is billed at the output rate"
    seller = model.partition(":")[0].lower()
    if row.provider != seller:
        yield f"{seller} has no row for this model; the price is that of {row.provider}"
    if row.disputed:
        yield f"sources disagree: {row.disputed}"


class PricedAs(Struct, frozen=True, omit_defaults=True):
    """How calls of a provider are priced: as a model in a price table, or by a separate row.

    ``model`` is ``"vendor:name"``; models that run on your own machine are ``"local:name"`` and
    free. ``row`` replaces the table. ``table`` is where the model is looked up,
    ``PriceTable.default()`` if not given; ``unknown`` is the reason to report if the table does
    not have it.
    """

    model: str
    row: PriceRow | None = None
    unknown: str = ""
    table: PriceTable | None = None

    @classmethod
    def of(cls, given: PricedAs | PriceRow | str, model: str) -> PricedAs:
        """Read a caller's price setting: ``"free"``, a vendor, ``"vendor:name"``, or a row."""
        if isinstance(given, PricedAs):
            return given
        if isinstance(given, PriceRow):
            return cls(f"{given.provider}:{model}", given)
        if not isinstance(given, str) or not given:
            raise ValueError(
                f"priced_as: must be 'free', 'vendor:model' or a PriceRow, not {given!r}"
            )
        if given == "free":
            return cls(f"local:{model}")
        return cls(given if ":" in given else f"{given}:{model}")

    def cost(self, usage: Usage, at: date | datetime | None = None) -> Cost | Unpriced:
        """Return the cost of a call with this usage."""
        if self.row is not None:
            table = PriceTable.default() if self.table is None else self.table
            return _cost_by(self.row, usage, self.model, f"own+{digest_rows([self.row])}", table)
        found = cost(usage, self.model, at, table=self.table)
        return Unpriced(self.unknown) if self.unknown and isinstance(found, Unpriced) else found

    def find_problem(self, terms: tuple[str, ...] = ()) -> str | None:
        """Return why the price of calls is unknown, or ``None`` if it is known.

        ``terms`` are the terms of sale that a call asks for, as in ``Usage.terms``.
        """
        found = self.cost(Usage(0, 0, search_units=0, terms=terms))
        return found.reason if isinstance(found, Unpriced) else None
