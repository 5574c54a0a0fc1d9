"""Build each provider's middleware stack; share connections, rate limits and availability.

=============  ===============================================================================
a model        ``Retry`` / ``RateLimit`` / ``Observe`` / ``KeyRotation`` / ``HttpProvider``
a group        ``Fallback`` over its candidates, each with the stack of a model
=============  ===============================================================================

A layer is added only if ``models.yaml``, the caller or a second API key requires it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from ..capabilities import describe_end
from ..errors import AuthenticationError, InvalidModelError
from ..middleware import (
    Availability,
    Fallback,
    KeyRotation,
    Limiter,
    NotConfigured,
    Observe,
    RateLimit,
    RedisAvailability,
    RedisLimiter,
    Retry,
    Thresholds,
)
from ..provider import Provider, bind, open_scheme
from ..provider.http_model import show_url
from ..retrieval import EMBED_SCHEMES, bind_embedder, bind_reranker, open_embed_scheme
from ..retrieval.values import Operation
from ..transport import Timeouts
from ..validate.yaml import ConfigError
from ..wire import CODECS
from .adapters import Adapter
from .entries import ModelEntry, config_path
from .groups import Candidate, Group
from .guards import add_guards, find_names
from .limits import RateLimits
from .names import Names
from .pools import PoolLease, Pools

log = logging.getLogger("dragoman")

Subscriber = Callable[..., Any]

_GROUP_SETTINGS = ("timeouts", "on_loss", "keep_raw", "transport")


@contextmanager
def _naming_redis() -> Iterator[None]:
    """Raise ``ConfigError`` for a Redis URL that the Redis library rejects."""
    try:
        yield
    except ValueError as error:
        raise ConfigError("redis", None, str(error)) from None


class OpenOptions(Struct, frozen=True):
    """The options with which a caller opens a model.

    ``retries`` is the number of retries, or ``None`` for the number in ``models.yaml``. With
    ``bare``, the number in ``models.yaml`` is ignored.
    """

    settings: dict[str, Any]
    subscribers: tuple[Subscriber, ...] = ()
    retries: int | None = None
    planning: bool = False
    bare: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether callers with equal options may share a provider.

        They may not if the options contain subscribers or other objects.
        """
        kinds = str | int | float | bool | Struct | None
        return not self.subscribers and all(
            isinstance(value, kinds) for value in self.settings.values()
        )


class Stacks:
    """Build providers; the same name and options return the same provider."""

    def __init__(self) -> None:
        self._pools = Pools()
        self._limiters: dict[tuple[str, RateLimits, str | None], Limiter] = {}
        self._availability: Availability | None = None
        self._shared_by: tuple[Thresholds, str | None] | None = None
        self._opened: dict[str, tuple[Provider, list[PoolLease]]] = {}
        self._ending: set[str] = set()  # the models whose end has been reported

    def open(
        self, names: Names, name: str, options: OpenOptions, *, shared: bool = True
    ) -> Provider:
        """Return the provider for a name; with ``shared``, equal options get the same provider."""
        key = _digest(names, name, options) if shared and options.is_plain else None
        kept = self._opened.get(key) if key is not None else None
        if kept is None:
            builder = _StackBuilder(self, names, options)
            kept = builder.guard(builder.build(name), name), builder.leases
            if key is not None:
                self._opened[key] = kept
        for lease in kept[1]:
            lease.holders += 1
        return kept[0]

    def open_at(self, names: Names, name: str, base_url: str, options: OpenOptions) -> Any:
        """Return a provider for a vendor's model at an address, or ``None`` for other names."""
        builder = _StackBuilder(self, names, options)
        provider = builder.build_at(name, base_url)
        if provider is not None:
            provider = builder.guard(provider, name)
        for lease in builder.leases:
            lease.holders += 1
        return provider

    def open_retrieval(
        self,
        names: Names,
        name: str,
        operation: Operation,
        options: OpenOptions,
        base_url: str | None = None,
    ) -> Any:
        """Return the embedder or reranker for a model, or for a group that serves one model.

        With ``base_url``, return ``None`` if the name is not that of a vendor's model.
        """
        builder = _StackBuilder(self, names, options)
        if base_url is None:
            model = builder.build_retrieval(name, operation)
        else:
            model = builder.build_retrieval_at(name, operation, base_url)
        if model is not None:
            model = builder.guard(model, name)
        for lease in builder.leases:
            lease.holders += 1
        return model

    def forget(self) -> None:
        """Drop the opened providers from the cache, because ``models.yaml`` has changed."""
        self._opened.clear()

    async def close(self) -> None:
        """Close the connections of all providers and the connections to Redis."""
        self._opened.clear()
        await self._pools.close()
        if self._availability is not None:
            await self._availability.close()
        for limiter in self._limiters.values():
            if isinstance(limiter, RedisLimiter):
                await limiter.close()

    def warn_about_end(self, entry: ModelEntry) -> None:
        """Warn once about a model that has ended or ends soon."""
        notice = describe_end(entry.id, entry.capabilities)
        if notice is not None and entry.id not in self._ending:
            self._ending.add(entry.id)
            log.warning("%s", notice)

    def lease(self, adapter: Adapter) -> PoolLease:
        """Return a lease on the connections of an adapter."""
        return self._pools.lease(adapter.name, adapter.connection)

    def limit(self, redis: str | None, name: str, limits: RateLimits) -> Limiter:
        """Return the limiter that all models with this name share."""
        key = name, limits, redis
        if key not in self._limiters:
            given = limits.given()
            with _naming_redis():
                self._limiters[key] = (
                    Limiter(**given)
                    if redis is None
                    else RedisLimiter(redis, f"limit:{name}", **given)
                )
        return self._limiters[key]

    def share_availability(self, redis: str | None, thresholds: Thresholds) -> Availability:
        """Return the circuit breaker that all groups share."""
        if self._availability is None or self._shared_by != (thresholds, redis):
            self._shared_by = thresholds, redis
            with _naming_redis():
                self._availability = (
                    Availability(thresholds=thresholds)
                    if redis is None
                    else RedisAvailability(redis, thresholds=thresholds)
                )
        return self._availability


