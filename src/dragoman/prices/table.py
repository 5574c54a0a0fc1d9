"""Price tables: the rows in order, the index of their names, and the files they are read from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cache, cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from ..validate.yaml import locate, read_yaml
from .results import Unpriced
from .rows import PriceRow, TermRow, digest_rows

# msgspec 0.22 crashes if two threads use a struct for the first time at once (tried 2026-11-19).
_reading = Lock()
_Names: TypeAlias = tuple[dict[str, list[int]], list[int]]


class _Rows(Struct, frozen=True):
    rows: tuple[PriceRow, ...]


class PriceTable(_Rows, frozen=True, dict=True, forbid_unknown_fields=True, kw_only=True):
    """Price rows in order: the first that matches provider, name, day and hour applies.

    ``fallback`` maps providers that resell models at the original price to the original provider.
    ``resolved`` lists providers that choose a price for each request, so that the cost which they
    state is the cost, whatever the row. ``terms`` has the rates of service tiers and the like.
    ``sources`` states where the rows of a provider come from, if not from ``source``.
    """

    version: str = ""
    generated_at: date | None = None
    source: str = ""
    sources: dict[str, str] = field(default_factory=dict)
    licence: str = ""
    fallback: dict[str, tuple[str, ...]] = field(default_factory=dict)
    resolved: tuple[str, ...] = ()
    terms: tuple[TermRow, ...] = ()

    def __post_init__(self) -> None:
        if not self.version:
            force_setattr(self, "version", digest_rows((*self.rows, *self.terms)))

    @classmethod
    def bundled(cls) -> PriceTable:
        """Return the table that is bundled with the package, read once."""
        with _reading:
            return _read_bundled()

    @classmethod
    def load(cls, path: str | Path) -> PriceTable:
        """Read a table of your own price rows from a JSON or YAML file.

        To combine its rows with another table, pass them to that table's ``with_overrides``.
        """
        path = Path(path)
        if path.suffix.lower() != ".json":
            section = read_yaml(path)
            with _reading:
                return section.convert(cls)
        try:
            # NaN and Infinity become decimals, so that the check of the row rejects them and names
            # the field.
            data = json.loads(
                path.read_text("utf-8"),
                parse_float=Decimal,
                parse_constant=Decimal,
                object_pairs_hook=_unique,
            )
            with _reading:
                return msgspec.convert(data, cls)
        except ValueError as error:
            raise ValueError(f"{path}: {locate(error)}") from None
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

    def with_overrides(
        self, rows: Iterable[PriceRow], terms: Iterable[TermRow] = ()
    ) -> PriceTable:
        """Return a table in which ``rows`` and ``terms`` take precedence over its own.

        Its version includes their hash.
        """
        rows = tuple(rows)
        terms = tuple(terms)
        return replace(
            self,
            rows=rows + self.rows,
            terms=terms + self.terms,
            version=f"{self.version}+{digest_rows((*rows, *terms))}",
        )

    def find_terms(self, model: str, terms: Iterable[str]) -> tuple[TermRow, ...] | Unpriced:
        """Return the row of each of the terms of a sale, or the reason why there is none."""
        provider, _, name = model.lower().partition(":")
        sellers = (provider, *self.fallback.get(provider, ()))
        found: list[TermRow] = []
        for term in terms:
            rows = [
                row
                for seller in sellers
                for row in self.terms
                if row.provider == seller and term in row.terms and row.match.covers(name)
            ]
            if not rows:
                return Unpriced(f"no price for {model} with {term}")
            found.append(rows[0])
        return tuple(found)

    def find(self, model: str, at: date | datetime | None = None) -> PriceRow | Unpriced:
        """Return the price row of ``"provider:name"`` at a time, or the reason why there is none.

        The default time is now. A datetime without a time zone is taken as UTC.
        """
        # Split at the first colon, because model names may contain colons.
        provider, colon, name = model.lower().partition(":")
        if not (colon and provider and name):
            return Unpriced(f"not a model of the form provider:name: {model!r}")
        day, clock = _moment(at)
        for seller in (provider, *self.fallback.get(provider, ())):
            for row in self._rows_for(seller, name):
                if not row.holds_on(day):
                    continue
                if row.hours and clock is None:
                    return Unpriced(
                        f"the price of {model} depends on the hour; give `at` as a datetime"
                    )
                if clock is None or row.holds_at(clock):
                    return Unpriced(f"{model}: {row.unpriced}") if row.unpriced else row
        return Unpriced(f"no price for {model} on {day}")

    def _rows_for(self, provider: str, name: str) -> tuple[PriceRow, ...]:
        found = self._found.get((provider, name))
        if found is None:
            exact, loose = self._names.get(provider, ({}, []))
            hits = {
                *exact.get(name, ()),
                *[place for place in loose if self.rows[place].match.covers(name)],
            }
            found = tuple([self.rows[place] for place in sorted(hits)])
            if len(self._found) < 1000:  # the cache is bounded, because names come from callers
                self._found[provider, name] = found
        return found

    @cached_property
    def _found(self) -> dict[tuple[str, str], tuple[PriceRow, ...]]:
        return {}

    @cached_property
    def _names(self) -> dict[str, _Names]:
        """An index for each provider: its rows by exact name, and its rows with patterns."""
        names: dict[str, _Names] = {}
        for place, row in enumerate(self.rows):
            exact, loose = names.setdefault(row.provider, ({}, []))
            if row.match.is_loose:
                loose.append(place)
            for name in row.match.equals:
                exact.setdefault(name, []).append(place)
        return names


def _moment(at: date | datetime | None) -> tuple[date, time | None]:
    """Return the day and the time of day in UTC; the time is ``None`` for a date."""
    if at is None:
        now = datetime.now(UTC)
        return now.date(), now.time()
    if isinstance(at, datetime):
        at = at.astimezone(UTC) if at.tzinfo else at
        return at.date(), at.time()
    if not isinstance(at, date):
        raise TypeError(f"at: must be a date or a datetime, not {type(at).__name__}")
    return at, None


@cache
def _read_bundled() -> PriceTable:
    from importlib.resources import files  # slow to import, needed only to read the bundled table

    return msgspec.json.decode(
        (files("dragoman") / "catalog" / "prices.json").read_bytes(), type=PriceTable
    )


@lru_cache(maxsize=4)
def _read_over_bundled(path: str, changed: int) -> PriceTable:
    """Return the bundled table preceded by a file's rows.

    ``changed`` is the file's modification time. A new time makes the cache read the file again.
    """
    own = PriceTable.load(path)
    return PriceTable.bundled().with_overrides(own.rows, own.terms)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"{key}: is written twice")
    return dict(pairs)
