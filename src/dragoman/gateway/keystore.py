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

from ..database import is_postgres, open_database
from .keys import MAX_NAME, TEAM, Key, KeyRing, check_label, check_models, new_key

_SCHEMA = [
    "create table if not exists dragoman_keys (id text primary key, data text not null)",
    "create table if not exists dragoman_teams (id text primary key, data text not null)",
    "create table if not exists dragoman_withdrawn (id text primary key)",
    (
        "create table if not exists dragoman_audit (seq {serial}, at double precision not null, "
        "actor text not null, action text not null, subject text not null, detail text not null)"
    ),
]
_LOCK = "keys"
_SQLITE = b"SQLite format 3\0"
_SECRET = ("hash", "old_hash")


class Team(Struct, frozen=True):
    """A team and the budget that its keys share in a month (UTC)."""

    id: str
    budget_usd_month: Decimal | None = None


_TABLES: dict[type, str] = {Key: "dragoman_keys", Team: "dragoman_teams"}
T = TypeVar("T", Key, Team)


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

    ``actor`` is the name that audit records show as the author of a change.
    """

    def __init__(self, place: str | Path, *, actor: str | None = None) -> None:
        self.place = place
        self._base = open_database(place, _SCHEMA)
        self._file = self._identify()
        self._actor = actor or _find_actor()
        self._lock = threading.Lock()  # the gateway polls the keys from several threads
        self.withdrawn: frozenset[str] = frozenset()
        """The users whose access was withdrawn, when the keys were read last."""

    def version(self) -> tuple[int, ...]:
        """Return the number of the most recent change, and the identity of the SQLite file.

        If the SQLite file was replaced, for example by a restored copy, open the new file.
        """
        with self._lock:
            if (file := self._identify()) != self._file:
                self._base.close()
                self._base = open_database(self.place, _SCHEMA)
                self._file = file
            [(last,)] = self._base.run("select coalesce(max(seq), 0) from dragoman_audit")
            return (int(last), *file)

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
                if key.hash in hashes:
                    raise ValueError(f"the key {key.id!r} has the hash of another key")
                names.add(key.id)
                hashes.add(key.hash)
                self._write(key)
                self._record(now, action, key.id, _describe(key))

    def change(self, name: str, fields: Mapping[str, Any]) -> Key:
        """Change fields of a key; raise ``LookupError`` if the name is unknown."""
        with self._lock, self._base.transaction(_LOCK) as now:
            before = self._read(name)
            after = replace(before, **fields)
            _check_labels(after)
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
            until = datetime.fromtimestamp(now, UTC) + overlap
            self._write(replace(key, hash=digest, old_hash=key.hash, old_until=until))
            self._record(now, "rotate", name, {"old_until": until.isoformat(timespec="seconds")})
        return shown, until

    def revoke(self, name: str) -> None:
        """Delete a key; raise ``LookupError`` if the name is unknown."""
        with self._lock, self._base.transaction(_LOCK) as now:
            self._read(name)
            self._base.run("delete from dragoman_keys where id = ?", (name,))
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
        """Create or change a team."""
        _check_name(name)
        with self._lock, self._base.transaction(_LOCK) as now:
            self._write(Team(name, budget_usd_month))
            budget = None if budget_usd_month is None else str(budget_usd_month)
            self._record(now, "team", TEAM + name, {"budget_usd_month": budget})

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._base.close()

    # --- private methods

    def _identify(self) -> tuple[int, ...]:
        """Return the device and inode of the SQLite file, or nothing for PostgreSQL."""
        if is_postgres(self.place):
            return ()
        facts = Path(self.place).stat()
        return facts.st_dev, facts.st_ino

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

    def _write(self, row: Key | Team) -> None:
        if isinstance(row, Key):
            row = replace(row, team_budget_usd_month=None)
        self._base.run(
            f"insert into {_TABLES[type(row)]} values (?, ?) "  # noqa: S608 - our own
            "on conflict (id) do update set data = excluded.data",
            (row.id, msgspec.json.encode(row).decode()),
        )

    def _record(self, now: float, action: str, subject: str, detail: Mapping[str, Any]) -> None:
        self._base.run(
            "insert into dragoman_audit (at, actor, action, subject, detail) values (?, ?, ?, "
            "?, ?)",
            (now, self._actor, action, subject, msgspec.json.encode(detail).decode()),
        )


def show_key(key: Key) -> dict[str, Any]:
    """Return the fields of a key without its hashes."""
    return {name: value for name, value in asdict(key).items() if name not in _SECRET}


def _describe(key: Key) -> dict[str, Any]:
    """Return the fields of a key that an audit record contains, as JSON values."""
    made = msgspec.to_builtins(show_key(replace(key, team_budget_usd_month=None)))
    return {name: value for name, value in made.items() if value is not None and name != "id"}


def _check_name(name: str) -> None:
    if not name or len(name) > MAX_NAME or not name.isprintable() or name.startswith(TEAM):
        raise ValueError(
            f"the name of a key or team is 1 to {MAX_NAME} printable characters and does not "
            f"begin with {TEAM}"
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
