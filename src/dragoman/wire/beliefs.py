"""Beliefs: what vendors and model families demand today, as rows of data with a source and a day.

Each file in ``catalog/families`` has the rows of one model family, and ``hosts.json`` those of
hosts. A row sets quirks for the models whose name matches, on the wires and at the vendors that it
names. Of the rows that match a model, the most specific one that sets a quirk decides: a row for
a vendor and a model line precedes a row for a vendor, which precedes a row for a model line. Rows
of equal rank apply in the order of the file, so the last row of a family is the default for
models that are newer than the newest known one.

What the user, the vendor's file or an error reply has set takes precedence over every row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from .reasoning import ReasoningStyle

_FOLDER = Path(__file__).resolve().parents[1] / "catalog" / "families"


class Belief(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row: the quirks of a model line, where it is served like this, and how this is known."""

    wires: tuple[str, ...]
    """The wires that the row applies to. Its field paths have the form of the first wire."""

    quirks: dict[str, Any]

    models: str = ""
    """A regular expression that is searched for in the lower-case name of the model."""

    vendors: tuple[str, ...] = ()
    """The vendors that the row is limited to; without any, it applies everywhere."""

    source: str
    """Where this was seen: a page, or ``owner/repository#number``; several if possible."""

    as_of: str
    """The day on which the source was read."""

    guess: bool = False
    """Whether only one source states this, or none states it outright."""

    @property
    def rank(self) -> int:
        """How specific the row is."""
        return 2 * bool(self.vendors) + bool(self.models)


class KnownFields(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of a chat completion that a vendor accepts, as it rejects all others.

    ``source`` is where the fields are listed, and ``rejects`` where a rejection was seen.
    """

    names: tuple[str, ...]
    source: str
    rejects: str
    as_of: str


class Family(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rows of a model family, or of hosts.

    ``match`` is searched for in the name of a model before its rows are considered. ``hosts`` maps
    host names to the vendors that they belong to. ``fields`` has the vendors that reject a request
    with a field that they do not know: at those, a row that names no vendor sets only quirks that
    leave fields out.
    """

    match: str
    rows: tuple[Belief, ...]
    hosts: dict[str, str] = {}
    fields: dict[str, KnownFields] = {}


# The quirks that only leave fields out of a request or change their values.
WITHOUT_FIELDS = frozenset(
    {
        "binds_thinking", "forced_tools", "needs_thinking", "one_setting_of", "prefill",
        "reasons_unasked", "refused_settings", "refused_while_reasoning",
    }
)  # fmt: skip


# msgspec 0.22 crashes if two threads use a struct for the first time at once (tried 2026-11-19).
_reading = Lock()


def read_families() -> dict[str, Family]:
    """Return the families by the names of their files; they are read on first use."""
    with _reading:
        return _read_families()


@cache
def _read_families() -> dict[str, Family]:
    return {
        path.stem: msgspec.json.decode(path.read_bytes(), type=Family)
        for path in sorted(_FOLDER.glob("*.json"))
    }


@lru_cache(maxsize=256)
def vendor_of(base_url: str) -> str | None:
    """Return the vendor that the host of an address belongs to, if it is known."""
    host = (urlsplit(base_url).hostname or "").lower()
    for family in read_families().values():
        for name, vendor in family.hosts.items():
            if host == name or (name.startswith("*") and host.endswith(name[1:])):
                return vendor
    return None


@lru_cache(maxsize=256)
def find_beliefs(wire: str, vendor: str | None, model: str) -> Mapping[str, Any]:
    """Return the quirks of a model on a wire at a vendor, as JSON values by name."""
    rows = find_rows(wire, vendor, model)
    return {quirk: row.quirks[quirk] for quirk, row in rows.items()}


def find_rows(wire: str, vendor: str | None, model: str) -> Mapping[str, Belief]:
    """Return the row that decides each quirk of a model on a wire at a vendor."""
    name = model.lower()
    found: list[Belief] = []
    for family in read_families().values():
        if re.search(family.match, name):
            found += [row for row in family.rows if _applies(row, wire, vendor, name)]
    is_strict = vendor in strict_vendors()
    deciding: dict[str, Belief] = {}
    for row in sorted(found, key=lambda row: -row.rank):
        for quirk in row.quirks:
            if not is_strict or row.vendors or quirk in WITHOUT_FIELDS:
                deciding.setdefault(quirk, row)
    return deciding


@cache
def paths_of_reasoning(
    wire: str, root: str = "", places: tuple[tuple[str, str], ...] = ()
) -> frozenset[str]:
    """Return the fields in which any model family of a wire has its amount of reasoning.

    ``root`` and ``places`` are those of ``ReasoningStyle.placed``.
    """
    paths: set[str] = set()
    for family in read_families().values():
        for row in family.rows:
            if wire in row.wires and row.quirks.get("reasoning"):
                style = msgspec.convert(row.quirks["reasoning"], ReasoningStyle)
                paths |= style.placed(root, dict(places)).list_values().keys()
    return frozenset(paths)


def _applies(row: Belief, wire: str, vendor: str | None, model: str) -> bool:
    return (
        wire in row.wires
        and (not row.vendors or vendor in row.vendors)
        and re.search(row.models, model) is not None
    )


@cache
def strict_vendors() -> Collection[str]:
    """Return the vendors that reject a request with an unknown field."""
    return {vendor for family in read_families().values() for vendor in family.fields}


@cache
def list_known_fields(vendor: str | None) -> Collection[str]:
    """Return the fields of a chat completion that a vendor accepts, if it rejects all others."""
    names: set[str] = set()
    for family in read_families().values():
        if vendor is not None and vendor in family.fields:
            names |= set(family.fields[vendor].names)
    return names
