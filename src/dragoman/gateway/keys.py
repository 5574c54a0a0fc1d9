"""API keys of the gateway: their hashes, and what each key may do.

A key file is strict YAML; it contains hashes, never the keys themselves::

    keys:
      ann:
        hash: sha256:9f86d081...
        team: research
        models: [fast, "anthropic:*"]
        budget_usd: 5
        requests_per_minute: 60
    teams:
      research: {budget_usd_month: 100}
    budgets:
      "user:ann@example.org": {day: 5, week: 20}

``dragoman.gateway.keystore`` keeps keys in a database instead, which ``dragoman keys gateway``
changes. A key is 32 random bytes, so a plain digest cannot be reversed. The gateway compares the
digest of a client's key with that of every valid key, in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ..errors import cut, scrub
from ..validate.yaml import ConfigError, Section, read_yaml
from .budgets import PERIODS, PREFIXES, TAG, TEAM, USER, Budget, read_account

log = logging.getLogger("dragoman")

T = TypeVar("T")

PREFIX = "dg-"
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_NOT_HASH = "must be sha256: and 64 hexadecimal digits"
_NOT_TIME = "must be a time such as 2030-01-31T12:00:00Z"
_NOT_DATE = "must be a date such as 2030-01-31"
MAX_LIMIT = 10**12
"""The highest limit of a key: its US dollars, requests, tokens and concurrent calls."""
MAX_NAME = 200
"""The most characters in the name of a key, a team, a user or a model."""
MAX_PATTERNS = 1000
"""The most names and patterns of models of a key, which are compared with each request's model."""
_FINEST = -18  # the exponent of the last digit of an amount of money
_COUNTS = ("requests_per_minute", "tokens_per_minute", "max_concurrency")


class Key(Struct, frozen=True):
    """The owner and the rights of a key.

    ``models`` lists the models that the key may use, as names or patterns such as
    ``"anthropic:*"``.
    """

    id: str
    hash: str
    models: tuple[str, ...] = ("*",)
    budget_usd: Decimal | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrency: int | None = None
    expires: date | None = None
    on_loss: Literal["drop", "warn", "reject"] = "warn"
    team: str | None = None
    budget_usd_month: Decimal | None = None
    # the monthly budget of all keys of the team together
    team_budget_usd_month: Decimal | None = None
    # the hash that the key had before its rotation, valid until ``old_until``
    old_hash: str | None = None
    old_until: datetime | None = None
    # the person to whom the key belongs, and whether its clients may name their user in a request
    user: str | None = None
    names_user: bool = False
    # further budgets of the key, its user, its team and the tag of a request
    budgets: tuple[Budget, ...] = ()

    def allows(self, model: str) -> bool:
        """Return whether this key may use the model with this name."""
        return "*" in self.models or any(fnmatchcase(model, each) for each in self.models)

    @property
    def has_budget(self) -> bool:
        """Whether a budget limits the key, so that costs must be counted."""
        budgets = (self.budget_usd, self.budget_usd_month, self.team_budget_usd_month)
        return budgets != (None, None, None) or any(each.usd is not None for each in self.budgets)

    @property
    def limits(self) -> tuple[Budget, ...]:
        """All budgets that limit the key, each with its amount, those of the key itself first."""
        found = {
            each.name: each
            for each in (
                Budget(self.id, "total", self.budget_usd),
                Budget(self.id, "month", self.budget_usd_month),
                Budget(f"{TEAM}{self.team}", "month", self.team_budget_usd_month),
            )
        }
        for each in self.budgets:
            earlier = found.get(each.name)
            if each.usd is None and earlier is not None:
                found[each.name] = replace(each, usd=earlier.usd)
            else:
                found[each.name] = each
        return tuple([each for each in found.values() if each.usd is not None])

    @property
    def has_rates(self) -> bool:
        """Whether the key has a limit on requests, tokens or concurrent calls."""
        limits = (self.requests_per_minute, self.tokens_per_minute, self.max_concurrency)
        return limits != (None, None, None)

    @property
    def rates(self) -> dict[str, int]:
        """The limits per minute that the key has, of requests and of tokens."""
        limits = {"requests": self.requests_per_minute, "tokens": self.tokens_per_minute}
        return {name: limit for name, limit in limits.items() if limit is not None}

    @property
    def is_limited(self) -> bool:
        """Whether the key has any limit."""
        return self.has_budget or self.has_rates

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts in the ledger to which the key's cost is added: its own, and its team's."""
        return (self.id,) if self.team is None else (self.id, TEAM + self.team)


def hash_key(key: str) -> str:
    """Return the digest of a key, as the key file stores it."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def is_hash(text: str) -> bool:
    """Return whether a text has the format of a key's digest."""
    return _HASH.fullmatch(text) is not None


