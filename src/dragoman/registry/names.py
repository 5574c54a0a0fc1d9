"""Names to providers: ``"anthropic:claude-sonnet-4-6"``, ``"sonnet"``, or what your own file says.

Your file is ``models.yaml``: from ``$DRAGOMAN_CONFIG``, else from the platform's folder for settings, and
never from the working directory, where a stranger's repository could redirect your keys.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from ..capabilities import Capabilities
from ..errors import AuthenticationError, InvalidModelError
from ..middleware import Observe, Retry
from ..provider import Provider, connect
from .config import ConfigError, Section, read_yaml
from .vendors import Vendor, load_vendor, vendor_names

__all__ = ["Adapter", "ModelEntry", "Registry", "config_path"]

log = logging.getLogger("dragoman")

Subscriber = Callable[..., Any]


class Adapter(Struct, frozen=True):
    """How to reach a group of models."""

    name: str
    type: str
    api_key_env: str | None = None
    api_key: str | None = None
    base_url: str | None = None
    timeout_seconds: float = 600.0
    max_retries: int = 2
    extra_headers: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    quirks: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Adapter({self.name!r}, type={self.type!r}, base_url={self.base_url!r})"

    def key(self) -> str | None:
        """The key, if there is one."""
        return self.api_key or (os.environ.get(self.api_key_env) if self.api_key_env else None) or None

    @property
    def is_configured(self) -> bool:
        """Can it be used as it stands? A local server needs no key."""
        return bool(self.base_url) and (self.key() is not None or self.api_key_env is None)


class ModelEntry(Struct, frozen=True):
    """One model by its canonical name, ``adapter:name``."""

    id: str
    adapter: str
    wire_name: str
    tier: str | None = None
    can_delegate: bool = False
    aliases: tuple[str, ...] = ()
    capabilities: Capabilities = Capabilities()
    status: str = "configured"


def config_path() -> Path:
    """Where ``models.yaml`` is looked for."""
    if chosen := os.environ.get("DRAGOMAN_CONFIG"):
        return Path(chosen)
    import platformdirs  # only where it is needed: it costs a fifth of the package's import

    return platformdirs.user_config_path("dragoman") / "models.yaml"


class Registry:
    """Adapters and models by name: your file first, the bundled catalogue behind it.

    ``Registry.load()`` reads the file. When the file changes, the next look-up reads it anew, all or
    nothing: a file that is wrong is reported, in the log and in ``problem``, and the old one stays.
    """

    def __init__(
        self, adapters: Iterable[Adapter] = (), models: Iterable[ModelEntry] = (), path: Path | None = None
    ) -> None:
        self._adapters = {adapter.name: adapter for adapter in adapters}
        self._models = {model.id: model for model in models}
        self._aliases = {alias: model.id for model in self._models.values() for alias in model.aliases}
        self._path = path
        self._stamp = _stamp(path)
        self.problem: str | None = None

    @classmethod
    def load(cls, path: str | Path | None = None) -> Registry:
        """Read ``models.yaml``; without one, the catalogue alone answers. ``ConfigError`` if it is wrong."""
        found = Path(path) if path is not None else config_path()
        if path is None and not found.exists() and not found.is_symlink():
            return cls(path=found)
        return cls(*_read(found), path=found)

    def names(self) -> list[str]:
        """Every model that is named in the file, and every one the catalogue lists."""
        self._refresh()
        listed = [f"{vendor}:{name}" for vendor in vendor_names() for name in load_vendor(vendor).models]
        return [*self._models, *[name for name in listed if name not in self._models]]

    def find(self, name: str) -> ModelEntry:
        """The entry of a name or alias; ``InvalidModelError`` suggests the nearest."""
        self._refresh()
        name = self._aliases.get(name, name)
        if name in self._models:
            entry = self._models[name]
        else:
            adapter, _, model = name.partition(":")
            if not model or (adapter not in self._adapters and adapter not in vendor_names()):
                raise InvalidModelError(f"no model is named {name!r}{self._suggest(name)}", model=name)
            entry = ModelEntry(name, adapter, model)
        status = "configured" if self.adapter(entry.adapter).is_configured else "not_configured"
        return ModelEntry(
            entry.id, entry.adapter, entry.wire_name, entry.tier, entry.can_delegate, entry.aliases,
            self._known(entry), status,
        )  # fmt: skip

    def adapter(self, name: str) -> Adapter:
        """An adapter of the file, or the catalogue's own."""
        adapter = self._adapters.get(name)
        if adapter is not None:
            return adapter
        vendor = load_vendor(name)
        return Adapter(name, name, vendor.api_key_env, base_url=vendor.base_url)

    def provider(self, name: str, *, planning: bool = False, **settings: Any) -> Provider:
        """The bare provider of a model. ``AuthenticationError`` names the variable that is not set.

        ``planning`` asks for one that is only to be planned with, and needs no key.
        """
        entry = self.find(name)
        adapter = self.adapter(entry.adapter)
        if entry.status != "configured" and not planning:
            raise _not_configured(entry, adapter)
        vendor = _vendor_of(adapter)
        given: dict[str, Any] = {
            "wire": vendor.wire if vendor else adapter.type,
            "base_url": adapter.base_url or "https://not-configured.invalid",
            "api_key": adapter.key(),
            "capabilities": entry.capabilities,
            "quirks": {**(vendor.quirks if vendor else {}), **adapter.quirks} or None,
            "timeouts": adapter.timeout_seconds,
            "name": adapter.name,
            "vendor": vendor.id if vendor else None,
            "headers": adapter.extra_headers,
        }
        return connect(entry.wire_name, **{**given, **settings})

    def open(self, name: str, *subscribers: Subscriber, **settings: Any) -> Provider:
        """The provider as most want it: observed at every attempt, retried as the adapter says."""
        retries = self.adapter(self.find(name).adapter).max_retries
        return Retry(Observe(self.provider(name, **settings), *subscribers), max_retries=retries)

    # inside

    def _known(self, entry: ModelEntry) -> Capabilities:
        vendor = _vendor_of(self.adapter(entry.adapter))
        listed = vendor.models.get(entry.wire_name) if vendor else None
        return (listed or Capabilities()).merged(entry.capabilities)

    def _suggest(self, name: str) -> str:
        known = [*self._aliases, *self.names(), *[f"{vendor}:" for vendor in vendor_names()]]
        near = difflib.get_close_matches(name, known, 3, 0.5)
        return f"; did you mean {' or '.join(near)}?" if near else "; a name is an alias or adapter:model"

    def _refresh(self) -> None:
        stamp = _stamp(self._path)
        if self._path is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            fresh = Registry(*_read(self._path)) if stamp is not None else Registry()
        except ConfigError as error:
            self.problem = str(error)
            log.warning("%s; keeping what was read before", error)
            return
        self._adapters, self._models, self._aliases = fresh._adapters, fresh._models, fresh._aliases
        self.problem = None


