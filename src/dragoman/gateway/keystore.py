"""Keys in a database: a SQLite file, or PostgreSQL for gateways on several machines.

The database has hashes, never the keys themselves. Every change adds an audit record in the same
transaction: the time, the author, the key and the changed fields.
"""

from __future__ import annotations

import getpass
import os
import socket
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from ..database import Database, is_postgres, open_database
from ..errors import AuthenticationError
from .budgets import PERIODS, PREFIXES, TEAM, Budget, Period, read_account
from .keys import MAX_NAME, Key, KeyRing, check_label, check_models, new_key

_SCHEMA = [
    "create table if not exists dragoman_keys (id text primary key, data text not null)",
    "create table if not exists dragoman_teams (id text primary key, data text not null)",
    "create table if not exists dragoman_withdrawn (id text primary key)",
    (
        "create table if not exists dragoman_audit (seq {serial}, at double precision not null, "
        "actor text not null, action text not null, subject text not null, detail text not null)"
    ),
    "create table if not exists dragoman_budgets (id text primary key, data text not null)",
]
_LOCK = "keys"
_SQLITE = b"SQLite format 3\0"
_SECRET = ("hash", "old_hash", "budgets")
_FIELDS: dict[Period, str] = {"total": "budget_usd", "month": "budget_usd_month"}
"""The fields of a key that are its budgets of these periods."""
_READ = "read"
"""The action of a record about content that a person has read, which changes no key."""


class Team(Struct, frozen=True):
    """A team and the budget that its keys share in a month (UTC)."""

    id: str
    budget_usd_month: Decimal | None = None


_TABLES: dict[type, str] = {
    Key: "dragoman_keys", Team: "dragoman_teams", Budget: "dragoman_budgets",
}  # fmt: skip
T = TypeVar("T", Key, Team, Budget)


class AuditRecord(Struct, frozen=True):
    """The audit record of one change to the keys."""

    seq: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]


class KnownKeyError(ValueError):
    """A key with this name exists already."""


def is_key_database(place: str | Path) -> bool:
    """Return whether a path or URL refers to a key database rather than a YAML file."""
    if is_postgres(place):
        return True
    path = Path(place)
    # a pipe is always a key file; do not read from it here, since its content can be read only
    # once
    if not path.is_file():
        return path.suffix in (".db", ".sqlite")
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def load_keys(place: str | Path) -> KeyRing:
    """Return the keys of a YAML file, a SQLite file or a ``postgresql://`` URL."""
    return KeyRing(source=KeyStore(place)) if is_key_database(place) else KeyRing.load(place)


