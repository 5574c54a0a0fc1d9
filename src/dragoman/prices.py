"""Costs of calls: token counts times a dated price row, in exact decimals.

``bill = cost(reply)``, or ``cost(usage, "anthropic:claude-opus-4-8")``; then ``bill.total``, ``bill.parts`` and
``bill.pricing_version``, or ``bill.reason`` if the price is not known.

An unknown price is ``Unpriced`` with a reason, never zero. No token is billed twice, because
``Usage`` counts are inclusive and the cached, cache-written and reasoning tokens are taken out of
their totals before anything is multiplied. The bundled table is read on first use, not on import.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from .config import ConfigError, read_yaml
from .events import Billed, Usage

__all__ = [
    "Cost",
    "Match",
    "PriceRow",
    "PriceTable",
    "PricedAs",
    "PricedUse",
    "Repriced",
    "Tier",
    "Unpriced",
    "cost",
    "find_seller",
    "name_host",
    "reprice",
]

# Rates have at most 27 digits (checked below), so with 100 every product and sum is exact, whatever
# precision the caller's own decimal context has. Without traps: a cost in a hostile log may be 1E+999999999,
# and adds up to infinity instead of raising.
EXACT = Context(prec=100, traps=[])
_DEAREST = Decimal(10**9)
_FINEST = -18
_ZERO = Decimal(0)
_RATES = ("input", "output", "cache_read", "cache_write", "reasoning")

# A part of the bill, its rate, and the rate that is used if a row lacks it.
_PARTS = (
    ("input", "input", "input"),
    ("cached_input", "cache_read", "input"),
    ("cache_write", "cache_write", "input"),
    ("output", "output", "output"),
    ("reasoning", "reasoning", "output"),
)
_COUNTERS = (
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
    "cache_creation_input_tokens",
    "reasoning_tokens",
)


# --- rows -----------------------------------------------------------------------------------------


class Match(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which model names a row is for: any of these clauses, letter case aside.

    A ``regex`` is searched for in the lower-cased name; anchor it yourself.
    """

    equals: tuple[str, ...] = ()
    starts_with: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    regex: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("equals", "starts_with", "contains"):
            force_setattr(self, name, tuple([clause.lower() for clause in getattr(self, name)]))
        for pattern in self.regex:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"match.regex: {pattern!r} is not a regular expression: {error}") from None
        if not (self.equals or self.is_loose):
            raise ValueError("match: at least one of equals, starts_with, contains, regex is needed")

    @property
    def is_loose(self) -> bool:
        """Whether there is a clause other than an exact name."""
        return bool(self.starts_with or self.contains or self.regex)

    def covers(self, name: str) -> bool:
        """Return whether the row covers the model of this name."""
        name = name.lower()
        return (
            name in self.equals
            or name.startswith(self.starts_with)
            or any(piece in name for piece in self.contains)
            or any(re.search(pattern, name) for pattern in self.regex)
        )


