"""Names to providers: ``"anthropic:claude-sonnet-4-6"``, ``"sonnet"``, or what your own file says.

Your file is ``models.yaml``: from ``$DRAGOMAN_CONFIG``, else from the platform's folder for settings, and
never from the working directory, where a stranger's repository could redirect your keys.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..capabilities import Capabilities
from ..config import ConfigError
from ..errors import AuthenticationError, InvalidModelError
from ..middleware import Observe, Retry
from ..prices import PricedAs, PriceTable, find_seller
from ..provider import SCHEMES, Provider, bind, open_scheme
from .entries import Adapter, ModelEntry, config_path, read_file
from .vendors import load_vendor, vendor_names

log = logging.getLogger("dragoman")

Subscriber = Callable[..., Any]


class _Names(Struct, frozen=True):
    """Everything that was read at one time: replaced as a whole, so that no look-up sees half of it."""

    adapters: dict[str, Adapter]
    models: dict[str, ModelEntry]
    aliases: dict[str, str]
    default: str | None = None
    prices: PriceTable | None = None

    @classmethod
    def of(
        cls,
        adapters: Iterable[Adapter],
        models: Iterable[ModelEntry],
        default: str | None = None,
        prices: PriceTable | None = None,
    ) -> _Names:
        by_id = {model.id: model for model in models}
        aliases = {alias: model.id for model in by_id.values() for alias in model.aliases}
        return cls({adapter.name: adapter for adapter in adapters}, by_id, aliases, default, prices)

    @property
    def own_prices(self) -> PriceTable | None:
        """The table of the file, unless the environment names another."""
        return None if os.environ.get("DRAGOMAN_PRICES") else self.prices

    def adapter(self, name: str) -> Adapter:
        """An adapter of the file, or the catalogue's own."""
        if name in self.adapters:
            return self.adapters[name]
        vendor = load_vendor(name)
        return Adapter(name, name, vendor.api_key_env, base_url=vendor.address())

    def listed(self) -> list[str]:
        """Every model of the file, then every other one of the catalogue."""
        listed = [f"{vendor}:{name}" for vendor in vendor_names() for name in load_vendor(vendor).models]
        return [*self.models, *[name for name in listed if name not in self.models]]

    def find(self, name: str) -> ModelEntry:
        name = self.aliases.get(name, name)
        entry = self.models.get(name)
        if entry is None:
            adapter, _, model = name.partition(":")
            if not model or (adapter not in self.adapters and adapter not in vendor_names()):
                raise InvalidModelError(f"no model is named {name!r}{self._suggest(name)}", model=name)
            entry = ModelEntry(name, adapter, model)
        return self._complete(entry)

    def _complete(self, entry: ModelEntry) -> ModelEntry:
        """An entry with what the catalogue knows of the model, and whether it can be used."""
        adapter = self.adapter(entry.adapter)
        vendor = adapter.vendor
        listed = vendor.models.get(entry.wire_name) if vendor else None
        return replace(
            entry,
            capabilities=(listed or Capabilities()).merged(entry.capabilities),
            status="configured" if adapter.is_configured else "not_configured",
            tokens=entry.tokens or (vendor.token_family(entry.wire_name) if vendor else "default"),
            priced_as=replace(_price(entry, adapter), table=self.own_prices),
        )

    def retries(self, entry: ModelEntry) -> int:
        """Return how often a call is retried: never, unless the file configures the adapter."""
        configured = self.adapters.get(entry.adapter)
        return 0 if configured is None else configured.max_retries

    def doubt(self, entry: ModelEntry) -> str | None:
        """What to say of a model that nobody lists and that is spelt nearly like one of its vendor's."""
        vendor = self.adapter(entry.adapter).vendor
        if vendor is None or entry.id in self.models or entry.wire_name in vendor.models:
            return None
        near = difflib.get_close_matches(entry.wire_name, vendor.models, 1, 0.85)
        if not near or _unnumbered(near[0]) == _unnumbered(entry.wire_name):  # a newer one, as like as not
            return None
        return f"{entry.id} is not in the catalogue; did you mean {entry.adapter}:{near[0]}?"

    def _suggest(self, name: str) -> str:
        near = self._near(name) if ":" in name else [*dict.fromkeys(self._near_without_vendor(name))][:3]
        return f"; did you mean {' or '.join(near)}?" if near else "; a name is an alias or adapter:model"

    def _near(self, name: str) -> list[str]:
        known = [*self.aliases, *self.listed(), *[f"{vendor}:" for vendor in vendor_names()]]
        return difflib.get_close_matches(name, known, 3, 0.5)

    def _near_without_vendor(self, name: str) -> Iterator[str]:
        """Aliases, vendors, then what is called so at any vendor, then what has a word like it: ``sonet``."""
        yield from difflib.get_close_matches(name, self.aliases, 3, 0.7)
        yield from [f"{vendor}:" for vendor in difflib.get_close_matches(name, vendor_names(), 1, 0.8)]
        names: dict[str, list[str]] = {}
        words: dict[str, list[str]] = {}
        for listed in self.listed():
            own = listed.partition(":")[2]
            names.setdefault(own, []).append(listed)
            for word in re.split(r"[-/:_ ]", own.lower()):
                words.setdefault(word, []).append(listed)
        for own in difflib.get_close_matches(name, names, 3, 0.7):
            yield from names[own]
        for word in difflib.get_close_matches(name.lower(), words, 1, 0.8):
            newest_first = sorted(words[word], reverse=True)
            yield from sorted(newest_first, key=lambda each: each.partition(":")[0])