class _StackBuilder:
    """Build one stack from the names in ``models.yaml`` and the options of a caller."""

    def __init__(self, stacks: Stacks, names: Names, options: OpenOptions) -> None:
        self._stacks = stacks
        self._names = names
        self._options = options
        self.leases: list[PoolLease] = []

    def build(self, name: str) -> Any:
        """Return the provider for a model or a group."""
        names = self._names
        options = self._options
        if names.is_scheme(name):
            return self._finish(open_scheme(name, options.settings), options.retries or 0)
        group = names.group(name)
        if group is not None:
            return self._build_group(group)
        entry = names.find(name)
        retries = 0 if options.bare else names.retries(entry)
        provider = self._build_model(entry, options.settings)
        return _retry(provider, retries if options.retries is None else options.retries)

    def build_at(self, name: str, base_url: str) -> Any:
        """Return the provider for a vendor's model at an address, or ``None`` for other names."""
        found = self._names.find_at(name, base_url)
        if found is None:
            return None
        entry, adapter = found
        provider = self._build_model(entry, self._options.settings, adapter=adapter)
        retries = self._options.retries
        return _retry(provider, self._names.retries(entry) if retries is None else retries)

    def guard(self, model: Any, name: str) -> Any:
        """Add the guards of ``models.yaml`` that judge the calls of all clients."""
        plans = [each for each in self._names.file.guards if each.is_for_all]
        return add_guards(
            model, [each for each in plans if each.judges_model(name, *find_names(model))]
        )

    def _build_group(self, group: Group) -> Any:
        for setting in self._options.settings:
            if setting not in _GROUP_SETTINGS:
                raise ValueError(
                    f"{setting}: {group.name} is a group of models; set it for each in models.yaml"
                )
        names = self._names
        if not self._options.planning and names.find(group.name).status != "configured":
            first = names.find(group.candidates[0].model)
            raise not_configured(first, names.adapter(first.adapter))
        return Fallback(
            [self._build_candidate(group, candidate) for candidate in group.candidates],
            self._share_availability(),
            name=group.name,
            strategy=group.strategy,
            weights=[candidate.weight for candidate in group.candidates],
            half_life=group.half_life,
            min_sample=group.min_sample,
        )

    def _build_candidate(self, group: Group, candidate: Candidate) -> Any:
        names = self._names
        options = self._options
        retries = candidate.max_retries if options.retries is None else options.retries
        settings = dict(options.settings)
        if names.is_scheme(candidate.model):
            if candidate.timeouts is not None:
                settings.setdefault("timeouts", Timeouts(**candidate.timeouts))
            return self._finish(open_scheme(candidate.model, settings), retries)
        entry = names.find(candidate.model)
        adapter = names.adapter(entry.adapter)
        if candidate.timeouts is not None and entry.group is None:
            settings.setdefault("timeouts", adapter.deadlines(candidate.timeouts))
        if entry.status != "configured" and not options.planning:
            return NotConfigured(adapter.name, entry.wire_name, find_missing(adapter))
        limiters = []
        if candidate.rate_limit is not None:
            name = f"group:{group.name}:{candidate.model}"
            limiters = [self._limit(name, candidate.rate_limit)]
        if entry.group is not None:
            inner = self._build_group(entry.group)
            return _retry(RateLimit(inner, limiter=limiters) if limiters else inner, retries)
        return _retry(self._build_model(entry, settings, limiters), retries)

    def _build_model(
        self,
        entry: ModelEntry,
        settings: dict[str, Any],
        limiters: Sequence[Limiter] = (),
        *,
        adapter: Adapter | None = None,
    ) -> Any:
        adapter = adapter or self._names.adapter(entry.adapter)
        if settings.get("wire") in CODECS:
            adapter = adapter.with_wire(settings["wire"])
        else:
            adapter = adapter.for_model(entry.wire_name)
        given = {**_describe(entry, adapter), **settings}
        if adapter.vendor is not None and not adapter.vendor.chats:
            raise not_a_chat_model(entry, adapter)
        if not self._options.planning:
            _check_configured(entry, adapter, settings)
            self._stacks.warn_about_end(entry)
        keys = adapter.keys() if "api_key" not in settings and adapter.auth is None else []
        if adapter.base_url is not None:
            given["observe"] = self._names.observed.watch(
                adapter.base_url, entry.wire_name, entry.capabilities
            )
        made = [self._bind(bind, entry, adapter, {**given, "api_key": key}) for key in keys[1:]]
        made.insert(0, self._bind(bind, entry, adapter, given))
        return self._wrap(made[0] if len(made) == 1 else KeyRotation(made), adapter, limiters)

    def build_retrieval(self, name: str, operation: Operation) -> Any:
        """Return the embedder or reranker for a model, or for a group that serves one model."""
        names = self._names
        retries = self._options.retries
        if operation == "embed" and names.is_scheme(name, EMBED_SCHEMES):
            return self._finish(open_embed_scheme(name, self._options.settings), retries or 0)
        group = names.group(name)
        if group is not None:
            members: list[Any] = [
                self._build_retrieval(names.find(each.model), operation)
                for each in names.candidates(name)
            ]
            found = Fallback(members, self._share_availability(), name=group.name)
            return _retry(found, retries or 0)
        entry = names.find(name)
        model = self._build_retrieval(entry, operation)
        return _retry(model, names.retries(entry) if retries is None else retries)

    def build_retrieval_at(self, name: str, operation: Operation, base_url: str) -> Any:
        """Return a vendor's embedder or reranker at an address, or ``None`` for other names."""
        found = self._names.find_at(name, base_url)
        if found is None:
            return None
        entry, adapter = found
        model = self._build_retrieval(entry, operation, adapter)
        retries = self._options.retries
        return _retry(model, self._names.retries(entry) if retries is None else retries)

    def _build_retrieval(
        self, entry: ModelEntry, operation: Operation, adapter: Adapter | None = None
    ) -> Any:
        settings = self._options.settings
        adapter = adapter or self._names.adapter(entry.adapter)
        adapter = adapter.with_retrieval_wire(operation, settings.get("wire"))
        _check_configured(entry, adapter, settings)
        self._stacks.warn_about_end(entry)
        given = {
            **adapter.retrieval_settings(operation),
            "capabilities": entry.capabilities,
            "priced_as": entry.priced_as,
            **settings,
        }
        opener = bind_embedder if operation == "embed" else bind_reranker
        return self._wrap(self._bind(opener, entry, adapter, given), adapter)

    # --- layers around a model

    def _bind(
        self, opener: Any, entry: ModelEntry, adapter: Adapter, settings: dict[str, Any]
    ) -> Any:
        if settings.get("transport") is None:
            self.leases.append(self._stacks.lease(adapter))
            settings = {**settings, "transport": self.leases[-1]}
        return opener(entry.wire_name, **settings)

    def _wrap(self, model: Any, adapter: Adapter, limiters: Sequence[Limiter] = ()) -> Any:
        """Add the caller's subscribers and the rate limits, those of the adapter first."""
        observed = self._observe(model)
        if adapter.rate_limit is not None:
            limiters = [self._limit(f"adapter:{adapter.name}", adapter.rate_limit), *limiters]
        return RateLimit(observed, limiter=limiters) if limiters else observed

    def _finish(self, model: Any, retries: int) -> Any:
        return _retry(self._observe(model), retries)

    def _observe(self, model: Any) -> Any:
        subscribers = self._options.subscribers
        return Observe(model, *subscribers) if subscribers else model

    def _limit(self, name: str, limits: RateLimits) -> Limiter:
        return self._stacks.limit(self._names.file.redis, name, limits)

    def _share_availability(self) -> Availability:
        file = self._names.file
        return self._stacks.share_availability(file.redis, file.thresholds)


