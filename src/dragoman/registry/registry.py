"""Open providers by name: ``"anthropic:claude-sonnet-4-6"``, or a name in ``models.yaml``.

The file is read from ``$DRAGOMAN_CONFIG`` or, if that is not set, from the platform's settings
folder. It is never read from the working directory, where a stranger's repository could redirect
your keys.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from ..errors import InvalidModelError
from ..prices import PriceTable
from ..provider import Provider
from ..retrieval import Embedder, Reranker
from ..retrieval.values import Operation
from ..validate.yaml import ConfigError
from .adapters import Adapter
from .caching import CachePlan
from .choose import Choice, Needs, choose_among, read_wanted
from .entries import File, ModelEntry, config_path, read_file
from .folders import read_stamp
from .groups import Group
from .guards import GuardPlan
from .names import Names
from .passing import PassThrough
from .stacks import NOT_CHAT, OpenOptions, Stacks, Subscriber
from .vendors import load_vendor, vendor_names
from .webhooks import Webhook

log = logging.getLogger("dragoman")


class Registry:
    """Look up adapters and models by name: in ``models.yaml``, then in the bundled catalogue.

    ``Registry.load()`` reads the file. When the file changes, the next lookup reads it again. An
    invalid file is reported, in the log and in ``problem``, and the previous contents stay in use.

    The same name opens the same provider, the models of an adapter share one connection pool, and
    all groups share rate limits and availability. ``close()`` closes everything, as does ``async
    with Registry.load() as registry``. A closed provider can be used again until the registry is
    closed.
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
        self._stamp = None if path is None else read_stamp(path)
        self._read = Names(
            File(adapters=tuple(adapters), models=tuple(models), groups=tuple(groups))
        )
        self._stacks = Stacks()
        self._warned: set[str] = set()
        self.problem: str | None = None

    @classmethod
    def load(cls, path: str | Path | None = None) -> Registry:
        """Read ``models.yaml``; without one, use the catalogue only.

        Raise ``ConfigError`` if the file is invalid.
        """
        found = Path(path) if path is not None else config_path()
        if path is None and not found.exists() and not found.is_symlink():
            if os.environ.get("DRAGOMAN_CONFIG"):
                raise ConfigError(
                    str(found), None, "DRAGOMAN_CONFIG names a file that does not exist"
                )
            return cls(path=found)
        # the time stamp is taken before reading, so that a change during the read is noticed
        registry = cls(path=found)
        registry._read = _load(found)
        return registry

    @property
    def default(self) -> str | None:
        """The ``default:`` model of ``models.yaml``, for commands called without a model."""
        return self._names().file.default

    def names(self) -> list[str]:
        """Return the names of all groups and models.

        Those in ``models.yaml`` come first, then the other models in the catalogue.
        """
        return self._names().listed()

    def served(self, named: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Map each name that a gateway serves to the name that opens its model.

        These are the models, groups and aliases of ``models.yaml``, and the names that its
        ``serve`` adds; without a file, all models of the catalogue. If ``named`` is given, it is
        these names alone, in which a pattern such as ``openai/*: openai:*`` stands for each listed
        model that matches.
        """
        names = self._names()
        return names.served if named is None else names.expand(named)

    def aliases(self) -> dict[str, str]:
        """Return the aliases in ``models.yaml``, each with the name of its model."""
        return dict(self._names().aliases)

    def groups(self) -> dict[str, Group]:
        """Return the groups in ``models.yaml``, by name."""
        return dict(self._names().groups)

    def find(self, name: str) -> ModelEntry:
        """Return the model with this name or alias.

        If there is none, raise ``InvalidModelError``, which suggests other names.
        """
        names = self._names()
        entry = names.find(name)
        self._warn_about_typo(names, entry)
        return entry

    def find_efforts(self, entry: ModelEntry) -> tuple[str, ...] | None:
        """Return the amounts of reasoning that a model accepts by name, if they are known.

        Those of a group are accepted by all of its candidates.
        """
        return self._names().find_efforts(entry)

    def adapter(self, name: str) -> Adapter:
        """Return an adapter by name, from ``models.yaml`` or otherwise from the catalogue."""
        return self._names().adapter(name)

    def local_adapters(self) -> tuple[list[Adapter], list[Adapter]]:
        """Return the adapters of local servers.

        Those in ``models.yaml`` come first, then the remaining ones from the catalogue.
        """
        names = self._names()
        own = [
            adapter
            for adapter in names.adapters.values()
            if adapter.is_configured and adapter.is_local
        ]
        vendors = [
            vendor
            for vendor in vendor_names()
            if vendor not in names.adapters and load_vendor(vendor).local
        ]
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
        """Return the models that meet the needs, cheapest first, and why others are excluded.

        ``needs`` is a string such as ``"tools,images,context=200k"``, a list of such strings, or a
        mapping. Prices are US dollars per million tokens. ``among`` are the names to choose from,
        by default all models; those without a key are excluded unless ``configured`` is false. An
        unknown capability also excludes a model, with a reason such as
        ``unknown_supports_images``. An unknown need raises ``ValueError``.
        """
        wanted = read_wanted(
            needs,
            max_input_price=max_input_price,
            max_output_price=max_output_price,
            tier=tier,
            configured=configured,
        )
        names = self._names()
        entries = [names.find(name) for name in (names.listed() if among is None else among)]
        chats = [
            entry
            for entry in entries
            if entry.group is None and (among is not None or names.chats(entry))
        ]
        return choose_among(chats, wanted, self.prices())

    def prices(self) -> PriceTable:
        """Return the price table in use.

        It is the table that ``DRAGOMAN_PRICES`` names, or the one that ``models.yaml`` names, or
        the bundled one with the prices of the catalogue update.
        """
        own = self._names().own_prices
        return own if own is not None else PriceTable.default()

    def provider(self, name: str, *, planning: bool = False, **settings: Any) -> Provider:
        """Return the provider for a model's name, without the retries of its adapter.

        If the key is missing, raise ``AuthenticationError``, which names the environment variable.
        With ``planning`` the provider is used for planning only and needs no key. ``settings`` are
        passed to ``connect`` and override those in ``models.yaml``.
        """
        return self._open(name, OpenOptions(settings, planning=planning, bare=True))

    def open(
        self,
        name: str,
        *subscribers: Subscriber,
        retries: int | None = None,
        planning: bool = False,
        **settings: Any,
    ) -> Provider:
        """Return the provider for a model or group; ``subscribers`` are called for every attempt.

        A call is sent once unless ``retries`` is given or ``models.yaml`` configures the adapter,
        whose ``max_retries`` defaults to 2. Each candidate of a group uses its own
        ``max_retries``. ``planning`` and ``settings`` work as in ``provider``.
        """
        return self._open(name, OpenOptions(settings, subscribers, retries, planning))

    def open_embedder(
        self, name: str, *subscribers: Subscriber, retries: int | None = None, **settings: Any
    ) -> Embedder:
        """Return the embedding model with this name.

        ``subscribers`` are called for every request; see ``open``.

        Each call returns a new object. All candidates of a group must serve the same model.
        """
        options = OpenOptions(settings, subscribers, retries)
        found: Embedder = self._stacks.open_retrieval(self._names(), name, "embed", options)
        return found

    def open_reranker(
        self, name: str, *subscribers: Subscriber, retries: int | None = None, **settings: Any
    ) -> Reranker:
        """Return the reranking model with this name; see ``open_embedder``."""
        options = OpenOptions(settings, subscribers, retries)
        found: Reranker = self._stacks.open_retrieval(self._names(), name, "rerank", options)
        return found

    async def close(self) -> None:
        """Close the connections of every provider that this registry opened."""
        await self._stacks.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- private methods of the registry

    def _open(self, name: str, options: OpenOptions, *, shared: bool = True) -> Provider:
        names = self._names()
        if not names.is_scheme(name):
            self._warn_about_typo(names, names.find(name))
        return self._stacks.open(names, name, options, shared=shared)

    def _open_at(self, name: str, base_url: str, options: OpenOptions) -> Provider | None:
        opened: Provider | None = self._stacks.open_at(self._names(), name, base_url, options)
        return opened

    def _open_retrieval_at(
        self, operation: Operation, name: str, base_url: str, options: OpenOptions
    ) -> Embedder | Reranker | None:
        found: Embedder | Reranker | None = self._stacks.open_retrieval(
            self._names(), name, operation, options, base_url
        )
        return found

    def _warn_about_typo(self, names: Names, entry: ModelEntry) -> None:
        """Warn once about an unlisted model whose name looks misspelled."""
        if entry.id not in self._warned and (warning := names.find_typo(entry)) is not None:
            self._warned.add(entry.id)
            log.warning("%s", warning)

    def _names(self) -> Names:
        """Return the index of names; first read ``models.yaml`` again if it has changed."""
        if self._path is None:
            return self._read
        stamp = read_stamp(self._path)
        if stamp == self._stamp:
            return self._read
        self._stamp = stamp
        try:
            self._read = _load(self._path) if stamp is not None else Names(File())
            self._stacks.forget()
            self.problem = None
        except ConfigError as error:
            self.problem = str(error)
            log.warning("%s; keeping the previous configuration", error)
        return self._read


def list_passes(registry: Registry) -> tuple[PassThrough, ...]:
    """Return the APIs to which a gateway passes requests on, in the order of the file."""
    return registry._names().file.passes


def list_webhooks(registry: Registry) -> tuple[Webhook, ...]:
    """Return the webhooks in ``models.yaml``, in order."""
    return registry._names().file.webhooks


def find_cache(registry: Registry) -> CachePlan | None:
    """Return how a gateway caches replies, if it does."""
    return registry._names().file.cache


def list_guards(registry: Registry) -> tuple[GuardPlan, ...]:
    """Return the guards in ``models.yaml``, in order."""
    return registry._names().file.guards


@lru_cache(maxsize=8)
def _load_registry(path: Path) -> Registry:
    """Return the registry for a file. The file may be missing; it is read again if it changes."""
    return Registry.load(path if path.exists() else None)


def open_name(model: str, retries: int | None, settings: Mapping[str, Any]) -> Provider:
    """Open a model by name, for ``connect``."""
    options = OpenOptions(dict(settings), retries=retries)
    with _advise('"vendor:model", an alias of models.yaml or "local"'):
        # Each call gets its own provider: one caller's close() must not end another's stream.
        return _load_registry(config_path())._open(model, options, shared=False)


def open_name_at(
    model: str, base_url: str, retries: int | None, settings: Mapping[str, Any]
) -> Provider | None:
    """Open a vendor's model at another address, for ``connect``.

    Return ``None`` if the name does not begin with a vendor.
    """
    options = OpenOptions(dict(settings), retries=retries)
    return _load_registry(config_path())._open_at(model, base_url, options)


def open_retrieval_name(
    operation: Operation,
    model: str,
    base_url: str | None,
    retries: int | None,
    settings: Mapping[str, Any],
) -> Embedder | Reranker | None:
    """Open an embedding or reranking model by name, for ``connect_embedder`` and the like.

    With ``base_url``, return ``None`` if the name does not begin with a vendor.
    """
    if base_url is not None:
        options = OpenOptions(dict(settings), retries=retries)
        return _load_registry(config_path())._open_retrieval_at(
            operation, model, base_url, options
        )
    if operation == "rerank" and model.partition(":")[0] == "local":
        raise InvalidModelError(
            "there is no embedded reranker; name a vendor's model, or give the base_url of a "
            "server that has one"
        )
    with _advise('"vendor:model" or an alias of models.yaml'):
        registry = _load_registry(config_path())
        opener = registry.open_embedder if operation == "embed" else registry.open_reranker
        return opener(model, retries=retries, **settings)


@contextmanager
def _advise(names: str) -> Iterator[None]:
    """Add to the error about an unknown model which names there are."""
    try:
        yield
    except InvalidModelError as error:
        if error.provider_code != NOT_CHAT:
            error.advice = (
                f"A name is {names}; "
                'a server of your own needs base_url="http://127.0.0.1:8080/v1".'
            )
        raise


def _load(path: Path) -> Names:
    file = read_file(path)
    for problem in file.problems:
        raise problem
    for remark in file.remarks:
        log.warning("%s", remark)
    return Names(file)