class Tier(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Other rates for a call whose input has more than ``above`` tokens.

    A rate that the tier omits is that of the row.
    """

    above: int
    input: Decimal | None = None
    output: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    reasoning: Decimal | None = None

    def __post_init__(self) -> None:
        if type(self.above) is not int or self.above < 0:
            raise ValueError(f"tiers.above: must be a whole number of at least 0, not {self.above!r}")
        _check_rates(self, "tiers.")


class PriceRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rates of some models of one provider for some time, in US dollars per million tokens.

    ``valid_from`` is the first day, ``valid_until`` the first day
    no longer covered; ``hours`` is a span of the day, from and until. Days and hours are UTC.
    ``free`` must be explicit: a row of zeros without it is rejected, since zero often means "not
    known". ``unpriced`` is the reason why a model has no price here. ``ignored`` names what the
    provider also bills and ``Usage`` does not count; ``disputed`` the different price of another
    source. ``search`` is the rate of a reranker that bills searches and not tokens, in US dollars
    per thousand search units.
    """

    provider: str
    match: Match
    input: Decimal | None = None
    output: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    reasoning: Decimal | None = None
    tiers: tuple[Tier, ...] = ()
    valid_from: date | None = None
    valid_until: date | None = None
    hours: tuple[time, time] | None = None
    free: bool = False
    unpriced: str = ""
    ignored: tuple[str, ...] = ()
    disputed: str = ""
    search: Decimal | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "provider", self.provider.lower())
        if not self.provider or ":" in self.provider:
            raise ValueError(f"provider: must be a name without a colon, not {self.provider!r}")
        if self.free:
            for name in ("input", "output"):
                if getattr(self, name) is None:
                    force_setattr(self, name, _ZERO)
        _check_rates(self)
        _check_rate("search", self.search)
        _check_meaning(self)
        _check_times(self)

    def rate(self, name: str, input_tokens: int) -> Decimal | None:
        """Return the rate ``name`` for a call with this number of input tokens, or ``None`` if there is none."""
        own: Decimal | None = getattr(self, name)
        for tier in reversed(self.tiers):
            if input_tokens > tier.above:
                other: Decimal | None = getattr(tier, name)
                return own if other is None else other
        return own

    def holds_on(self, day: date) -> bool:
        """Return whether the row is valid on this day."""
        return (self.valid_from is None or self.valid_from <= day) and (
            self.valid_until is None or day < self.valid_until
        )

    def holds_at(self, clock: time) -> bool:
        """Return whether the row is valid at this time of day."""
        if self.hours is None:
            return True
        start, end = self.hours
        return start <= clock < end if start < end else clock >= start or clock < end


def _check_rates(holder: Tier | PriceRow, where: str = "") -> None:
    for name in _RATES:
        _check_rate(f"{where}{name}", getattr(holder, name))


def _check_rate(name: str, rate: Any) -> None:
    if rate is None:
        return
    if not isinstance(rate, Decimal):
        raise ValueError(f"{name}: must be a Decimal, not {type(rate).__name__}")
    if not rate.is_finite() or rate < 0:
        raise ValueError(f"{name}: must be a finite number of at least 0, not {rate}")
    exponent = rate.as_tuple().exponent
    if rate > _DEAREST or not isinstance(exponent, int) or exponent < _FINEST:
        raise ValueError(f"{name}: {rate} is outside the range of a price per million tokens")


def _check_meaning(row: PriceRow) -> None:
    """Check that a row is exactly one of priced, free and unpriced."""
    given = [name for name in _RATES if getattr(row, name) is not None]
    if row.unpriced:
        if given or row.tiers or row.free or row.search is not None:
            raise ValueError(f"unpriced: the row also has {given[0] if given else 'free or tiers'}")
        return
    if row.search is not None and not given:
        return  # a reranker that bills only searches
    for name in ("input", "output"):
        if name not in given:
            raise ValueError(f"{name}: is missing")
    dear = any(getattr(holder, name) for holder in (row, *row.tiers) for name in _RATES)
    if row.free and dear:
        raise ValueError("free: the row has a rate above 0")
    if not row.free and not (row.input or row.output):
        raise ValueError("input: input and output are both 0; say `free: true` if the model really costs nothing")


def _check_times(row: PriceRow) -> None:
    if row.valid_from and row.valid_until and row.valid_from >= row.valid_until:
        raise ValueError(f"valid_until: {row.valid_until} is not after valid_from {row.valid_from}")
    if row.hours and (row.hours[0] == row.hours[1] or any(end.tzinfo for end in row.hours)):
        raise ValueError("hours: must be two different times of day, UTC and without a zone")
    limits = [tier.above for tier in row.tiers]
    if limits != sorted(set(limits)):
        raise ValueError(f"tiers: must rise strictly in `above`, not {limits}")


# --- results --------------------------------------------------------------------------------------


class Cost(Struct, frozen=True, tag="cost"):
    """The cost of a call. ``parts`` holds input, cached_input, cache_write, output and reasoning.

    The parts do not overlap and add up to ``total`` exactly. ``notes`` lists the assumptions.
    """

    total: Decimal
    parts: dict[str, Decimal]
    pricing_version: str
    row: PriceRow
    currency: str = "USD"
    notes: tuple[str, ...] = ()

    # true even if the cost is zero; and type checkers can distinguish the two
    def __bool__(self) -> Literal[True]:
        return True