def _retry(model: Any, retries: int) -> Any:
    return Retry(model, max_retries=retries) if retries else model


def _digest(names: Names, name: str, options: OpenOptions) -> str:
    """Return the cache key of a provider: a digest of its name, options and settings.

    The settings include API keys, so the cache key must not contain them in plain text.
    """
    known = []
    for model in [each.model for each in names.candidates(name)]:
        if not names.is_scheme(model):
            entry = names.find(model)
            adapter = names.adapter(entry.adapter)
            settings = {**_describe(entry, adapter), "api_key": None}
            known.append((entry.id, entry.status, settings, adapter.keys(), adapter.auth))
    given = options.retries, options.planning, options.bare, sorted(options.settings.items())
    return hashlib.sha256(repr((name, given, known)).encode()).hexdigest()


def _describe(entry: ModelEntry, adapter: Adapter) -> dict[str, Any]:
    return {
        **adapter.settings(),
        "capabilities": entry.capabilities,
        "token_family": entry.tokens,
        "priced_as": entry.priced_as,
    }


def _check_configured(entry: ModelEntry, adapter: Adapter, settings: Mapping[str, Any]) -> None:
    has_key = "api_key" in settings and adapter.base_url
    if entry.status != "configured" and not has_key:
        raise not_configured(entry, adapter)


