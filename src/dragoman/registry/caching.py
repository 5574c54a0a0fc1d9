"""The section ``cache`` of models.yaml: the replies that a gateway stores and repeats."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct

from ..middleware.stores import RedisStore, SqliteStore, Store
from ..validate.yaml import Section

MEMORY = "memory"
_REDIS = ("redis://", "rediss://", "unix://")
_MIB = 1024 * 1024
_MOST_SECONDS = 10 * 365 * 86_400
_MOST_MIB = 1024 * 1024


class CachePlan(Struct, frozen=True, kw_only=True):
    """Where replies are stored and for how long, and the names of the models.

    Each key of the gateway has entries of its own, unless they are ``shared``.
    """

    store: str
    models: tuple[str, ...] = ("*",)
    ttl_seconds: float = 3600.0
    max_mib: int = 256
    shared: bool = False

    def holds(self, name: str) -> bool:
        """Return whether replies of a model are stored, by the name that clients call."""
        return any(fnmatchcase(name, each) for each in self.models)

    def open(self) -> Store:
        """Open the store."""
        most = self.max_mib * _MIB
        if self.store.startswith(_REDIS):
            return RedisStore(self.store, ttl=self.ttl_seconds, max_bytes=most)
        place = ":memory:" if self.store == MEMORY else self.store
        return SqliteStore(place, ttl=self.ttl_seconds, max_bytes=most)


def read_cache(root: Section) -> CachePlan | None:
    """Read the section ``cache``; a relative path starts at the folder of the file."""
    if "cache" not in root.data:
        return None
    section = root.section("cache")
    section.allow("store", "models", "ttl_seconds", "max_mib", "shared")
    store = section.get("store", str)
    if not store:
        section.complain("must be memory, the path of a file, or a redis:// URL", "store")
        store = MEMORY
    if store != MEMORY and not store.startswith(_REDIS):
        store = str(Path(root.path).parent / Path(store).expanduser())
    seconds = section.get("ttl_seconds", (int, float), 3600.0)
    if not 0 < seconds <= _MOST_SECONDS:
        section.complain(f"must be a positive number up to {_MOST_SECONDS}", "ttl_seconds")
        seconds = 3600.0
    mebibytes = section.get("max_mib", int, 256)
    if not 1 <= mebibytes <= _MOST_MIB:
        section.complain(f"must be from 1 to {_MOST_MIB}", "max_mib")
        mebibytes = 256
    return CachePlan(
        store=store,
        models=tuple(section.texts("models") or ("*",)),
        ttl_seconds=float(seconds),
        max_mib=mebibytes,
        shared=section.get("shared", bool, False),
    )