class Unpriced(Struct, frozen=True, tag="unpriced"):
    """An unknown price, with the reason. It is false in a condition, and never a zero.

    The fields of a ``Cost`` are ``None``, so that ``cost(...).total`` can be read without a check.
    """

    reason: str

    @property
    def total(self) -> None:
        """Always ``None``: not known."""

    @property
    def parts(self) -> None:
        """Always ``None``: not known."""

    @property
    def pricing_version(self) -> None:
        """Always ``None``: no table has the price."""

    def __bool__(self) -> Literal[False]:
        return False


# --- the table ------------------------------------------------------------------------------------

_Names: TypeAlias = tuple[dict[str, list[int]], list[int]]


class PriceTable(Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """Price rows in order: the first that matches provider, name, day and hour applies.

    ``fallback`` maps providers that resell models at the original price to the original provider.
    """

    rows: tuple[PriceRow, ...]
    version: str = ""
    generated_at: date | None = None
    source: str = ""
    licence: str = ""
    fallback: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.version:
            force_setattr(self, "version", _digest(self.rows))

    @classmethod
    def bundled(cls) -> PriceTable:
        """Return the table that is bundled with the package, read once."""
        return _read_bundled()

    @classmethod
    def load(cls, path: str | Path) -> PriceTable:
        """Read your own rows from a JSON or YAML file; combine them with others by ``with_overrides``."""
        path = Path(path)
        if path.suffix.lower() != ".json":
            return _read_yaml(path)
        try:
            return msgspec.convert(_read_json(path.read_text("utf-8")), cls)
        except ValueError as error:
            raise ValueError(f"{path}: {_locate(error)}") from None
        except RecursionError:
            raise ValueError(f"{path}: nested too deeply") from None

    @classmethod
    def default(cls) -> PriceTable:
        """Return the bundled table, preceded by the rows of the file in ``DRAGOMAN_PRICES``."""
        path = os.environ.get("DRAGOMAN_PRICES")
        if not path:
            return cls.bundled()
        try:
            changed = Path(path).stat().st_mtime_ns
        except OSError as error:
            raise ValueError(f"DRAGOMAN_PRICES: {path} cannot be read: {error.strerror}") from None
        return _read_over_bundled(path, changed)

    def with_overrides(self, rows: Iterable[PriceRow]) -> PriceTable:
        """Return a table in which ``rows`` come first; its version shows the change."""
        rows = tuple(rows)
        return replace(self, rows=rows + self.rows, version=f"{self.version}+{_digest(rows)}")

    def find(self, model: str, at: date | datetime | None = None) -> PriceRow | Unpriced:
        """Return the row for ``"provider:name"`` at a day or moment (default: now), or the reason if there is none.

        A datetime without a zone is taken as UTC.
        """
        # split at the first colon: names may contain colons
        provider, colon, name = model.lower().partition(":")
        if not (colon and provider and name):
            return Unpriced(f"not a model of the form provider:name: {model!r}")
        day, clock = _moment(at)
        for seller in (provider, *self.fallback.get(provider, ())):
            for row in self._rows_for(seller, name):
                if not row.holds_on(day):
                    continue
                if row.hours and clock is None:
                    return Unpriced(f"the price of {model} depends on the hour; give `at` as a datetime")
                if clock is None or row.holds_at(clock):
                    return Unpriced(f"{model}: {row.unpriced}") if row.unpriced else row
        return Unpriced(f"no price for {model} on {day}")

    def _rows_for(self, provider: str, name: str) -> tuple[PriceRow, ...]:
        found = self._found.get((provider, name))
        if found is None:
            exact, loose = self._names.get(provider, ({}, []))
            hits = {*exact.get(name, ()), *[place for place in loose if self.rows[place].match.covers(name)]}
            found = tuple([self.rows[place] for place in sorted(hits)])
            if len(self._found) < 1000:  # bounded: names come from callers
                self._found[provider, name] = found
        return found

    @cached_property
    def _found(self) -> dict[tuple[str, str], tuple[PriceRow, ...]]:
        return {}

    @cached_property
    def _names(self) -> dict[str, _Names]:
        """An index per provider: the rows of every exact name, and the rows with patterns."""
        names: dict[str, _Names] = {}
        for place, row in enumerate(self.rows):
            exact, loose = names.setdefault(row.provider, ({}, []))
            if row.match.is_loose:
                loose.append(place)
            for name in row.match.equals:
                exact.setdefault(name, []).append(place)
        return names


def _moment(at: date | datetime | None) -> tuple[date, time | None]:
    """Return the day and the time of day in UTC; a date has no time."""
    if at is None:
        at = datetime.now(UTC)
    if isinstance(at, datetime):
        at = at.astimezone(UTC) if at.tzinfo else at
        return at.date(), at.time()
    if not isinstance(at, date):
        raise TypeError(f"at: must be a date or a datetime, not {type(at).__name__}")
    return at, None


def _digest(rows: Iterable[PriceRow]) -> str:
    return hashlib.sha256(msgspec.json.encode(list(rows))).hexdigest()[:8]


# --- files ----------------------------------------------------------------------------------------


@cache
def _read_bundled() -> PriceTable:
    from importlib.resources import files  # a slow import, needed only here

    return msgspec.json.decode((files("dragoman") / "catalog" / "prices.json").read_bytes(), type=PriceTable)


@lru_cache(maxsize=4)
def _read_over_bundled(path: str, changed: int) -> PriceTable:
    """Read a file and put it before the bundled table; ``changed`` is its modification time, part of the cache key."""
    return PriceTable.bundled().with_overrides(PriceTable.load(path).rows)


def _read_json(text: str) -> Any:
    # NaN and Infinity become decimals, so that the check of the row rejects them and names the
    # field.
    return json.loads(text, parse_float=Decimal, parse_constant=Decimal, object_pairs_hook=_unique)


def _read_yaml(path: Path) -> PriceTable:
    root = read_yaml(path)
    try:
        return msgspec.convert(root.plain(), PriceTable)
    except ValueError as error:
        place = _locate(error)
        raise ConfigError(str(path), root.find_line(place.partition(":")[0]), place) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"{key}: is written twice")
    return dict(pairs)