class KeyStore:
    """The keys, teams and audit records of a database.

    ``actor`` is the name that audit records show as the author of a change. With ``team``, the
    lead of this team is the author, who changes keys of the team and nothing else.
    """

    def __init__(
        self, place: str | Path, *, actor: str | None = None, team: str | None = None
    ) -> None:
        self.place = place
        self._base = open_database(place, _SCHEMA)
        self._file = _identify(self.place)
        self._actor = actor or _find_actor()
        self._team = team
        self._lock = threading.Lock()  # the gateway polls the keys from several threads
        self.withdrawn: frozenset[str] = frozenset()
        """The users whose access was withdrawn, when the keys were read last."""

    def version(self) -> tuple[int, ...]:
        """Return the number of the most recent change, and the identity of the SQLite file.

        If the SQLite file was replaced, for example by a restored copy, open the new file.
        """
        with self._lock:
            if (file := _identify(self.place)) != self._file:
                self._base.close()
                self._base = open_database(self.place, _SCHEMA)
                self._file = file
            rows = self._base.run(
                "select seq from dragoman_audit where action <> ? order by seq desc limit 1",
                (_READ,),
            )
            return (int(rows[0][0]) if rows else 0, *file)

    def read_keys(self) -> Sequence[Key]:
        """Return every key, sorted by name, with the budget of its team."""
        with self._lock:
            budgets = {team.id: team.budget_usd_month for team in self._read_all(Team)}
            keys = self._read_all(Key)
            rows = self._base.run("select id from dragoman_withdrawn")
        self.withdrawn = frozenset([str(user) for (user,) in rows])
        return tuple(
            [replace(key, team_budget_usd_month=budgets.get(key.team or "")) for key in keys]
        )

    def read_budgets(self) -> Sequence[Budget]:
        """Return the budgets of teams, users and tags, and the further ones of keys."""
        with self._lock:
            further = {each.name: each for each in self._read_all(Budget)}
            teams = self._read_all(Team)
        for team in teams:
            own = Budget(TEAM + team.id, "month", team.budget_usd_month)
            began = further[own.name].began if own.name in further else None
            if own.usd is not None:
                further[own.name] = replace(own, began=began)
        return tuple(further.values())

    def teams(self) -> Sequence[Team]:
        """Return every team, sorted by name."""
        with self._lock:
            return tuple(self._read_all(Team))

    def audit(
        self, subject: str | None = None, limit: int = 100, before: int = 0
    ) -> Sequence[AuditRecord]:
        """Return the latest audit records, newest first.

        ``subject`` restricts them to one key or team, ``before`` to those with a lower number.
        """
        if subject is not None and not subject.isprintable():
            return ()
        with self._lock:
            rows = self._base.run(
                "select seq, at, actor, action, subject, detail from dragoman_audit "
                "where (subject = ? or ? = '') and (seq < ? or ? = 0) order by seq desc limit ?",
                (subject or "", subject or "", before, before, limit),
            )
        found = []
        for seq, at, actor, action, of, detail in rows:
            when = datetime.fromtimestamp(at, UTC)
            changed = msgspec.json.decode(detail)
            found.append(AuditRecord(seq, when, actor, action, of, changed))
        return tuple(found)

    def create(self, name: str, **fields: Any) -> str:
        """Create a key and return it; store only its hash.

        The keyword arguments are fields of ``Key``.
        """
        shown, digest = new_key()
        self.add([Key(name, digest, **fields)])
        return shown

    def add(self, keys: Iterable[Key], action: str = "create") -> None:
        """Add keys by their hashes; raise ``ValueError`` if a name or hash exists already."""
        with self._lock, self._base.transaction(_LOCK) as now:
            known = self._read_all(Key)
            names = {key.id for key in known}
            hashes = {each for key in known for each in (key.hash, key.old_hash)}
            withdrawn = {user for (user,) in self._base.run("select id from dragoman_withdrawn")}
            for key in keys:
                _check_name(key.id)
                _check_labels(key)
                if key.id in names:
                    raise KnownKeyError(f"there is a key named {key.id!r} already")
                if key.user in withdrawn:
                    raise ValueError(f"the access of the user {key.user!r} is withdrawn")
                _check_own(self._team, key)
                if key.hash in hashes:
                    raise ValueError(f"the key {key.id!r} has the hash of another key")
                names.add(key.id)
                hashes.add(key.hash)
                self._write(key)
                self._record(now, action, key.id, _describe(key))

    def change(self, name: str, fields: Mapping[str, Any]) -> Key:
        """Change fields of a key; raise ``LookupError`` if the name is unknown.

        A change that changes nothing leaves no audit record.
        """
        with self._lock, self._base.transaction(_LOCK) as now:
            before = self._read(name)
            after = replace(before, **fields)
            _check_labels(after)
            _check_own(self._team, before)
            _check_own(self._team, after)
            if after == before:
                return before
            self._write(after)
            old = _describe(before)
            new = _describe(after)
            changed = {
                field: new.get(field) for field in {*old, *new} if old.get(field) != new.get(field)
            }
            self._record(now, "change", name, changed)
        return after

    def rotate(self, name: str, overlap: timedelta) -> tuple[str, datetime]:
        """Replace a key and return the new one; the old key stays valid for ``overlap``."""
        shown, digest = new_key()
        with self._lock, self._base.transaction(_LOCK) as now:
            key = self._read(name)
            _check_own(self._team, key)
            until = datetime.fromtimestamp(now, UTC) + overlap
            self._write(replace(key, hash=digest, old_hash=key.hash, old_until=until))
            self._record(now, "rotate", name, {"old_until": until.isoformat(timespec="seconds")})
        return shown, until

    def revoke(self, name: str) -> None:
        """Delete a key; raise ``LookupError`` if the name is unknown."""
        with self._lock, self._base.transaction(_LOCK) as now:
            _check_own(self._team, self._read(name))
            self._base.run("delete from dragoman_keys where id = ?", (name,))
            _drop_budgets(self._base, name)
            self._record(now, "revoke", name, {})

    def withdraw(self, user: str) -> Sequence[str]:
        """Delete the keys of a user and return their names; the user gets no new ones.

        Sessions and tokens of the user are refused too. A user whose access is withdrawn already
        may have got keys by other ways; they are deleted.
        """
        check_label(user)
        with self._lock, self._base.transaction(_LOCK) as now:
            names = [key.id for key in self._read_all(Key) if key.user == user]
            known = self._base.run("select id from dragoman_withdrawn where id = ?", (user,))
            if known and not names:
                return ()
            for name in names:
                self._base.run("delete from dragoman_keys where id = ?", (name,))
            if not known:
                self._base.run("insert into dragoman_withdrawn values (?)", (user,))
            self._record(now, "withdraw", user, {"keys": names})
        return tuple(names)

    def admit(self, user: str) -> None:
        """Let a user in again whose access was withdrawn; raise ``LookupError`` if it was not."""
        check_label(user)
        with self._lock, self._base.transaction(_LOCK) as now:
            if not self._base.run("select id from dragoman_withdrawn where id = ?", (user,)):
                raise LookupError(f"the access of the user {user!r} is not withdrawn")
            self._base.run("delete from dragoman_withdrawn where id = ?", (user,))
            self._record(now, "admit", user, {})

    def set_team(self, name: str, budget_usd_month: Decimal | None) -> None:
        """Create or change a team; one that is as given already is left as it is."""
        _check_name(name)
        _check_all(self._team, f"the team {name}")
        with self._lock, self._base.transaction(_LOCK) as now:
            team = Team(name, budget_usd_month)
            if team in self._read_all(Team):
                return
            self._write(team)
            budget = None if budget_usd_month is None else str(budget_usd_month)
            self._record(now, "team", TEAM + name, {"budget_usd_month": budget})

    def delete_team(self, name: str) -> None:
        """Delete a team and its budgets; raise ``ValueError`` if keys still belong to it."""
        _check_all(self._team, f"the team {name}")
        with self._lock, self._base.transaction(_LOCK) as now:
            if name not in {team.id for team in self._read_all(Team)}:
                raise LookupError(f"there is no team named {name!r}")
            keys = [key.id for key in self._read_all(Key) if key.team == name]
            if keys:
                raise ValueError(
                    f"{len(keys)} keys belong to the team {name}, such as {keys[0]}; revoke them or "
                    "give them to another team first"
                )
            self._base.run("delete from dragoman_teams where id = ?", (name,))
            _drop_budgets(self._base, TEAM + name)
            self._record(now, "delete", TEAM + name, {})

    def set_budget(self, account: str, period: Period, usd: Decimal | None) -> None:
        """Set the amount that an account may spend in a period; ``None`` removes the budget.

        A budget in all or for a month is a field of the key, and for a month of the team.
        """
        kind, name = read_account(account)
        with self._lock, self._base.transaction(_LOCK) as now:
            self._check_account(account)
            known = _find_budget(self._base, account, period)
            if self._find_usd(account, period) == usd:
                return
            if kind == "key" and period in _FIELDS:
                key = self._read(name)
                self._write(replace(key, **{_FIELDS[period]: usd}))
            elif kind == "team" and period == "month":
                self._write(Team(name, usd))
            if usd is None:
                _drop_budgets(self._base, account, period)
            elif not _is_field(account, period):
                began = datetime.fromtimestamp(now, UTC) if known is None else known.began
                self._write(Budget(account, period, usd, began))
            amount = None if usd is None else str(usd)
            self._record(now, "budget", account, {"period": period, "usd": amount})

    def reset_budget(self, account: str, period: Period) -> datetime:
        """Let a budget begin again with nothing spent; return the time at which it does.

        Raise ``LookupError`` if there is no such budget.
        """
        with self._lock, self._base.transaction(_LOCK) as now:
            self._check_account(account)
            known = _find_budget(self._base, account, period)
            if self._find_usd(account, period) is None:
                raise LookupError(f"{account} has no budget for the period {period}")
            began = datetime.fromtimestamp(now, UTC)
            usd = None if known is None else known.usd
            self._write(Budget(account, period, usd, began))
            self._record(now, "reset", account, {"period": period})
        return began

    def note_reading(self, subject: str) -> None:
        """Add an audit record about content that the author has read."""
        with self._lock, self._base.transaction(_LOCK) as now:
            self._record(now, _READ, subject, {})

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._base.close()

    # --- private methods

    def _check_account(self, account: str) -> None:
        """Raise an error if a budget cannot have an account, or the author does not change it."""
        kind, name = read_account(account)
        if kind == "key":
            _check_own(self._team, self._read(name))
            return
        try:
            check_label(name)
        except ValueError as error:
            raise ValueError(f"the name of a {kind} {error}") from None
        _check_all(self._team, f"budgets of the {kind} {name}")

    def _find_usd(self, account: str, period: Period) -> Decimal | None:
        """Return the amount of a budget; ``None`` if there is no such budget."""
        kind, name = read_account(account)
        if not _is_field(account, period):
            known = _find_budget(self._base, account, period)
            return None if known is None else known.usd
        if kind == "key":
            found: Decimal | None = getattr(self._read(name), _FIELDS[period])
            return found
        return next(
            (team.budget_usd_month for team in self._read_all(Team) if team.id == name), None
        )

    def _read(self, name: str) -> Key:
        # PostgreSQL takes no NUL in a text, not even to look for it.
        find = "select data from dragoman_keys where id = ?"
        rows = self._base.run(find, (name,)) if name.isprintable() else []
        if not rows:
            raise LookupError(f"there is no key named {name!r}")
        return msgspec.json.decode(rows[0][0], type=Key)

    def _read_all(self, kind: type[T]) -> list[T]:
        statement = f"select data from {_TABLES[kind]} order by id"  # noqa: S608 - our own
        rows = self._base.run(statement)
        return [msgspec.json.decode(data, type=kind) for (data,) in rows]

    def _write(self, row: Key | Team | Budget) -> None:
        if isinstance(row, Key):
            row = replace(row, team_budget_usd_month=None)
        self._base.run(
            f"insert into {_TABLES[type(row)]} values (?, ?) "  # noqa: S608 - our own
            "on conflict (id) do update set data = excluded.data",
            (
                row.name if isinstance(row, Budget) else row.id,
                msgspec.json.encode(row).decode(),
            ),
        )

    def _record(self, now: float, action: str, subject: str, detail: Mapping[str, Any]) -> None:
        self._base.run(
            "insert into dragoman_audit (at, actor, action, subject, detail) values (?, ?, ?, "
            "?, ?)",
            (now, self._actor, action, subject, msgspec.json.encode(detail).decode()),
        )


