"""What a call cost: token counts times a dated price row, in exact decimals.

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

# A part of the bill, the rate it is billed at, and the rate that stands in when a row has none.
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
        """Is there a clause that is not an exact name?"""
        return bool(self.starts_with or self.contains or self.regex)

    def covers(self, name: str) -> bool:
        """Is the row for the model of this name?"""
        name = name.lower()
        return (
            name in self.equals
            or name.startswith(self.starts_with)
            or any(piece in name for piece in self.contains)
            or any(re.search(pattern, name) for pattern in self.regex)
        )


class Tier(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Other rates for the whole call once its input has more than ``above`` tokens.

    A rate the tier leaves out is the row's own.
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
    ``free`` must be said: a row of zeros without it is refused, since zero often stands for "not
    known". ``unpriced`` says why a model has no price here. ``ignored`` names what the provider
    also bills and ``Usage`` does not count; ``disputed`` what another source says. ``search`` is the rate of a
    reranker that bills searches and not tokens, in US dollars per thousand search units.
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
        """The rate called ``name`` for a call with so many input tokens, or ``None`` if there is none."""
        own: Decimal | None = getattr(self, name)
        for tier in reversed(self.tiers):
            if input_tokens > tier.above:
                other: Decimal | None = getattr(tier, name)
                return own if other is None else other
        return own

    def holds_on(self, day: date) -> bool:
        """Is the row valid on this day?"""
        return (self.valid_from is None or self.valid_from <= day) and (
            self.valid_until is None or day < self.valid_until
        )

    def holds_at(self, clock: time) -> bool:
        """Is the row valid at this time of day?"""
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
        raise ValueError(f"{name}: {rate} is no price per million tokens")


def _check_meaning(row: PriceRow) -> None:
    """A row is priced, free or unpriced, and says which."""
    given = [name for name in _RATES if getattr(row, name) is not None]
    if row.unpriced:
        if given or row.tiers or row.free or row.search is not None:
            raise ValueError(f"unpriced: the row also has {given[0] if given else 'free or tiers'}")
        return
    if row.search is not None and not given:
        return  # a reranker that bills searches alone
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
    """What a call cost. ``parts`` holds input, cached_input, cache_write, output and reasoning.

    The parts do not overlap and add up to ``total`` exactly. ``notes`` says what had to be assumed.
    """

    total: Decimal
    parts: dict[str, Decimal]
    pricing_version: str
    row: PriceRow
    currency: str = "USD"
    notes: tuple[str, ...] = ()

    def __bool__(self) -> Literal[True]:  # also when it is nothing; and type checkers can tell the two apart
        return True


class Unpriced(Struct, frozen=True, tag="unpriced"):
    """The price is not known, and why. False in a condition; it is never a zero.

    What a ``Cost`` would tell is ``None``, so that ``cost(...).total`` can be asked without looking first.
    """

    reason: str

    @property
    def total(self) -> None:
        """Not known."""

    @property
    def parts(self) -> None:
        """Not known."""

    @property
    def pricing_version(self) -> None:
        """No table has it."""

    def __bool__(self) -> Literal[False]:
        return False


# --- the table ------------------------------------------------------------------------------------

_Names: TypeAlias = tuple[dict[str, list[int]], list[int]]


class PriceTable(Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """Price rows in order: the first that fits the provider, the name, the day and the hour holds.

    ``fallback`` names providers that resell another's models at the maker's price.
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
        """The table that comes with the package, read once."""
        return _read_bundled()

    @classmethod
    def load(cls, path: str | Path) -> PriceTable:
        """Read rows of your own from a JSON or YAML file; put them over others with ``with_overrides``."""
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
        """The bundled table, with the rows of the file that ``DRAGOMAN_PRICES`` names before its own."""
        path = os.environ.get("DRAGOMAN_PRICES")
        if not path:
            return cls.bundled()
        try:
            changed = Path(path).stat().st_mtime_ns
        except OSError as error:
            raise ValueError(f"DRAGOMAN_PRICES: {path} cannot be read: {error.strerror}") from None
        return _read_over_bundled(path, changed)

    def with_overrides(self, rows: Iterable[PriceRow]) -> PriceTable:
        """A table in which ``rows`` go before these; its version says that it is not the plain one."""
        rows = tuple(rows)
        return replace(self, rows=rows + self.rows, version=f"{self.version}+{_digest(rows)}")

    def find(self, model: str, at: date | datetime | None = None) -> PriceRow | Unpriced:
        """The row for ``"provider:name"`` at a day or moment (now, if not given), or why there is none.

        A datetime without a zone is taken as UTC.
        """
        provider, colon, name = model.lower().partition(":")  # the first colon: names may hold more
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
            if len(self._found) < 1000:  # names come from callers, so their number has no bound
                self._found[provider, name] = found
        return found

    @cached_property
    def _found(self) -> dict[tuple[str, str], tuple[PriceRow, ...]]:
        return {}

    @cached_property
    def _names(self) -> dict[str, _Names]:
        """For each provider: the rows of every exact name, and the rows that must be tried."""
        names: dict[str, _Names] = {}
        for place, row in enumerate(self.rows):
            exact, loose = names.setdefault(row.provider, ({}, []))
            if row.match.is_loose:
                loose.append(place)
            for name in row.match.equals:
                exact.setdefault(name, []).append(place)
        return names


