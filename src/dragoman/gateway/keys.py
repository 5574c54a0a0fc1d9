"""API keys of the gateway: their hashes, and what each may do.

The file is strict YAML; it contains hashes, never the keys themselves::

    keys:
      ann:
        hash: sha256:9f86d081...
        models: [fast, "anthropic:*"]
        budget_usd: 5
        requests_per_minute: 60

A key is 32 random bytes, so a plain digest cannot be reversed. It is compared in constant time
with every key of the file.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import stat
from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from msgspec import Struct

from ..config import ConfigError, Section, read_yaml

log = logging.getLogger("dragoman")

PREFIX = "dg-"
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_FIELDS = [
    "hash",
    "models",
    "budget_usd",
    "requests_per_minute",
    "tokens_per_minute",
    "max_concurrency",
    "expires",
    "on_loss",
]


class Key(Struct, frozen=True):
    """One key's owner and rights. ``models`` are names or patterns such as ``"anthropic:*"``."""

    id: str
    hash: str
    models: tuple[str, ...] = ("*",)
    budget_usd: Decimal | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrency: int | None = None
    expires: date | None = None
    on_loss: Literal["warn", "reject"] = "warn"

    def allows(self, model: str) -> bool:
        """Return whether this key may use the model of this name."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)

    @property
    def is_limited(self) -> bool:
        """Whether any limit has to be counted for it."""
        counted = (self.budget_usd, self.requests_per_minute, self.tokens_per_minute, self.max_concurrency)
        return any(limit is not None for limit in counted)


def hash_key(key: str) -> str:
    """Return the digest to store in the file."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def new_key() -> tuple[str, str]:
    """Return a new key, to be shown once, and its hash for the file."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hash_key(key)


class KeyRing:
    """The known keys. A changed file is read before the next lookup, all or nothing.

    A file without keys, or a deleted one, leaves no key valid. Earlier keys stay valid only while
    the file is unreadable or invalid.
    """

    def __init__(self, keys: Iterable[Key] = (), path: Path | None = None) -> None:
        self._keys: Sequence[Key] = tuple(keys)
        self._path = path
        self._stamp = _stamp(path)

    @classmethod
    def load(cls, path: str | Path) -> KeyRing:
        """Read a key file; ``ConfigError`` if it is invalid or has no keys."""
        ring = cls(path=Path(path))
        ring._keys = _read(Path(path))
        if not ring._keys:
            raise ConfigError(str(path), None, "has no keys; create one with `dragoman serve --new-key NAME`")
        return ring

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> Sequence[Key]:
        """Every key in the current file."""
        self._renew()
        return self._keys

    def find(self, presented: str | None, today: date | None = None) -> Key | None:
        """Return the key that a client presents, unless it is unknown or expired."""
        digest = hash_key(presented or "")
        found: Key | None = None
        for key in self.keys:  # compare with all keys, even after a match: constant time
            if hmac.compare_digest(key.hash, digest):
                found = key
        if presented is None or found is None:
            return None
        return None if found.expires is not None and (today or date.today()) > found.expires else found

    def _renew(self) -> None:
        stamp = _stamp(self._path)
        if self._path is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = _read(self._path) if stamp is not None else ()
        except ConfigError as error:
            log.warning("%s; keeping the keys that were read before", error)
            return
        if not self._keys:
            log.warning("%s: holds no keys now; every request is refused", self._path)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        facts = path.stat() if path is not None else None
    except OSError:
        return None
    # a pipe is read only at the start, since reading could block the event loop
    if facts is None or not stat.S_ISREG(facts.st_mode):
        return None
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino)


def _read(path: Path) -> tuple[Key, ...]:
    root = read_yaml(path)
    root.allow("keys")
    keys = tuple([_read_key(name, section) for name, section in root.section("keys").sections()])
    if len({key.hash for key in keys}) != len(keys):
        raise ConfigError(str(path), None, "two keys have the same hash")
    return keys


def _read_key(name: str, section: Section) -> Key:
    section.allow(*_FIELDS)
    digest = section.get("hash", str)
    if digest is None or not _HASH.fullmatch(digest):
        raise section.fail("must be sha256: and 64 hexadecimal digits", "hash")
    return Key(
        name,
        digest,
        section.texts("models") or ("*",),
        _read_money(section),
        _read_count(section, "requests_per_minute"),
        _read_count(section, "tokens_per_minute"),
        _read_count(section, "max_concurrency"),
        _read_date(section),
        _read_on_loss(section),
    )


def _read_count(section: Section, name: str) -> int | None:
    value: int | None = section.get(name, int)
    if value is not None and value < 1:
        raise section.fail("must be 1 or more", name)
    return value


def _read_money(section: Section) -> Decimal | None:
    value = section.get("budget_usd", (int, float, str))
    try:
        money = None if value is None else Decimal(str(value))
    except InvalidOperation:
        raise section.fail("must be an amount of money", "budget_usd") from None
    if money is not None and not (money.is_finite() and money >= 0):
        raise section.fail("must be an amount of money", "budget_usd")
    return money


def _read_on_loss(section: Section) -> Literal["warn", "reject"]:
    value = section.get("on_loss", str)
    if value not in (None, "warn", "reject"):
        raise section.fail("must be warn or reject", "on_loss")
    return "reject" if value == "reject" else "warn"


def _read_date(section: Section) -> date | None:
    value = section.get("expires", str)
    try:
        return None if value is None else date.fromisoformat(value)
    except ValueError:
        raise section.fail("must be a date such as 2030-01-31", "expires") from None