class Registry:
    """Adapters and models by name: your file first, the bundled catalogue behind it.

    ``Registry.load()`` reads the file. When the file changes, the next look-up reads it anew, all or
    nothing: a file that is wrong is reported, in the log and in ``problem``, and the old one stays.
    """

    def __init__(
        self, adapters: Iterable[Adapter] = (), models: Iterable[ModelEntry] = (), path: Path | None = None
    ) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self._read = _Names.of(adapters, models)
        self._doubted: set[str] = set()
        self.problem: str | None = None

    @classmethod
    def load(cls, path: str | Path | None = None) -> Registry:
        """Read ``models.yaml``; without one, the catalogue alone answers. ``ConfigError`` if it is wrong."""
        found = Path(path) if path is not None else config_path()
        if path is None and not found.exists() and not found.is_symlink():
            if os.environ.get("DRAGOMAN_CONFIG"):
                raise ConfigError(str(found), None, "no such file, though DRAGOMAN_CONFIG names it")
            return cls(path=found)
        registry = cls(path=found)  # its stamp is from before the reading: a change meanwhile is noticed
        registry._read = _load(found)
        return registry

    @property
    def default(self) -> str | None:
        """The model that the file names as ``default:``, for commands that are given none."""
        return self._names().default

    def names(self) -> list[str]:
        """Every model that is named in the file, and every one the catalogue lists."""
        return self._names().listed()

    def aliases(self) -> dict[str, str]:
        """The short names of the file, each with the model it stands for."""
        return dict(self._names().aliases)

    def find(self, name: str) -> ModelEntry:
        """The entry of a name or alias; ``InvalidModelError`` suggests the nearest."""
        names = self._names()
        entry = names.find(name)
        self._tell_doubt(names, entry)
        return entry

    def adapter(self, name: str) -> Adapter:
        """An adapter of the file, or the catalogue's own."""
        return self._names().adapter(name)

    def local_adapters(self) -> tuple[list[Adapter], list[Adapter]]:
        """Return the adapters of servers on the user's own machine: those of the file, and the catalogue's others."""
        names = self._names()
        own = [adapter for adapter in names.adapters.values() if adapter.is_configured and adapter.is_local]
        vendors = [vendor for vendor in vendor_names() if vendor not in names.adapters and load_vendor(vendor).local]
        addresses = {adapter.base_url for adapter in own}
        others = [names.adapter(vendor) for vendor in vendors]
        return own, [adapter for adapter in others if adapter.base_url not in addresses]

    def prices(self) -> PriceTable:
        """The price table of the file, over the bundled one; ``DRAGOMAN_PRICES`` takes its place."""
        own = self._names().own_prices
        return own if own is not None else PriceTable.default()

    def provider(self, name: str, *, planning: bool = False, **settings: Any) -> Provider:
        """The bare provider of a model. ``AuthenticationError`` names the variable that is not set.

        ``planning`` asks for one that is only to be planned with, and needs no key. ``settings`` go to
        ``connect`` and have the last word.
        """
        return self._provider(self._names(), name, planning, settings)

    def open(self, name: str, *subscribers: Subscriber, retries: int | None = None, **settings: Any) -> Provider:
        """Return the provider of a name, with ``subscribers`` told of every attempt.

        A call is sent once, unless ``retries`` asks for more or the file configures the adapter: then by its
        ``max_retries``, 2 unless it says otherwise.
        """
        names = self._names()
        provider = self._provider(names, name, False, settings)
        if subscribers:
            provider = Observe(provider, *subscribers)
        if retries is None:
            retries = 0 if _is_scheme(names, name) else names.retries(names.find(name))
        return Retry(provider, max_retries=retries) if retries else provider

    # inside

    def _provider(self, names: _Names, name: str, planning: bool, settings: dict[str, Any]) -> Provider:
        if _is_scheme(names, name):
            return open_scheme(name, settings)
        entry = names.find(name)
        self._tell_doubt(names, entry)
        adapter = names.adapter(entry.adapter)
        if entry.status != "configured" and not planning and not ("api_key" in settings and adapter.base_url):
            raise _not_configured(entry, adapter)
        given = {
            **adapter.settings(),
            "capabilities": entry.capabilities,
            "token_family": entry.tokens,
            "priced_as": entry.priced_as,
        }
        return bind(entry.wire_name, **{**given, **settings})

    def _tell_doubt(self, names: _Names, entry: ModelEntry) -> None:
        """Any model of a vendor may be asked for, and one that is probably misspelt is said to be, once."""
        if entry.id not in self._doubted and (doubt := names.doubt(entry)) is not None:
            self._doubted.add(entry.id)
            log.warning("%s", doubt)

    def _names(self) -> _Names:
        """What holds now; a changed file is read first."""
        stamp = _stamp(self._path)
        if self._path is None or stamp == self._stamp:
            return self._read
        self._stamp = stamp
        try:
            self._read = _load(self._path) if stamp is not None else _Names({}, {}, {})
            self.problem = None
        except ConfigError as error:
            self.problem = str(error)
            log.warning("%s; keeping what was read before", error)
        return self._read