def _identify(place: str | Path) -> tuple[int, ...]:
    """Return the device and inode of a SQLite file, or nothing for PostgreSQL."""
    if is_postgres(place):
        return ()
    facts = Path(place).stat()
    return facts.st_dev, facts.st_ino


def _check_own(team: str | None, key: Key) -> None:
    """Raise an error if the lead of a team changes a key that does not belong to it."""
    if team is not None and key.team != team:
        raise AuthenticationError(
            f"the lead of the team {team} changes keys of this team only", status=403
        )


def _check_all(team: str | None, what: str) -> None:
    """Raise an error if the lead of a team changes something other than keys."""
    if team is not None:
        raise AuthenticationError(
            f"the lead of the team {team} does not change {what}", status=403
        )


def _find_budget(base: Database, account: str, period: Period) -> Budget | None:
    find = "select data from dragoman_budgets where id = ?"
    rows = base.run(find, (Budget(account, period).name,))
    return msgspec.json.decode(rows[0][0], type=Budget) if rows else None


def _drop_budgets(base: Database, account: str, *periods: Period) -> None:
    for period in periods or PERIODS:
        statement = "delete from dragoman_budgets where id = ?"
        base.run(statement, (Budget(account, period).name,))


def _is_field(account: str, period: Period) -> bool:
    """Return whether a field of a key or a team has the amount of a budget."""
    kind, _ = read_account(account)
    return (kind == "key" and period in _FIELDS) or (kind == "team" and period == "month")