def new_key() -> tuple[str, str]:
    """Return a new key and its hash; the key is shown once, and the hash is stored."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hash_key(key)


class KeySource(Protocol):
    """The interface of a database that contains keys; ``KeyStore`` implements it."""

    def version(self) -> tuple[int, ...]:
        """Return a value that differs after every change of the keys."""
        ...

    def read_keys(self) -> Sequence[Key]:
        """Return all keys."""
        ...

    def read_budgets(self) -> Sequence[Budget]:
        """Return the budgets of teams, users and tags, and the further ones of keys."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class KeyRing:
    """The keys that are currently valid, from a file or a database.

    If the key file has changed, the complete file is read before the next lookup. If the file is
    deleted or has no keys, no key is valid. While the file is unreadable or invalid, the earlier
    keys stay valid. The gateway calls ``poll`` every second in a thread to read keys from a
    ``source``, which is a database; while the database is unavailable, the keys stay as they are.
    """

    def __init__(
        self, keys: Iterable[Key] = (), path: Path | None = None, source: KeySource | None = None
    ) -> None:
        self._keys: Sequence[Key] = tuple(keys)
        self._budgets: Mapping[str, tuple[Budget, ...]] = {}
        self._path = path
        self._stamp = _stamp(path)
        self.source = source
        self._version: tuple[int, ...] = ()
        self._is_lost = False
        if source is not None:
            self._version = source.version()
            self._keys = source.read_keys()
            self._budgets = _sort_budgets(source.read_budgets())

    @classmethod
    def load(cls, path: str | Path) -> KeyRing:
        """Read a key file; raise ``ConfigError`` if it is invalid or has no keys."""
        ring = cls(path=Path(path))
        found = read_key_file(Path(path))
        ring._keys = found.keys
        ring._budgets = _sort_budgets(found.list_budgets())
        if not ring._keys:
            raise ConfigError(
                str(path), None, "has no keys; create one with `dragoman serve --new-key NAME`"
            )
        return ring

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> Sequence[Key]:
        """All keys. If the key file has changed, it is read again."""
        self._renew()
        return self._keys

    def apply_budgets(self, key: Key, user: str = "", tag: str = "") -> Key:
        """Return a key with the budgets of a request: of its own, its user, its team and its tag.

        ``user`` is the one whom the request names, in place of the user of the key.
        """
        if not self._budgets:
            return key
        names = [(USER, user or key.user), (TEAM, key.team), (TAG, tag)]
        accounts = [key.id, *[prefix + name for prefix, name in names if name]]
        found = [each for account in accounts for each in self._budgets.get(account, ())]
        return replace(key, budgets=tuple(found)) if found else key

    def list_budgets(self) -> list[Budget]:
        """Return all budgets with an amount."""
        keys = [self.apply_budgets(key) for key in self.keys]
        found = {each.name: each for key in keys if key.has_budget for each in key.limits}
        for budgets in self._budgets.values():
            for each in budgets:
                if each.usd is not None:
                    found.setdefault(each.name, each)
        return list(found.values())

    def poll(self) -> None:
        """Read the keys in the database again if they have changed."""
        if self.source is None:
            return
        try:
            version = self.source.version()
            if version != self._version:
                self._keys = self.source.read_keys()
                self._budgets = _sort_budgets(self.source.read_budgets())
                self._version = version
        except Exception as error:  # the SQLite and PostgreSQL drivers raise different exceptions
            if not self._is_lost:
                log.warning(
                    "the database of keys is unavailable; the keys stay as they are: %s",
                    scrub(str(error)),
                )
            self._is_lost = True
            return
        self._is_lost = False

    def close(self) -> None:
        """Close the connection to the database, if there is one."""
        if self.source is not None:
            self.source.close()

    def find(self, presented: str | None, today: date | None = None) -> Key | None:
        """Return the entry of the key that a client sent; ``None`` if it is unknown or expired."""
        digest = hash_key(presented or "")
        found: Key | None = None
        # compare with every hash, so that the duration does not reveal a match
        for key in self.keys:
            if hmac.compare_digest(key.hash, digest):
                found = key
            if key.old_hash is None or key.old_until is None:
                continue
            is_old = hmac.compare_digest(key.old_hash, digest)
            if datetime.now(UTC) < key.old_until and is_old:
                found = key
        if presented is None or found is None:
            return None
        is_over = found.expires is not None and (today or date.today()) > found.expires
        return None if is_over else found

    def _renew(self) -> None:
        if self._path is None or (stamp := _stamp(self._path)) == self._stamp:
            return
        self._stamp = stamp
        try:
            found = KeyFile() if stamp is None else read_key_file(self._path)
        except ConfigError as error:
            log.warning("%s; keeping the keys that were read before", error)
            return
        self._keys = found.keys
        self._budgets = _sort_budgets(found.list_budgets())
        if not self._keys:
            log.warning("%s: holds no keys now; every request is refused", self._path)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        facts = path.stat() if path is not None else None
    except OSError:
        return None
    # a key file that is a pipe is never read again, since reading could block the event loop
    if facts is None or not stat.S_ISREG(facts.st_mode):
        return None
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino)


