"""Build each provider's middleware stack; share connections, rate limits and availability.

=============  ===============================================================================
a model        ``Retry`` / ``RateLimit`` / ``Observe`` / ``KeyRotation`` / ``HttpProvider``
a group        ``Fallback`` over its candidates, each with the stack of a model
=============  ===============================================================================

A layer is added only if ``models.yaml``, the caller or a second API key requires it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from ..config import ConfigError
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
from ..provider import Model, Provider, bind, open_scheme
from ..retrieval import bind_embedder, bind_reranker, open_embed_scheme
from ..transport import Timeouts
from ..wire import CODECS
from .adapters import Adapter
from .entries import ModelEntry, config_path
from .groups import Candidate, Group
from .limits import RateLimits
from .names import Names
from .pools import Lease, Pools

Subscriber = Callable[..., Any]
StackT = TypeVar("StackT", bound=Model)

_GROUP_SETTINGS = ("timeouts", "on_loss", "keep_raw", "transport")


@contextmanager
def _naming_redis() -> Iterator[None]:
    """Raise ``ConfigError`` for a Redis URL that the Redis library rejects."""
    try:
        yield
    except ValueError as error:
        raise ConfigError("redis", None, str(error)) from None


class Order(Struct, frozen=True):
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
        self._opened: dict[str, tuple[Provider, list[Lease]]] = {}
        self._leases: list[Lease] = []  # the leases of the stack being built

    def open(self, names: Names, name: str, order: Order, *, shared: bool = True) -> Provider:
        """Return the provider for a name; with ``shared``, equal options get the same provider."""
        key = self._digest(names, name, order) if shared and order.is_plain else None
        kept = self._opened.get(key) if key is not None else None
        if kept is None:
            self._leases = []
            kept = self._build(names, name, order), self._leases
            if key is not None:
                self._opened[key] = kept
        for lease in kept[1]:
            lease.holders += 1
        return kept[0]

    def open_retrieval(
        self, names: Names, name: str, side: Literal["embed", "rerank"], order: Order
    ) -> Any:
        """Return the embedder or reranker for a model, or for a group that serves one model."""
        if side == "embed" and names.is_embed_scheme(name):
            return _retry(
                _observe(open_embed_scheme(name, order.settings), order), order.retries or 0
            )
        group = names.group(name)
        if group is not None:
            members: list[Any] = [
                self._build_retrieval(names, names.find(each.model), side, order)
                for each in group.candidates
            ]
            found: Any = Fallback(members, self._share_availability(names), name=group.name)
            return _retry(found, order.retries or 0)
        entry = names.find(name)
        model = self._build_retrieval(names, entry, side, order)
        return _retry(model, names.retries(entry) if order.retries is None else order.retries)

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

    # --- private methods that build providers

    def _build(self, names: Names, name: str, order: Order) -> Provider:
        if names.is_scheme(name):
            return _retry(_observe(open_scheme(name, order.settings), order), order.retries or 0)
        group = names.group(name)
        if group is not None:
            return self._build_group(names, group, order)
        entry = names.find(name)
        provider = self._build_model(names, entry, order)
        retries = order.retries
        if retries is None:
            retries = 0 if order.bare else names.retries(entry)
        return _retry(provider, retries)

    def _build_group(self, names: Names, group: Group, order: Order) -> Provider:
        for setting in order.settings:
            if setting not in _GROUP_SETTINGS:
                raise ValueError(
                    f"{setting}: {group.name} is a group of models; set it for each in models.yaml"
                )
        if not order.planning and names.find(group.name).status != "configured":
            entries = [names.find(candidate.model) for candidate in group.candidates]
            raise not_configured(entries[0], names.adapter(entries[0].adapter))
        return Fallback(
            [
                self._build_candidate(names, group, candidate, order)
                for candidate in group.candidates
            ],
            self._share_availability(names),
            name=group.name,
            strategy=group.strategy,
            weights=[candidate.weight for candidate in group.candidates],
            half_life=group.half_life,
        )

    def _build_candidate(
        self, names: Names, group: Group, candidate: Candidate, order: Order
    ) -> Provider:
        retries = candidate.max_retries if order.retries is None else order.retries
        settings = dict(order.settings)
        if names.is_scheme(candidate.model):
            if candidate.timeouts is not None:
                settings.setdefault("timeouts", Timeouts(**candidate.timeouts))
            return _retry(_observe(open_scheme(candidate.model, settings), order), retries)
        entry = names.find(candidate.model)
        adapter = names.adapter(entry.adapter)
        if candidate.timeouts is not None:
            settings.setdefault("timeouts", adapter.deadlines(candidate.timeouts))
        order = msgspec.structs.replace(order, settings=settings)
        if entry.status != "configured" and not order.planning:
            return NotConfigured(adapter.name, entry.wire_name, find_missing(adapter))
        limiters = []
        if candidate.rate_limit is not None:
            limiters = [
                self._limit(names, f"group:{group.name}:{candidate.model}", candidate.rate_limit)
            ]
        return _retry(self._build_model(names, entry, order, limiters), retries)

    def _build_model(
        self, names: Names, entry: ModelEntry, order: Order, limiters: Sequence[Limiter] = ()
    ) -> Provider:
        adapter = names.adapter(entry.adapter)
        if order.settings.get("wire") in CODECS:
            adapter = adapter.with_wire(order.settings["wire"])
        else:
            adapter = adapter.for_model(entry.wire_name)
        given = {**_describe(entry, adapter), **order.settings}
        if adapter.vendor is not None and not adapter.vendor.chats:
            raise not_a_chat_model(entry, adapter)
        is_usable = entry.status == "configured" or order.planning
        if not is_usable and not ("api_key" in order.settings and adapter.base_url):
            raise not_configured(entry, adapter)
        keys = adapter.keys() if "api_key" not in order.settings and adapter.auth is None else []
        if adapter.base_url is not None:
            given["observe"] = names.observed.watch(
                adapter.base_url, entry.wire_name, entry.capabilities
            )
        made = [self._bind(entry, adapter, {**given, "api_key": key}) for key in keys[1:]]
        made.insert(0, self._bind(entry, adapter, given))
        provider = _observe(made[0] if len(made) == 1 else KeyRotation(made), order)
        if adapter.rate_limit is not None:
            limiters = [
                self._limit(names, f"adapter:{adapter.name}", adapter.rate_limit),
                *limiters,
            ]
        return RateLimit(provider, limiter=limiters) if limiters else provider

    def _build_retrieval(
        self, names: Names, entry: ModelEntry, side: Literal["embed", "rerank"], order: Order
    ) -> Any:
        adapter = names.adapter(entry.adapter)
        if entry.status != "configured" and not ("api_key" in order.settings and adapter.base_url):
            raise not_configured(entry, adapter)
        given = {
            **adapter.retrieval_settings(side),
            "capabilities": entry.capabilities,
            "priced_as": entry.priced_as,
            **order.settings,
        }
        if given.get("transport") is None:
            given["transport"] = self._pools.lease(adapter.name, adapter.connection)
            given["transport"].holders += 1
        bind_side: Any = bind_embedder if side == "embed" else bind_reranker
        model: Any = _observe(bind_side(entry.wire_name, **given), order)
        if adapter.rate_limit is None:
            return model
        return RateLimit(
            model, limiter=[self._limit(names, f"adapter:{adapter.name}", adapter.rate_limit)]
        )

    def _bind(self, entry: ModelEntry, adapter: Adapter, settings: dict[str, Any]) -> Provider:
        if settings.get("transport") is None:
            lease = self._pools.lease(adapter.name, adapter.connection)
            self._leases.append(lease)
            settings = {**settings, "transport": lease}
        return bind(entry.wire_name, **settings)

    def _limit(self, names: Names, name: str, limits: RateLimits) -> Limiter:
        key = name, limits, names.redis
        if key not in self._limiters:
            given = limits.given()
            with _naming_redis():
                self._limiters[key] = (
                    Limiter(**given)
                    if names.redis is None
                    else RedisLimiter(names.redis, f"limit:{name}", **given)
                )
        return self._limiters[key]

    def _share_availability(self, names: Names) -> Availability:
        settings = names.thresholds, names.redis
        if self._availability is None or self._shared_by != settings:
            self._shared_by = settings
            with _naming_redis():
                self._availability = (
                    Availability(thresholds=names.thresholds)
                    if names.redis is None
                    else RedisAvailability(names.redis, thresholds=names.thresholds)
                )
        return self._availability

    def _digest(self, names: Names, name: str, order: Order) -> str:
        """Return the cache key of a provider: a digest of its name, options and settings.

        The settings include API keys, so the cache key must not contain them in plain text.
        """
        group = names.group(name)
        models = (
            [candidate.model for candidate in group.candidates] if group is not None else [name]
        )
        known = []
        for model in models:
            if not names.is_scheme(model):
                entry = names.find(model)
                adapter = names.adapter(entry.adapter)
                settings = {**_describe(entry, adapter), "api_key": None}
                known.append((entry.id, entry.status, settings, adapter.keys(), adapter.auth))
        text = repr(
            (
                name,
                order.retries,
                order.planning,
                order.bare,
                sorted(order.settings.items()),
                known,
            )
        )
        return hashlib.sha256(text.encode()).hexdigest()


def _describe(entry: ModelEntry, adapter: Adapter) -> dict[str, Any]:
    return {
        **adapter.settings(),
        "capabilities": entry.capabilities,
        "token_family": entry.tokens,
        "priced_as": entry.priced_as,
    }


def _observe(provider: StackT, order: Order) -> StackT:
    inner: Any = provider
    layered: Any = Observe(inner, *order.subscribers) if order.subscribers else inner
    found: StackT = layered
    return found


def _retry(provider: StackT, retries: int) -> StackT:
    inner: Any = provider
    layered: Any = Retry(inner, max_retries=retries) if retries else inner
    found: StackT = layered
    return found


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
        return f"adapter {adapter.name!r} has no base_url"
    return f"set the environment variable {adapter.api_key_env}"


def not_configured(entry: ModelEntry, adapter: Adapter) -> AuthenticationError:
    """Return the error for a model that is not configured."""
    advice = f"Set it in {config_path().name}."
    if adapter.base_url:
        advice = f"Or store the key: dragoman keys set {adapter.api_key_env}"
    return AuthenticationError(
        f"{entry.id} is not configured: {find_missing(adapter)}",
        provider=adapter.name,
        model=entry.wire_name,
        provider_code="not_configured",
        advice=advice,
    )