def _locate(error: ValueError) -> str:
    """Move the path at the end of a msgspec message to the front."""
    text, _, place = str(error).partition(" - at `$")
    place = place.strip("`.")
    return f"{place}: {text}" if place else text


# --- billing --------------------------------------------------------------------------------------


@overload
def cost(
    usage: Billed,
    model: str | None = None,
    at: date | datetime | None = None,
    *,
    table: PriceTable | None = None,
) -> Cost | Unpriced: ...
@overload
def cost(
    usage: Usage, model: str, at: date | datetime | None = None, *, table: PriceTable | None = None
) -> Cost | Unpriced: ...
def cost(
    usage: Usage | Billed,
    model: str | None = None,
    at: date | datetime | None = None,
    *,
    table: PriceTable | None = None,
) -> Cost | Unpriced:
    """Price a call by its usage, its model as ``"provider:name"``, and its time (default: now).

    ``cost(reply)`` uses the price of the provider that answered (``Provider.priced_as``).
    ``table`` is ``PriceTable.default()`` unless you give your own.
    """
    if not isinstance(usage, Usage):
        if model is None:
            return _cost_of(usage, at, table)
        usage = usage.usage
    if model is None:
        raise TypeError("cost: a Usage needs its model, as in cost(usage, 'vendor:name')")
    table = PriceTable.default() if table is None else table
    row = table.find(model, at)
    return row if isinstance(row, Unpriced) else _cost_by(row, usage, model, table.version)


def _cost_of(reply: Billed, at: date | datetime | None, table: PriceTable | None) -> Cost | Unpriced:
    if reply.sale is not None and reply.sale.find is not None:
        sold: PricedAs = reply.sale.find()
    else:  # a reply that was read from a file or built by hand
        sold = PricedAs(f"{reply.provider or ''}:{reply.model or ''}")
    return (sold if table is None else replace(sold, table=table)).cost(reply.usage, at)