def _not_configured(entry: ModelEntry, adapter: Adapter) -> AuthenticationError:
    if not adapter.base_url:
        what = f"adapter {adapter.name!r} has no base_url; set it in {config_path().name}"
    else:
        what = f"set the environment variable {adapter.api_key_env}"
    return AuthenticationError(f"{entry.id} is not configured: {what}", provider=adapter.name, model=entry.wire_name)


def _vendor_of(adapter: Adapter) -> Vendor | None:
    return load_vendor(adapter.type) if adapter.type in vendor_names() else None


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        facts = path.stat() if path is not None else None
    except OSError:
        return None
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino) if facts else None


# --- reading the file -------------------------------------------------------------------------------


def _read(path: Path) -> tuple[list[Adapter], list[ModelEntry]]:
    root = read_yaml(path)
    root.allow("adapters", "models")
    adapters = [_read_adapter(name, section) for name, section in root.section("adapters").sections()]
    known = {adapter.name for adapter in adapters}
    models: list[ModelEntry] = []
    taken: dict[str, str] = {}
    for name, section in root.section("models").sections():
        entry = _read_model(name, section, known)
        for alias in entry.aliases:
            if alias in taken:
                raise section.fail(f"the alias {alias!r} belongs to {taken[alias]} already", "aliases")
            taken[alias] = name
        models.append(entry)
    return adapters, models


def _read_adapter(name: str, section: Section) -> Adapter:
    section.allow(
        "type", "api_key_env", "api_key", "base_url", "timeout_seconds", "max_retries",
        "extra_headers", "options", "quirks",
    )  # fmt: skip
    kind = section.get("type", str, name)
    wires = ("anthropic", "gemini", "openai", "responses")
    if kind not in wires and kind not in vendor_names():
        near = difflib.get_close_matches(kind, [*wires, *vendor_names()], 1)
        raise section.fail(f"no such type {kind!r}{f'; did you mean {near[0]}?' if near else ''}", "type")
    vendor = load_vendor(kind) if kind in vendor_names() else None
    timeout = section.get("timeout_seconds", (int, float), 600)
    retries = section.get("max_retries", int, 2)
    if timeout <= 0:
        raise section.fail("must be positive", "timeout_seconds")
    if not 0 <= retries <= 100:
        raise section.fail("must be between 0 and 100", "max_retries")
    headers = section.section("extra_headers").plain()
    for header, value in headers.items():
        if not isinstance(value, str):
            raise section.section("extra_headers").fail("must be text", header)
    keyless = section.get("api_key", str) is None and vendor is not None
    return Adapter(
        name,
        kind,
        section.get("api_key_env", str, vendor.api_key_env if vendor and keyless else None),
        section.get("api_key", str),
        section.get("base_url", str, vendor.base_url if vendor else None),
        float(timeout),
        retries,
        headers,
        section.section("options").plain(),
        section.section("quirks").plain(),
    )


def _read_model(name: str, section: Section, adapters: set[str]) -> ModelEntry:
    section.allow("adapter", "wire_name", "tier", "can_delegate", "aliases", "capabilities")
    prefix, _, rest = name.partition(":")
    adapter = section.get("adapter", str, prefix)
    if adapter not in adapters and adapter not in vendor_names():
        near = difflib.get_close_matches(adapter, [*adapters, *vendor_names()], 1)
        raise section.fail(f"no adapter {adapter!r}{f'; did you mean {near[0]}?' if near else ''}", "adapter")
    declared = section.section("capabilities")
    try:
        capabilities = Capabilities.of(declared.plain(), "declared", by=section.path)
    except ValueError as error:
        raise declared.fail(str(error)) from None
    return ModelEntry(
        name,
        adapter,
        section.get("wire_name", str, rest or name),
        section.get("tier", str),
        section.get("can_delegate", bool, False),
        section.texts("aliases"),
        capabilities,
    )
