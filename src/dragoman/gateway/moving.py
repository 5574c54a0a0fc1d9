"""Move keys, teams and what they have spent from another gateway, once and not twice.

Each amount that was added is noted under its own name in the same transaction. If it is added
again, only the difference counts, so that a move can be repeated, and continued after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from ..database import open_database
from ..prices.results import EXACT
from .budgets import Budget, read_account
from .keys import Key
from .keystore import KeyStore
from .ledger import Ledger
from .sums import COUNTS, add_days
from .usage_book import USAGE_LOCK, UsageBook

_SCHEMA = [
    "create table if not exists dragoman_moved (id text primary key, data text not null)",
]
# what a key has here alone: its name, its hashes, and the budget that its team has
_OWN = ("id", "hash", "old_hash", "old_until", "team_budget_usd_month")
_FIELDS = {("key", "total"), ("key", "month"), ("team", "month")}
"""The budgets that are fields of a key or of a team: of whom, and for which period."""
_MILLION = 10**6
_CHUNK = 500  # rows of one transaction


class MovedKeys(Struct, frozen=True):
    """What a move does to the keys and teams of a database, by their names.

    ``kept`` are keys that differ from those of the other gateway and stay as they are, and
    ``revoked`` those that were revoked here.
    """

    added: list[str] = []
    changed: list[str] = []
    kept: list[str] = []
    revoked: list[str] = []
    teams: list[str] = []


def move_keys(
    store: KeyStore | None,
    keys: Iterable[Key],
    teams: Mapping[str, Decimal | None],
    *,
    replace_known: bool = False,
    write: bool = True,
) -> MovedKeys:
    """Add keys and teams to a database, and leave those that it has as they are.

    With ``replace_known``, keys with the same hash get the rights of the other gateway. A key that
    was revoked here is not added again. Without ``write``, only return what would be done;
    ``None`` stands for an empty database.
    """
    found = MovedKeys([], [], [], [], [])
    added, changes = _compare_keys(store, keys, found, replace_known=replace_known)
    known = {} if store is None else {each.id: each.budget_usd_month for each in store.teams()}
    for name, budget in teams.items():
        if name not in known or (replace_known and known[name] != budget):
            found.teams.append(name)
    if write and store is not None:
        store.add(added, "import")
        for name, fields in changes.items():
            store.change(name, fields)
        for name in found.teams:
            store.set_team(name, teams[name])
    return found


def move_budgets(
    store: KeyStore, budgets: Sequence[Budget], *, replace_known: bool = False
) -> dict[str, str]:
    """Set the budgets that a database lacks, of those that are not fields of keys and teams.

    Return the name of the ledger's counter of each budget. With ``replace_known``, budgets that
    the database has get the amounts of the other gateway.
    """
    names = {key.id for key in store.read_keys()}
    known = {each.name for each in store.read_budgets()}
    for each in budgets:
        kind, name = read_account(each.account)
        is_missing = kind == "key" and name not in names
        if is_missing or (kind, each.period) in _FIELDS:
            continue
        if replace_known or each.name not in known:
            store.set_budget(each.account, each.period, each.usd)
    here = {each.name: each for each in store.read_budgets()}
    now = time.time()
    return {each.name: here.get(each.name, each).find_counter(now) for each in budgets}


def _compare_keys(
    store: KeyStore | None, keys: Iterable[Key], found: MovedKeys, *, replace_known: bool
) -> tuple[list[Key], dict[str, dict[str, Any]]]:
    """Return the keys to add, and the fields to change by key; note the names in ``found``."""
    here = {} if store is None else {key.id: key for key in store.read_keys()}
    by_hash = {key.hash: key for key in here.values()}
    by_hash |= {key.old_hash: key for key in here.values() if key.old_hash is not None}
    added: list[Key] = []
    changes: dict[str, dict[str, Any]] = {}
    for key in keys:
        known = by_hash.get(key.hash)
        if known is not None:
            differing = _find_differing(known, key)
            if differing and replace_known:
                changes[known.id] = differing
                found.changed.append(known.id)
            elif differing:
                found.kept.append(known.id)
        elif key.id in here:
            found.kept.append(key.id)
        elif store is not None and _is_revoked(store, key.id):
            found.revoked.append(key.id)
        else:
            added.append(key)
            found.added.append(key.id)
    return added, changes


def _find_differing(known: Key, key: Key) -> dict[str, Any]:
    """Return the rights of a key that those of a known one differ from."""
    rights = {name: value for name, value in asdict(key).items() if name not in _OWN}
    return {name: value for name, value in rights.items() if getattr(known, name) != value}


def _is_revoked(store: KeyStore, name: str) -> bool:
    latest = store.audit(name, 1)
    return bool(latest) and latest[0].action == "revoke"


class DayAmounts(Struct, frozen=True):
    """What a key spent in a day on a model; ``picos`` are trillionths of a US dollar."""

    at: int
    key: str
    user: str
    team: str
    model: str
    vendor: str
    input: int
    output: int
    picos: int
    answered: int
    failed: int

    @property
    def labels(self) -> tuple[int, str, str, str, str, str]:
        """The beginning of the day and the labels, which name the amounts."""
        return (self.at, self.key, self.user, self.team, self.model, self.vendor)


class MovedSpend:
    """The store of a gateway (``dragoman serve --state``), to which earlier costs are added.

    ``source`` names where they come from, so that two sources do not replace one another.
    """

    def __init__(self, place: str | Path, source: str) -> None:
        Ledger(place).close()  # creates its tables
        UsageBook(place).close()
        self._base = open_database(place, _SCHEMA)
        self._source = source

    def close(self) -> None:
        """Close the database."""
        self._base.close()

    def set_spent(self, account: str, counter: str, usd: Decimal) -> bool:
        """Add what an account has spent to a counter of the ledger; return whether it changed."""
        with self._base.transaction(account):
            name = msgspec.json.encode([self._source, "spent", account, counter]).decode()
            before = self._read_moved(name)
            if before == str(usd):
                return False
            rows = self._base.run(
                "select usd from dragoman_spent where key = ? and month = ?", (account, counter)
            )
            added = EXACT.subtract(usd, Decimal(before or 0))
            total = EXACT.add(Decimal(rows[0][0]) if rows else Decimal(0), added)
            self._base.run(
                "insert into dragoman_spent values (?, ?, ?) on conflict (key, month) "
                "do update set usd = excluded.usd",
                (account, counter, f"{total:f}"),
            )
            self._note(name, str(usd))
        return True

    def set_days(self, days: Iterable[DayAmounts]) -> int:
        """Add amounts to the bill; return how many of them were new or different."""
        summed: dict[tuple[object, ...], DayAmounts] = {}
        for day in days:
            summed[day.labels] = _add(summed[day.labels], day) if day.labels in summed else day
        changed = 0
        found = [*summed.values()]
        for first in range(0, len(found), _CHUNK):
            with self._base.transaction(USAGE_LOCK):
                changed += self._write(found[first : first + _CHUNK])
        return changed

    # --- private methods

    def _write(self, days: Sequence[DayAmounts]) -> int:
        amounts: dict[tuple[object, ...], list[int]] = {}
        changed = 0
        for day in days:
            name = msgspec.json.encode([self._source, "day", *day.labels]).decode()
            data = msgspec.json.encode(day).decode()
            before = self._read_moved(name)
            if before == data:
                continue
            changed += 1
            _count(amounts, day, 1)
            if before is not None:
                _count(amounts, msgspec.json.decode(before, type=DayAmounts), -1)
            self._note(name, data)
        add_days(self._base, amounts)
        return changed

    def _read_moved(self, name: str) -> str | None:
        rows = self._base.run("select data from dragoman_moved where id = ?", (name,))
        return rows[0][0] if rows else None

    def _note(self, name: str, data: str) -> None:
        self._base.run(
            "insert into dragoman_moved values (?, ?) on conflict (id) "
            "do update set data = excluded.data",
            (name, data),
        )


def _add(one: DayAmounts, other: DayAmounts) -> DayAmounts:
    return DayAmounts(
        *one.labels,
        input=one.input + other.input,
        output=one.output + other.output,
        picos=one.picos + other.picos,
        answered=one.answered + other.answered,
        failed=one.failed + other.failed,
    )


def _count(amounts: dict[tuple[object, ...], list[int]], day: DayAmounts, sign: int) -> None:
    """Add the amounts of a day to those of its labels: failed requests have a status of their own."""
    dollars, rest = divmod(day.picos, _MILLION)
    parts = {200: (day.answered, 0, day.input, day.output, dollars, rest, 0)}
    if day.failed:
        parts[500] = (day.failed, day.failed, 0, 0, 0, 0, 0)
    at, key, user, team, model, vendor = day.labels
    for status, row in parts.items():
        labels = (at, key, user, team, "", model, vendor, status, "")
        sums = amounts.setdefault(labels, [0] * len(COUNTS))
        for column, amount in enumerate(row):
            sums[column] += sign * amount
