"""The user's update of the catalogue, which ``dragoman models update`` writes between releases.

It is a JSON file in the data folder or at ``$DRAGOMAN_CATALOG``, with capabilities and prices by
vendor and model. It overrides the rows of the bundled catalogue, and is overridden by what a
vendor documents, what the user declares and what a server check finds.
"""

from __future__ import annotations

import os
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ..prices import Match, PriceRow, PriceTable, Tier
from .folders import user_folder, write_private
from .lists import Listed, ListedModel

_MAX_FACTOR = Decimal(20)
_MAX_SHARE = 0.5


class CatalogUpdate(Struct, frozen=True, omit_defaults=True):
    """The models in a public list, as it was on one day."""

    source: str = ""
    as_of: str = ""
    vendors: Listed = field(default_factory=dict)

    def models(self, vendor: str) -> dict[str, ListedModel]:
        """Return the models that the update has for a vendor."""
        return self.vendors.get(vendor, {})


def update_path() -> Path:
    """Return the path of the update file."""
    if chosen := os.environ.get("DRAGOMAN_CATALOG"):
        return Path(chosen)
    return user_folder("data") / "catalog.json"


def read_update() -> CatalogUpdate:
    """Return the stored update; an empty one if it is missing or unreadable."""
    path = update_path()
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        return CatalogUpdate()
    return _read(path, changed)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> CatalogUpdate:
    try:
        return msgspec.json.decode(path.read_bytes(), type=CatalogUpdate)
    except (OSError, msgspec.MsgspecError):
        return CatalogUpdate()


def write_update(update: CatalogUpdate) -> Path:
    """Store an update, merged with the previous one; new values take precedence."""
    path = update_path()
    old = read_update()
    renewed = {vendor: old.models(vendor) | models for vendor, models in update.vendors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, msgspec.json.encode(replace(update, vendors=old.vendors | renewed)))
    return path


def update_prices(table: PriceTable, update: CatalogUpdate) -> PriceTable:
    """Return a price table plus the catalogue update's prices for models that the table lacks."""
    rows = []
    for vendor, models in update.vendors.items():
        for name, model in models.items():
            if model.prices and not isinstance(table.find(f"{vendor}:{name}"), PriceRow):
                rows.append(_make_row(vendor, name, model))
    return table.with_overrides(rows) if rows else table


def _make_row(vendor: str, name: str, model: ListedModel) -> PriceRow:
    rates: dict[str, Any] = {rate: Decimal(price) for rate, price in model.prices.items()}
    is_free = not rates.get("input") and not rates.get("output")
    if is_free:
        return PriceRow(vendor, Match(equals=(name.lower(),)), free=True)
    tiers = [
        Tier(above=above, **{rate: Decimal(price) for rate, price in own.items()})
        for above, own in model.tiers.items()
    ]
    return PriceRow(vendor, Match(equals=(name.lower(),)), **rates, tiers=tuple(tiers))


class ListChanges(Struct, frozen=True):
    """The changes that a public list would make to the catalogue, and its implausible values."""

    added: list[str]
    changed: list[str]
    odd: list[str]


def compare(
    known: dict[str, dict[str, dict[str, Any]]], table: PriceTable, listed: Listed
) -> ListChanges:
    """Compare a public list with the catalogue (``known``) and with a price table."""
    added = []
    changed = []
    odd = []
    for vendor, models in sorted(listed.items()):
        have = known.get(vendor, {})
        shared = [name for name in models if name in have]
        differing = 0
        for name, model in sorted(models.items()):
            target = f"{vendor}:{name}"
            if name not in have:
                facts = [f"{fact} {value}" for fact, value in model.facts.items() if value]
                price = (
                    "; ${input} in, ${output} out".format(**model.prices) if model.prices else ""
                )
                added.append(f"+ {target} {', '.join(facts)}{price}")
                continue
            changes = {
                fact: value
                for fact, value in model.facts.items()
                if have[name].get(fact) not in (None, value)
            }
            differing += bool(changes)
            changed += [
                f"~ {target} {fact} {have[name][fact]} -> {value}"
                for fact, value in changes.items()
            ]
            row = table.find(target)
            for rate, text in model.prices.items():
                now = getattr(row, rate, None)
                new = Decimal(text)
                if now and new and not 1 / _MAX_FACTOR <= new / now <= _MAX_FACTOR:
                    odd.append(f"{target}: {rate} {now} -> {new} dollars for a million tokens")
                elif now is not None and now != new:
                    changed.append(f"~ {target} {rate} ${now} -> ${new}")
        if len(shared) >= 10 and differing > _MAX_SHARE * len(shared):
            odd.append(f"{vendor}: {differing} of {len(shared)} models would change")
    return ListChanges(added, changed, odd)