@lru_cache(maxsize=8)
def _load_registry(path: Path) -> Registry:
    """Return the registry of a file that may be missing; it notices by itself when the file changes."""
    return Registry.load(path if path.exists() else None)


def open_name(model: str, retries: int | None, settings: Mapping[str, Any]) -> Provider:
    """Open a model by its name, for ``connect``."""
    try:
        return _load_registry(config_path()).open(model, retries=retries, **settings)
    except InvalidModelError as error:
        error.advice = (
            'A name is "vendor:model", an alias of models.yaml or "local"; '
            'a server of your own needs base_url="http://127.0.0.1:8080/v1".'
        )
        raise


def _load(path: Path) -> _Names:
    file = read_file(path)
    for problem in file.problems:
        raise problem
    for remark in file.remarks:
        log.warning("%s", remark)
    return _Names.of(file.adapters, file.models, file.default, file.prices)


def _is_scheme(names: _Names, name: str) -> bool:
    """Does the name mean something that needs no address, such as the embedded model? The file's word wins."""
    return name not in names.aliases and name not in names.models and name.partition(":")[0] in SCHEMES


def _unnumbered(name: str) -> str:
    return re.sub(r"[-.:@\d]+", "", name)


def _price(entry: ModelEntry, adapter: Adapter) -> PricedAs:
    """Return what a model is sold as: as the file says, else by the vendor, else by the host of its address."""
    if entry.sold_as is not None:
        return PricedAs.of(entry.sold_as, entry.wire_name)
    if adapter.vendor is not None:
        return PricedAs.of("free" if adapter.vendor.local else adapter.vendor.id, entry.wire_name)
    return find_seller(adapter.base_url or "", entry.wire_name)


def _not_configured(entry: ModelEntry, adapter: Adapter) -> AuthenticationError:
    if not adapter.base_url:
        what, advice = f"adapter {adapter.name!r} has no base_url", f"Set it in {config_path().name}."
    else:
        what = f"set the environment variable {adapter.api_key_env}"
        advice = f"Or store the key: dragoman keys set {adapter.api_key_env}"
    return AuthenticationError(
        f"{entry.id} is not configured: {what}",
        provider=adapter.name,
        model=entry.wire_name,
        provider_code="not_configured",
        advice=advice,
    )


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        facts = path.stat() if path is not None else None
    except FileNotFoundError:
        return None
    except OSError as error:  # there is something, and reading it will tell what is wrong with it
        return (-1, error.errno or 0, 0)
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino) if facts else None