class KeyFile(Struct, frozen=True):
    """What a key file has: keys, teams with their monthly budgets, and further budgets."""

    keys: tuple[Key, ...] = ()
    teams: Mapping[str, Decimal | None] = {}
    budgets: tuple[Budget, ...] = ()

    def list_budgets(self) -> list[Budget]:
        """Return the budgets of teams and the further ones."""
        teams = [Budget(TEAM + name, "month", usd) for name, usd in self.teams.items()]
        return [*[each for each in teams if each.usd is not None], *self.budgets]


def read_key_file(path: Path) -> KeyFile:
    """Return the content of a key file; raise ``ConfigError`` about a mistake."""
    root = read_yaml(path)
    root.allow("keys", "teams", "budgets")
    teams = {}
    for name, section in root.section("teams").sections():
        section.allow("budget_usd_month")
        teams[name] = _read_money(section, "budget_usd_month")
    keys = tuple(
        [_read_key(name, section, teams) for name, section in root.section("keys").sections()]
    )
    hashes = [each for key in keys for each in (key.hash, key.old_hash) if each is not None]
    if len(set(hashes)) != len(hashes):
        raise ConfigError(str(path), None, "two keys have the same hash")
    taken = {each.name for key in keys for each in key.limits}
    taken |= {f"{TEAM}{name}:month" for name, usd in teams.items() if usd is not None}
    budgets = [
        each
        for account, section in root.section("budgets").sections()
        for each in _read_budgets(account, section, taken)
    ]
    return KeyFile(keys, teams, tuple(budgets))


def _read_budgets(account: str, section: Section, taken: Collection[str]) -> list[Budget]:
    """Return the budgets of an account, whose section has an amount for each period."""
    section.allow(*PERIODS)
    try:
        check_label(read_account(account)[1])
    except ValueError as error:
        raise section.fail(f"the name of an account {error}") from None
    found = [Budget(account, period, _read_money(section, period)) for period in PERIODS]
    for each in found:
        if each.usd is not None and each.name in taken:
            raise section.fail("has a budget for this period already", each.period)
    return [each for each in found if each.usd is not None]


