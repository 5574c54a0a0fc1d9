"""Price rows: each has the names of models, their rates, and when the rates are valid."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import date, time
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

_HIGHEST = Decimal(10**9)
_FINEST = -18
_RATES = ("input", "output", "cache_read", "cache_write", "reasoning")


class Match(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The model names that a price row covers: those that match any of the fields, ignoring case.

    A ``regex`` may match any part of the lower-cased name, unless you anchor it.
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
                raise ValueError(
                    f"match.regex: {pattern!r} is not a regular expression: {error}"
                ) from None
        if not (self.equals or self.is_loose):
            raise ValueError(
                "match: at least one of equals, starts_with, contains, regex is needed"
            )

    @property
    def is_loose(self) -> bool:
        """Whether the row matches by prefixes, substrings or regular expressions."""
        return bool(self.starts_with or self.contains or self.regex)

    def covers(self, name: str) -> bool:
        """Return whether the row covers the model with this name."""
        name = name.lower()
        return (
            name in self.equals
            or name.startswith(self.starts_with)
            or any(piece in name for piece in self.contains)
            or any(re.search(pattern, name) for pattern in self.regex)
        )


class Tier(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Other rates for a call whose input has more than ``above`` tokens.

    Where the tier omits a rate, the row's rate applies.
    """

    above: int
    input: Decimal | None = None
    output: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    reasoning: Decimal | None = None

    def __post_init__(self) -> None:
        if type(self.above) is not int or self.above < 0:
            raise ValueError(
                f"tiers.above: must be a whole number of at least 0, not {self.above!r}"
            )
        _check_rates(self, "tiers.")


class _Sold(Struct, frozen=True):
    provider: str
    match: Match


class TermRow(_Sold, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """How many times the usual rates a provider's models cost under certain terms of sale.

    ``terms`` are those of ``Usage.terms``, such as ``service_tier:priority``. ``factor`` applies
    to all rates, but for the rate of ``cache_read`` if that is given. ``source`` and ``as_of`` are
    where and when the factor was seen.
    """

    terms: tuple[str, ...]
    factor: Decimal
    cache_read: Decimal | None = None
    source: str = ""
    as_of: date | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "provider", self.provider.lower())
        for name in ("factor", "cache_read"):
            _check_rate(name, getattr(self, name))

    def factor_of(self, part: str) -> Decimal:
        """Return by how much the cost of a part of the bill is multiplied."""
        is_apart = part == "cached_input" and self.cache_read is not None
        return self.cache_read if is_apart and self.cache_read is not None else self.factor


class PriceRow(_Sold, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The rates of one provider's models for a period, in US dollars per million tokens.

    ``valid_from`` is the first day on which the row applies, and ``valid_until`` the first day on
    which it no longer applies. ``hours`` limits the row to a part of the day, from the first time
    until the second. Days and hours are UTC. ``free`` must be explicit: a row of zeros without it
    is rejected, since zero often means "not known". ``unpriced`` is the reason why a model has no
    price. ``ignored`` names what the provider bills but ``Usage`` does not count;
    ``disputed`` is the different price that another source gives. ``search`` is the rate of a
    reranker that bills searches instead of tokens, in US dollars per thousand search units.
    """

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
                    force_setattr(self, name, Decimal(0))
        _check_rates(self)
        _check_rate("search", self.search)
        _check_meaning(self)
        _check_times(self)

    def rate(self, name: str, input_tokens: int) -> Decimal | None:
        """Return a rate for a call with this many input tokens; ``None`` if the row lacks it."""
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
    if rate > _HIGHEST or not isinstance(exponent, int) or exponent < _FINEST:
        raise ValueError(f"{name}: {rate} is outside the range of a price per million tokens")


def _check_meaning(row: PriceRow) -> None:
    """Check that a row is exactly one of priced, free and unpriced."""
    given = [name for name in _RATES if getattr(row, name) is not None]
    if row.unpriced:
        if given or row.tiers or row.free or row.search is not None:
            raise ValueError(
                f"unpriced: the row also has {given[0] if given else 'free or tiers'}"
            )
        return
    if row.search is not None and not given:
        return  # a reranker may have a rate for searches only
    for name in ("input", "output"):
        if name not in given:
            raise ValueError(f"{name}: is missing")
    dear = any(getattr(holder, name) for holder in (row, *row.tiers) for name in _RATES)
    if row.free and dear:
        raise ValueError("free: the row has a rate above 0")
    if not row.free and not (row.input or row.output):
        raise ValueError(
            "input: input and output are both 0; say `free: true` if the model really costs "
            "nothing"
        )


def _check_times(row: PriceRow) -> None:
    if row.valid_from and row.valid_until and row.valid_from >= row.valid_until:
        raise ValueError(
            f"valid_until: {row.valid_until} is not after valid_from {row.valid_from}"
        )
    if row.hours and (row.hours[0] == row.hours[1] or any(end.tzinfo for end in row.hours)):
        raise ValueError("hours: must be two different times of day, UTC and without a zone")
    limits = [tier.above for tier in row.tiers]
    if limits != sorted(set(limits)):
        raise ValueError(f"tiers: must rise strictly in `above`, not {limits}")


def digest_rows(rows: Iterable[PriceRow | TermRow]) -> str:
    """Return a short hash of the rows, which is part of a table's version."""
    return hashlib.sha256(msgspec.json.encode(list(rows))).hexdigest()[:8]