NOT_CHAT = "not_a_chat_model"


def not_a_chat_model(entry: ModelEntry, adapter: Adapter) -> InvalidModelError:
    """Return the error for chatting with a model that only embeds or ranks."""
    return InvalidModelError(
        f"{entry.id} is not a chat model: this vendor offers embedding and reranking only",
        provider=adapter.name,
        model=entry.wire_name,
        provider_code=NOT_CHAT,
        advice="Use connect_embedder or connect_reranker.",
    )


def find_missing(adapter: Adapter) -> str:
    """Return a message that names the setting that an adapter still lacks."""
    if not adapter.base_url:
        vendor = adapter.vendor
        if vendor is not None and (missing := vendor.missing_variables(adapter.wire)):
            return f"its address is not known; set {' and '.join(missing)}"
        return f"adapter {adapter.name!r} has no base_url"
    if (stored := adapter.withheld_key) is not None:
        address = show_url(adapter.base_url)
        source = f", which {adapter.address_env} names" if adapter.address_env else ""
        return f"the stored key {stored} is not for the address {address}{source}"
    return f"set the environment variable {adapter.api_key_env}"


def not_configured(entry: ModelEntry, adapter: Adapter) -> AuthenticationError:
    """Return the error for a model that is not configured."""
    advice = f"Set it in {config_path().name}."
    if adapter.withheld_key is not None:
        advice = f"Set the environment variable {adapter.api_key_env} to the key for this address."
    elif adapter.address_env is not None:
        # a stored key is for the vendor's own address
        advice = (
            f"It is the key for {show_url(adapter.base_url or '')}, the address in "
            f"{adapter.address_env}."
        )
    elif not adapter.base_url and adapter.vendor is not None:
        advice = f"Or pass base_url, or set it in {config_path().name}."
    elif adapter.base_url:
        advice = f"Or store the key: dragoman keys set {adapter.api_key_env}"
    return AuthenticationError(
        f"{entry.id} is not configured: {find_missing(adapter)}",
        provider=adapter.name,
        model=entry.wire_name,
        provider_code="not_configured",
        advice=advice,
    )