def _sort_budgets(budgets: Iterable[Budget]) -> dict[str, tuple[Budget, ...]]:
    """Return budgets by account."""
    found: dict[str, tuple[Budget, ...]] = {}
    for each in budgets:
        found[each.account] = (*found.get(each.account, ()), each)
    return found


def _read_key(name: str, section: Section, teams: Mapping[str, Decimal | None]) -> Key:
    found = section.values(Key, without=["id", "team_budget_usd_month", "budgets"])
    if name.startswith(PREFIXES) or not name.isprintable():
        raise section.fail(
            "the name of a key must have printable characters, and must not begin with "
            f"{', '.join(PREFIXES)}"
        )
    for field in ("hash", "old_hash"):
        if field in found and not is_hash(found[field]):
            raise section.fail(_NOT_HASH, field)
    for field in _COUNTS:
        if found.get(field, 1) < 1:
            raise section.fail("must be 1 or more", field)
        if found.get(field, 1) > MAX_LIMIT:
            raise section.fail(f"must be at most {MAX_LIMIT}", field)
    old_until = _read_value(section, "old_until", str, _read_time, _NOT_TIME)
    if ("old_hash" in found) != (old_until is not None):
        raise section.fail("old_hash and old_until must be given together")
    if "hash" not in found:
        raise section.fail(_NOT_HASH, "hash")
    found["models"] = found.get("models") or ("*",)
    _check_labels(section, found)
    return Key(
        name,
        budget_usd=_read_money(section, "budget_usd"),
        budget_usd_month=_read_money(section, "budget_usd_month"),
        team_budget_usd_month=teams.get(found.get("team", "")),
        expires=_read_value(section, "expires", str, date.fromisoformat, _NOT_DATE),
        old_until=old_until,
        **found,
    )


def _check_labels(section: Section, found: Mapping[str, Any]) -> None:
    try:
        check_models(found["models"])
    except ValueError as error:
        raise section.fail(str(error), "models") from None
    for field in ("user", "team"):
        if field in found:
            try:
                check_label(found[field])
            except ValueError as error:
                raise section.fail(str(error), field) from None


def _read_money(section: Section, name: str) -> Decimal | None:
    return _read_value(section, name, (int, float, str), read_money)


def _read_value(
    section: Section, name: str, kinds: Any, read: Callable[[str], T], problem: str | None = None
) -> T | None:
    value = section.get(name, kinds)
    try:
        return None if value is None else read(str(value))
    except ValueError as error:
        raise section.fail(problem or str(error), name) from None


def _read_time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def check_label(text: str) -> None:
    """Raise ``ValueError`` if a text cannot name a user or a team."""
    if not 1 <= len(text) <= MAX_NAME or not text.isprintable():
        raise ValueError(f"must be 1 to {MAX_NAME} printable characters")


def check_models(models: Sequence[str]) -> None:
    """Raise ``ValueError`` if texts cannot name the models of a key.

    A pattern is a regular expression, whose compilation takes seconds if it is long enough.
    """
    if len(models) > MAX_PATTERNS:
        raise ValueError(f"must be at most {MAX_PATTERNS} names or patterns")
    for each in models:
        check_label(each)


def read_money(text: str) -> Decimal:
    """Parse an amount of money; raise ``ValueError`` if the text is not an amount."""
    try:
        money = Decimal(text)
    except InvalidOperation:
        money = Decimal(-1)
    if not (money.is_finite() and money >= 0):
        raise ValueError(f"must be an amount of money, not {cut(text, 40)!r}")
    exponent = money.as_tuple().exponent
    if money > MAX_LIMIT or not isinstance(exponent, int) or exponent < _FINEST:
        raise ValueError(
            f"must be an amount of money of at most {MAX_LIMIT} with {-_FINEST} decimal places, "
            f"not {cut(text, 40)!r}"
        )
    return money