def _cost_by(row: PriceRow, usage: Usage, model: str, version: str) -> Cost | Unpriced:
    if row.free:  # a rate of zero needs no count
        return Cost(_ZERO, {part: _ZERO for part, _, _ in _PARTS}, version, row)
    parts: dict[str, Decimal] = {}
    notes: list[str] = []
    if row.input is not None:
        if usage.output_tokens is None and not row.output:
            usage = replace(usage, output_tokens=0)  # an embedding model has no output tokens
        counts = _split(usage)
        if isinstance(counts, Unpriced):
            return counts
        parts, notes = _bill(counts, row, usage.input_tokens or 0)
    if row.search is not None:
        if usage.search_units is None:
            return Unpriced("usage not reported: search_units")
        parts["search"] = EXACT.scaleb(EXACT.multiply(usage.search_units, row.search), -3)
    total = _ZERO
    for part in parts.values():
        total = EXACT.add(total, part)
    notes += _caveats(usage, row, model)
    return Cost(total, parts, version, row, notes=tuple(notes))


def _split(usage: Usage) -> dict[str, int] | Unpriced:
    """Split the inclusive counts, so that every token is in exactly one part."""
    for name in ("input_tokens", "output_tokens"):
        if getattr(usage, name) is None:
            return Unpriced(f"usage not reported: {name}")
    whole, produced, cached, written, reasoned = (getattr(usage, name) or 0 for name in _COUNTERS)
    for name in _COUNTERS:
        if (getattr(usage, name) or 0) < 0:
            return Unpriced(f"usage is negative: {name}")
    if cached + written > whole:
        return Unpriced(
            f"usage contradicts itself: cached_input_tokens {cached} and cache_creation_input_tokens {written} "
            f"are more than input_tokens {whole}"
        )
    if reasoned > produced:
        return Unpriced(f"usage contradicts itself: reasoning_tokens {reasoned} are more than output_tokens {produced}")
    return {
        "input": whole - cached - written,
        "cached_input": cached,
        "cache_write": written,
        "output": produced - reasoned,
        "reasoning": reasoned,
    }


def _bill(counts: dict[str, int], row: PriceRow, input_tokens: int) -> tuple[dict[str, Decimal], list[str]]:
    parts: dict[str, Decimal] = {}
    notes: list[str] = []
    for part, name, stand_in in _PARTS:
        rate = row.rate(name, input_tokens)
        if rate is None:
            rate = row.rate(stand_in, input_tokens) or _ZERO
            # Reasoning is billed as output by every provider; only a missing cache rate is noted.
            if counts[part] and stand_in == "input":
                notes.append(f"no {name} rate: {part} is billed at the input rate")
        parts[part] = EXACT.scaleb(EXACT.multiply(counts[part], rate), -6) if counts[part] else _ZERO
    return parts, notes


def _caveats(usage: Usage, row: PriceRow, model: str) -> Iterator[str]:
    """Return the notes of a bill."""
    if usage.estimated:
        yield "the token counts are estimates"
    counted = (usage.input_tokens or 0) + (usage.output_tokens or 0)
    if usage.total_tokens not in (None, counted):
        yield f"total_tokens is {usage.total_tokens}, but input and output add up to {counted}"
    if usage.cached_input_tokens is None and row.cache_read is not None:
        yield "cached_input_tokens not reported: all input is billed as not cached"
    if usage.cache_creation_input_tokens and "cache_write_1h" in row.ignored:
        yield "cache writes are billed at the rate of the shortest lifetime; longer ones cost more"
    if usage.reasoning_tokens is None and row.reasoning is not None:
        yield "reasoning_tokens not reported: all output is billed at the output rate"
    seller = model.partition(":")[0].lower()
    if row.provider != seller:
        yield f"{seller} has no row for this model; the price is that of {row.provider}"
    if row.disputed:
        yield f"sources disagree: {row.disputed}"


# --- the price of a provider ------------------------------------------------------------