def show_key(key: Key) -> dict[str, Any]:
    """Return the fields of a key without its hashes, and without budgets that are not its own."""
    return {name: value for name, value in asdict(key).items() if name not in _SECRET}


def _describe(key: Key) -> dict[str, Any]:
    """Return the fields of a key that an audit record contains, as JSON values."""
    made = msgspec.to_builtins(show_key(replace(key, team_budget_usd_month=None)))
    return {name: value for name, value in made.items() if value is not None and name != "id"}


def _check_name(name: str) -> None:
    if not name or len(name) > MAX_NAME or not name.isprintable() or name.startswith(PREFIXES):
        raise ValueError(
            f"the name of a key or team is 1 to {MAX_NAME} printable characters and does not "
            f"begin with {', '.join(PREFIXES)}"
        )


def _check_labels(key: Key) -> None:
    for what, label in (("user", key.user), ("team", key.team)):
        if label is not None:
            try:
                check_label(label)
            except ValueError as error:
                raise ValueError(f"the {what} of a key {error}") from None
    try:
        check_models(key.models)
    except ValueError as error:
        raise ValueError(f"the models of a key {error}") from None


def _find_actor() -> str:
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):
        # a user of a container may have a number but no name; Windows has no numbers
        user = str(os.getuid()) if sys.platform != "win32" else "unknown"
    return f"{user}@{socket.gethostname()}"