def _moment(at: date | datetime | None) -> tuple[date, time | None]:
    """The day and the time of day in UTC; a bare day has no time."""
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
    from importlib.resources import files  # a slow import that only this needs

    return msgspec.json.decode((files("dragoman") / "catalog" / "prices.json").read_bytes(), type=PriceTable)


@lru_cache(maxsize=4)
def _read_over_bundled(path: str, changed: int) -> PriceTable:
    """Read a file over the bundled table; ``changed`` is its time, so that a new version is read again."""
    return PriceTable.bundled().with_overrides(PriceTable.load(path).rows)


def _read_json(text: str) -> Any:
    # NaN and Infinity become decimals here, so that the row's own check refuses them by field name.
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
    """Put the path that msgspec hangs on the end in front, without its signs."""
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
    """Price a call: its usage, its model as ``"provider:name"``, and when it was made (now, if not given).

    ``cost(reply)`` prices a reply by what the provider that answered is sold as (``Provider.priced_as``).
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
    else:  # a reply that was read from a file, or made by hand
        sold = PricedAs(f"{reply.provider or ''}:{reply.model or ''}")
    return (sold if table is None else replace(sold, table=table)).cost(reply.usage, at)


def _cost_by(row: PriceRow, usage: Usage, model: str, version: str) -> Cost | Unpriced:
    if row.free:  # nothing times any count is nothing, reported or not
        return Cost(_ZERO, {part: _ZERO for part, _, _ in _PARTS}, version, row)
    parts: dict[str, Decimal] = {}
    notes: list[str] = []
    if row.input is not None:
        if usage.output_tokens is None and not row.output:
            usage = replace(usage, output_tokens=0)  # an embedding model: nothing is written, so nothing is counted
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
    """Part the inclusive counts, so that every token is in one part only."""
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
            # Reasoning is output everywhere; only a missing cache rate is worth a word.
            if counts[part] and stand_in == "input":
                notes.append(f"no {name} rate: {part} is billed at the input rate")
        parts[part] = EXACT.scaleb(EXACT.multiply(counts[part], rate), -6) if counts[part] else _ZERO
    return parts, notes


def _caveats(usage: Usage, row: PriceRow, model: str) -> Iterator[str]:
    """What the reader of this bill should know."""
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


# --- what a provider's calls are sold as ------------------------------------------------------------


class PricedAs(Struct, frozen=True, omit_defaults=True):
    """What the calls of a provider are sold as: a model of a price table, or a row of its own.

    ``model`` is ``"vendor:name"``; models that run on your own machine are ``"local:name"`` and free.
    ``row`` prices the calls by itself. ``table`` is where the model is looked up, ``PriceTable.default()``
    if not given; ``unknown`` is the reason to report if it is not there.
    """

    model: str
    row: PriceRow | None = None
    unknown: str = ""
    table: PriceTable | None = None

    @classmethod
    def of(cls, given: PricedAs | PriceRow | str, model: str) -> PricedAs:
        """Read what a caller gives for a model: ``"free"``, a vendor, ``"vendor:name"``, or a row."""
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
    """Return what a model at an address is sold as: by the vendor of the catalogue that has this host.

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
    """The host of every vendor of the catalogue that is not on the user's own machine."""
    from importlib.resources import files

    data = (files("dragoman") / "catalog" / "compiled.json").read_bytes()
    listed = msgspec.json.decode(data, type=dict[str, _Listed]).items()
    urls = [(vendor, each.content.base_url) for vendor, each in listed if not each.content.local]
    return {host: vendor for vendor, url in urls if url and (host := urlsplit(url).hostname)}


# --- repricing ------------------------------------------------------------------------------------


class PricedUse(Struct, frozen=True):
    """A call as a log keeps it: what it used, of which model, when, and what it was said to cost."""

    usage: Usage
    model: str
    at: date | datetime | None
    old: Cost | Unpriced | Decimal | None = None


class Repriced(Struct, frozen=True):
    """A call under another table. ``difference`` is new minus old, ``None`` when either is unknown."""

    use: PricedUse
    old: Decimal | None
    new: Cost | Unpriced
    difference: Decimal | None


def reprice(
    records: Iterable[PricedUse | tuple[Usage, str, date | datetime | None, Cost | Unpriced | Decimal | None]],
    table: PriceTable | None = None,
) -> Iterator[Repriced]:
    """Price stored calls again, each with the rows of ``table`` that hold on its own day."""
    for record in records:
        use = record if isinstance(record, PricedUse) else PricedUse(*record)
        # Without a time the price of today would be a guess, so this differs from ``cost``.
        new = Unpriced("the record has no time") if use.at is None else cost(use.usage, use.model, use.at, table=table)
        old = None if isinstance(use.old, Unpriced) else use.old
        if isinstance(old, Cost):
            old = old.total
        if old is None or isinstance(new, Unpriced):
            yield Repriced(use, old, new, None)
        else:
            yield Repriced(use, old, new, EXACT.subtract(new.total, old))