class PricedAs(Struct, frozen=True, omit_defaults=True):
    """The price of the calls of a provider: a model of a price table, or a separate row.

    ``model`` is ``"vendor:name"``; models that run on your own machine are ``"local:name"`` and free.
    ``row`` replaces the table. ``table`` is where the model is looked up, ``PriceTable.default()``
    if not given; ``unknown`` is the reason to report if it is not there.
    """

    model: str
    row: PriceRow | None = None
    unknown: str = ""
    table: PriceTable | None = None

    @classmethod
    def of(cls, given: PricedAs | PriceRow | str, model: str) -> PricedAs:
        """Read the price setting of a caller: ``"free"``, a vendor, ``"vendor:name"``, or a row."""
        if isinstance(given, PricedAs):
            return given
        if isinstance(given, PriceRow):
            return cls(f"{given.provider}:{model}", given)
        if not isinstance(given, str) or not given:
            raise ValueError(f"priced_as: must be 'free', 'vendor:model' or a PriceRow, not {given!r}")
        if given == "free":
            return cls(f"local:{model}")
        return cls(given if ":" in given else f"{given}:{model}")

    def cost(self, usage: Usage, at: date | datetime | None = None) -> Cost | Unpriced:
        """Price a call of the provider."""
        if self.row is not None:
            return _cost_by(self.row, usage, self.model, f"own+{_digest([self.row])}")
        found = cost(usage, self.model, at, table=self.table)
        return Unpriced(self.unknown) if self.unknown and isinstance(found, Unpriced) else found

    def find_problem(self) -> str | None:
        """Return why calls have no price, or ``None`` if they have one."""
        found = self.cost(Usage(0, 0, search_units=0))
        return found.reason if isinstance(found, Unpriced) else None


def find_seller(base_url: str, model: str) -> PricedAs:
    """Return the price of a model at an address, by the vendor of the catalogue that has this host.

    Any other host may be a server of your own, which is free, or a proxy, which is not. Its calls have no
    price unless a table has rows of this host, or the caller gives ``priced_as``.
    """
    host = (urlsplit(base_url).hostname or "unknown").lower().replace(":", ".")
    seller = _read_hosts().get(host)
    if seller is not None:
        return PricedAs(f"{seller}:{model}")
    problem = f"{model} at {host} has no known seller; set priced_as to free, or to vendor:model"
    return PricedAs(f"{host}:{model}", unknown=problem)


def name_host(base_url: str) -> str:
    """Return the vendor of the catalogue that has the host of an address, else the host itself with its port."""
    parts = urlsplit(base_url)
    return _read_hosts().get(parts.hostname or "") or parts.netloc.rpartition("@")[2].lower()


class _Address(Struct):
    base_url: str | None = None
    local: bool = False


class _Listed(Struct):
    content: _Address


@cache
def _read_hosts() -> dict[str, str]:
    """Return the vendor of each host in the catalogue, without local servers."""
    from importlib.resources import files

    data = (files("dragoman") / "catalog" / "compiled.json").read_bytes()
    listed = msgspec.json.decode(data, type=dict[str, _Listed]).items()
    urls = [(vendor, each.content.base_url) for vendor, each in listed if not each.content.local]
    return {host: vendor for vendor, url in urls if url and (host := urlsplit(url).hostname)}


# --- repricing ------------------------------------------------------------------------------------


class PricedUse(Struct, frozen=True):
    """A call in a log: its usage, model, time, and recorded cost."""

    usage: Usage
    model: str
    at: date | datetime | None
    old: Cost | Unpriced | Decimal | None = None


class Repriced(Struct, frozen=True):
    """A call priced by another table. ``difference`` is new minus old, ``None`` when either is unknown."""

    use: PricedUse
    old: Decimal | None
    new: Cost | Unpriced
    difference: Decimal | None


def reprice(
    records: Iterable[PricedUse | tuple[Usage, str, date | datetime | None, Cost | Unpriced | Decimal | None]],
    table: PriceTable | None = None,
) -> Iterator[Repriced]:
    """Price stored calls again, each with the rows of ``table`` that apply on its day."""
    for record in records:
        use = record if isinstance(record, PricedUse) else PricedUse(*record)
        # Unlike in ``cost``, a call without a time has no price: that of today would be a guess.
        new = Unpriced("the record has no time") if use.at is None else cost(use.usage, use.model, use.at, table=table)
        old = None if isinstance(use.old, Unpriced) else use.old
        if isinstance(old, Cost):
            old = old.total
        if old is None or isinstance(new, Unpriced):
            yield Repriced(use, old, new, None)
        else:
            yield Repriced(use, old, new, EXACT.subtract(new.total, old))
