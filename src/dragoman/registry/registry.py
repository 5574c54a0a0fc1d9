"""Names to providers: ``"anthropic:claude-sonnet-4-6"``, ``"sonnet"``, or what your own file says.

Your file is ``models.yaml``: from ``$DRAGOMAN_CONFIG``, else from the platform's folder for settings, and
never from the working directory, where a stranger's repository could redirect your keys.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..config import ConfigError
from ..errors import InvalidModelError
from ..prices import PriceTable
from ..provider import Provider
from ..retrieval import Embedder, Reranker
from .choose import Choice, Needs, choose_among, read_wanted
from .entries import Adapter, File, ModelEntry, config_path, read_file
from .groups import Group
from .names import Names
from .stacks import NOT_CHAT, Order, Stacks, Subscriber
from .vendors import load_vendor, vendor_names

log = logging.getLogger("dragoman")


class Registry:
    """Adapters and models by name: your file first, the bundled catalogue behind it.

    ``Registry.load()`` reads the file. When the file changes, the next look-up reads it again, all or
    nothing: a file that is wrong is reported, in the log and in ``problem``, and the old one stays.

    The same name opens the same provider, the models of an adapter share one connection pool, and all groups
    share rate limits and availability. ``close()`` closes everything; ``async with Registry.load() as registry`` does
    that at the end. A provider that is closed by itself can be used again, until the registry is closed.
    """

    def __init__(
        self,
        adapters: Iterable[Adapter] = (),
        models: Iterable[ModelEntry] = (),
        path: Path | None = None,
        *,
        groups: Iterable[Group] = (),
    ) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self._read = Names.of(File(tuple(adapters), tuple(models), groups=tuple(groups)))
        self._stacks = Stacks()
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
        """Return every group and model of the file, and every other model that the catalogue lists."""
        return self._names().listed()

    def aliases(self) -> dict[str, str]:
        """The short names of the file, each with the model it stands for."""
        return dict(self._names().aliases)

    def groups(self) -> dict[str, Group]:
        """Return the groups of the file, by name."""
        return dict(self._names().groups)

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

    def choose(
        self,
        needs: Needs | None = None,
        *,
        max_input_price: Decimal | float | str | None = None,
        max_output_price: Decimal | float | str | None = None,
        tier: str | None = None,
        among: Iterable[str] | None = None,
        configured: bool = True,
    ) -> Choice:
        """Return the models that have what is needed, cheapest first, and why each of the others does not.

        ``needs`` is a text such as ``"tools,images,context=200k"``, a list of such words, or a mapping. Prices are
        US dollars for a million tokens. ``among`` are the names to choose from, by default all models; those
        without a key are excluded unless ``configured`` is false. A fact that is unknown excludes, too:
        ``unknown_supports_images``. ``ValueError`` for a need that there is not.
        """
        wanted = read_wanted(
            needs, max_input_price=max_input_price, max_output_price=max_output_price, tier=tier, configured=configured
        )
        names = self._names()
        entries = [names.find(name) for name in (names.listed() if among is None else among)]
        chats = [entry for entry in entries if entry.group is None and (among is not None or names.chats(entry))]
        return choose_among(chats, wanted, self.prices())

    def prices(self) -> PriceTable:
        """The price table of the file, over the bundled one; ``DRAGOMAN_PRICES`` takes its place."""
        own = self._names().own_prices
        return own if own is not None else PriceTable.default()

    def provider(self, name: str, *, planning: bool = False, **settings: Any) -> Provider:
        """Return the provider of a name, without the retries of its adapter.

        ``AuthenticationError`` names the variable that is not set. ``planning`` asks for a provider that is only to be
        planned with, and needs no key. ``settings`` go to ``connect`` and have priority over the file.
        """
        return self._open(name, Order(settings, planning=planning, bare=True))

    def open(
        self,
        name: str,
        *subscribers: Subscriber,
        retries: int | None = None,
        planning: bool = False,
        **settings: Any,
    ) -> Provider:
        """Return the provider of a model or group, with ``subscribers`` called for every attempt.

        A call is sent once, unless ``retries`` asks for more or the file configures the adapter: then by its
        ``max_retries``, 2 unless it says otherwise. A candidate of a group is retried by its own ``max_retries``.
        ``planning`` and ``settings`` are as for ``provider``.
        """
        return self._open(name, Order(settings, subscribers, retries, planning))

    def open_embedder(
        self, name: str, *subscribers: Subscriber, retries: int | None = None, **settings: Any
    ) -> Embedder:
        """Return the embedding model of a name, with ``subscribers`` called for every request; see ``open``.

        Each call returns one of its own. The candidates of a group must be servers of one model.
        """
        order = Order(settings, subscribers, retries)
        found: Embedder = self._stacks.open_retrieval(self._names(), name, "embed", order)
        return found

    def open_reranker(
        self, name: str, *subscribers: Subscriber, retries: int | None = None, **settings: Any
    ) -> Reranker:
        """Return the reranking model of a name; see ``open_embedder``."""
        order = Order(settings, subscribers, retries)
        found: Reranker = self._stacks.open_retrieval(self._names(), name, "rerank", order)
        return found

    async def close(self) -> None:
        """Close the connections of every provider that was opened here."""
        await self._stacks.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # inside

    def _open(self, name: str, order: Order, *, shared: bool = True) -> Provider:
        names = self._names()
        if not names.is_scheme(name):
            self._tell_doubt(names, names.find(name))
        return self._stacks.open(names, name, order, shared=shared)

    def _tell_doubt(self, names: Names, entry: ModelEntry) -> None:
        """Any model of a vendor may be asked for, and one that is probably misspelt is said to be, once."""
        if entry.id not in self._doubted and (doubt := names.doubt(entry)) is not None:
            self._doubted.add(entry.id)
            log.warning("%s", doubt)

    def _names(self) -> Names:
        """What holds now; a changed file is read first."""
        stamp = _stamp(self._path)
        if self._path is None or stamp == self._stamp:
            return self._read
        self._stamp = stamp
        try:
            self._read = _load(self._path) if stamp is not None else Names.of(File())
            self._stacks.forget()
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
        # Each call has a provider of its own: one caller's close() must not end another's stream.
        return _load_registry(config_path())._open(model, Order(dict(settings), retries=retries), shared=False)
    except InvalidModelError as error:
        if error.provider_code == NOT_CHAT:
            raise
        error.advice = (
            'A name is "vendor:model", an alias of models.yaml or "local"; '
            'a server of your own needs base_url="http://127.0.0.1:8080/v1".'
        )
        raise


def open_embedder_name(model: str, retries: int | None, settings: Mapping[str, Any]) -> Embedder:
    """Open an embedding model by its name, for ``connect_embedder``."""
    try:
        return _load_registry(config_path()).open_embedder(model, retries=retries, **settings)
    except InvalidModelError as error:
        error.advice = _NAME_ADVICE
        raise


def open_reranker_name(model: str, retries: int | None, settings: Mapping[str, Any]) -> Reranker:
    """Open a reranking model by its name, for ``connect_reranker``."""
    try:
        return _load_registry(config_path()).open_reranker(model, retries=retries, **settings)
    except InvalidModelError as error:
        error.advice = _NAME_ADVICE
        raise


_NAME_ADVICE = (
    'A name is "vendor:model" or an alias of models.yaml; '
    'a server of your own needs base_url="http://127.0.0.1:8080/v1".'
)


def _load(path: Path) -> Names:
    file = read_file(path)
    for problem in file.problems:
        raise problem
    for remark in file.remarks:
        log.warning("%s", remark)
    return Names.of(file)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        facts = path.stat() if path is not None else None
    except FileNotFoundError:
        return None
    except OSError as error:  # there is something, and reading it will tell what is wrong with it
        return (-1, error.errno or 0, 0)
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino) if facts else None
