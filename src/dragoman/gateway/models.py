"""The models that a gateway serves, by the names that its clients use."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import asdict

from ..calls import Operation
from ..capabilities import join_candidates
from ..errors import AuthenticationError, InvalidModelError, ProviderError
from ..events import Usage
from ..middleware import Cache, Fallback
from ..middleware.layer import walk
from ..middleware.stores import Store
from ..middleware.translation import Upstream, describe_upstream
from ..prices import Cost
from ..provider import Model, Provider
from ..registry import ModelEntry, Registry
from ..registry.guards import add_guards, find_client_guards
from ..registry.registry import find_cache, list_guards, list_passes
from ..registry.webhooks import Webhook
from ..retrieval import RetrievalModel
from ..wire.listing import ListedModel, find_efforts
from ..wire.reasoning import join_efforts
from ..wire.rules import matches_any
from .keys import Key
from .open_pass import OpenPass

log = logging.getLogger("dragoman")

ServedModel: TypeAlias = Provider | RetrievalModel
"""What a served name refers to: a model for chat, embedding or reranking."""


_CACHED = ("stop", "tool_calls")
"""The ends of replies that are cached: not those that a limit or a filter has cut."""
_RATES = ("input", "output", "cache_read", "cache_write")
_READY_FOR = 10.0  # how many seconds the result of a readiness check is cached


def open_configured(registry: Registry, names: Sequence[str]) -> dict[str, Provider]:
    """Open those of the named models that chat, and whose key is known."""
    opened: dict[str, Provider] = {}
    for name in names:
        if registry.find(name).status != "configured":
            continue
        with suppress(ProviderError):  # a model that does not chat
            opened[name] = registry.provider(name, keep_raw=False)
    return opened


class Models:
    """Map the names that clients use to providers.

    The providers of a registry are opened on first use. A registry could also open other names,
    such as a file for the embedded model or a model that the catalogue does not list, but clients
    cannot use those names.
    """

    def __init__(
        self, source: Mapping[str, ServedModel] | Registry, webhooks: Sequence[Webhook] = ()
    ) -> None:
        self._registry = source if isinstance(source, Registry) else None
        self.webhooks = webhooks
        given: Mapping[str, ServedModel] = {} if isinstance(source, Registry) else source
        # the open models, by name and operation
        self._opened: dict[tuple[str, Operation], Any] = {
            (name, each.operation): each for name, each in given.items()
        }
        self._upstreams: dict[str, Upstream] = {}
        self._guarded: dict[tuple[Any, ...], Any] = {}  # by the model and the names of the guards
        self._cached: dict[str, Any] = {}
        self._store: Store | None = None  # of the cache
        self._passes: dict[str, OpenPass] = {}
        self.users = 0  # number of requests in progress that use these models
        self.is_retired = False
        self._asked: float | None = None
        self._problems: dict[str, str] | None = None
        self._answered: set[str] = set()
        self.checked = 0  # number of models of the last readiness check
        self._probe: asyncio.Task[None] | None = None

    def names(self) -> list[str]:
        """Return every name that is served, without the patterns."""
        if self._registry is None:
            return sorted({name for name, _ in self._opened if "*" not in name})
        return [
            name
            for name, model in self._registry.served().items()
            if "*" not in name and self._registry.find(model).status == "configured"
        ]

    def resolve(self, name: str) -> str:
        """Return the served name that a client's name stands for.

        It is the name itself or, if that is not served, the longest pattern that matches it. Logs
        and metrics have the pattern, so that clients cannot create names in them.
        """
        given = {each for each, _ in self._opened}
        listed = self._registry.served() if self._registry is not None else {}
        if name in given or name in listed:
            return name
        patterns = [each for each in {*given, *listed} if "*" in each]
        found = [pattern for pattern in patterns if matches_any([name], [pattern])]
        return max(found, key=lambda pattern: (len(pattern), pattern), default=name)

    def find(self, name: str) -> Provider:
        """Return the provider with this name; raise ``InvalidModelError`` if it is not served."""
        provider: Provider | None = self._opened.get((name, "chat")) or self._open(name, "chat")
        if provider is None:
            raise InvalidModelError("no model of this name is served here")
        return provider

    def add_cache(self, model: Provider, name: str) -> Provider:
        """Return a model whose replies are cached, if the configuration asks for it."""
        plan = None if self._registry is None else find_cache(self._registry)
        if plan is None or not plan.holds(name):
            return model
        if name not in self._cached:
            self._store = self._store or plan.open()
            self._cached[name] = Cache(model, self._store, endings=_CACHED, needs_scope=True)
        found: Provider = self._cached[name]
        return found

    def find_cache_scope(self, name: str, key: Key | None) -> str | None:
        """Return which entries of the cache a request may use; ``None`` if it is not cached.

        Each key has entries of its own, unless the configuration shares them.
        """
        plan = None if self._registry is None else find_cache(self._registry)
        if plan is None or name not in self._cached:
            return None
        owner = [] if plan.shared or key is None else [key.id, key.hash]
        return msgspec.json.encode([name, *owner]).decode()

    def find_upstream(self, name: str) -> Upstream:
        """Return the properties of the provider with this name."""
        found = self._upstreams.get(name)
        if found is None:
            found = self._upstreams[name] = describe_upstream(self.find(name))
        return found

    def add(self, models: Mapping[str, Provider]) -> None:
        """Serve more models; one that is served already is replaced."""
        for name, model in models.items():
            self._opened[name, model.operation] = model
            self._upstreams.pop(name, None)

    def find_retrieval(self, name: str, operation: Operation) -> RetrievalModel:
        """Return an embedding or reranking model; raise ``InvalidModelError`` if it is unknown."""
        found = self._opened.get((name, operation)) or self._open(name, operation)
        model: RetrievalModel | None = found
        if model is None:
            what = "embeds" if operation == "embed" else "ranks"
            raise InvalidModelError(f"no model of this name {what} here")
        return model

    def find_pass(self, name: str) -> OpenPass | None:
        """Return the API of this name that requests are passed on to, if there is one."""
        if name not in self._passes and self._registry is not None:
            for settings in list_passes(self._registry):
                if settings.name == name:
                    self._passes[name] = OpenPass(settings)
        return self._passes.get(name)

    def guard(self, model: Any, name: str, key: Key | None) -> Any:
        """Return a model with the guards that judge the requests of a key, if there are some."""
        if self._registry is None or key is None:
            return model
        plans = find_client_guards(
            list_guards(self._registry), model, name, key.id, key.team or ""
        )
        if not plans:
            return model
        made = (model, *[plan.name for plan in plans])
        if made not in self._guarded:
            self._guarded[made] = add_guards(model, plans)
        return self._guarded[made]

    def _open(self, name: str, operation: Operation) -> Any:
        """Open a model that the registry lists; return ``None`` if it does not list the name."""
        known = self._registry
        target = None if known is None else known.served().get(name)
        if known is None or target is None:
            return None
        open_model: Any = {
            "chat": known.provider,
            "embed": partial(known.open_embedder, retries=0),
            "rerank": partial(known.open_reranker, retries=0),
        }[operation]
        try:
            model = self._opened[name, operation] = open_model(target, keep_raw=False)
        except AuthenticationError as error:
            # the operator has not configured a key for the provider; the client's key is valid
            raise InvalidModelError("the model is not configured here") from error
        return model

    def list_model(self, name: str) -> ListedModel:
        """Return what is known of a served model, for the lists that clients read."""
        opened = [model for (each, _), model in self._opened.items() if each == name]
        if not opened:
            assert self._registry is not None
            entry = self._registry.find(self._registry.served().get(name, name))
            efforts = self._registry.find_efforts(entry)
            return ListedModel(name, entry.capabilities, efforts, _find_rates(entry))
        ends = find_ends(opened[0])
        known = [end.capabilities for end in ends]
        joined = known[0] if len(known) == 1 else join_candidates(known)
        efforts = join_efforts([find_efforts(getattr(end, "codec", None)) for end in ends])
        return ListedModel(name, joined, efforts, _find_rates(opened[0]))

    async def problems(self) -> dict[str, str] | None:
        """Check whether the open models are ready; return the problems by model name.

        Return ``None`` if the gateway closes during the check. The result is cached for some
        seconds, and concurrent callers share one check.
        """
        if self._asked is None or time.monotonic() - self._asked > _READY_FOR:
            if self._probe is None or self._probe.done():
                self._probe = asyncio.ensure_future(self._find_problems())
            # Use ``asyncio.wait``: if this caller is cancelled, awaiting the task directly would
            # cancel it for all callers.
            await asyncio.wait([self._probe])
        return self._problems

    def note_answer(self, name: str) -> None:
        """Note that a model has answered, so that its absence from its server's list does not count."""
        self._answered.add(name)

    def describe(self, problems: Mapping[str, str] | None) -> list[dict[str, Any]]:
        """Return what is known of each served model, sorted by name.

        The state is the result of a readiness check, if there was one, which covers the models
        that were used before. A candidate of a group has the state of its circuit breaker, too.
        """
        used = {name for name, _ in self._opened}
        found: list[dict[str, Any]] = []
        if self._registry is not None:
            served = self._registry.served()
            unused = [name for name in self.names() if name not in used]
            found = [_describe_entry(name, self._registry.find(served[name])) for name in unused]
        for (name, operation), model in self._opened.items():
            shown = name if operation == "chat" else f"{name} ({operation})"
            state = "not checked" if problems is None else problems.get(shown, "ready")
            found.append(_describe_model(name, model, state))
        return sorted(found, key=lambda each: str(each["name"]))

    async def _find_problems(self) -> None:
        asked: dict[str, ServedModel] = {
            name if operation == "chat" else f"{name} ({operation})": each
            for (name, operation), each in self._opened.items()
        }
        found = await asyncio.gather(*[_problem(provider) for provider in asked.values()])
        named = zip(asked, found, strict=True)
        self._problems = {
            name: problem
            for name, problem in named
            if problem is not None
            and not (problem == InvalidModelError.category and name in self._answered)
        }
        self.checked = len(asked)
        self._asked = time.monotonic()

    async def close(self) -> None:
        """Close every provider that is open."""
        if self._probe is not None and not self._probe.done():
            self._problems = None
            self._probe.cancel()
            await asyncio.wait([self._probe])
        for provider in {id(each): each for each in self._opened.values()}.values():
            await provider.close()
        if self._store is not None:
            await self._store.close()
        for each in self._passes.values():
            await each.close()


def _describe_entry(name: str, entry: ModelEntry) -> dict[str, Any]:
    group = entry.group
    unused = "not used yet"
    found = [] if group is None else [(each.model, unused) for each in group.candidates]
    strategy = None if group is None else group.strategy
    return _describe(name, entry.id, unused, entry, strategy, found)


def _describe_model(name: str, model: ServedModel, problem: str) -> dict[str, Any]:
    groups = [part for part in walk(model) if isinstance(part, Fallback)]
    found = []
    for end in find_ends(model) if groups else ():
        causes = [each.availability.trigger(end.name, end.model) for each in groups]
        cause = next(filter(None, causes), None)
        state = problem if cause is None else f"circuit open: {cause}"
        found.append((f"{end.name}:{end.model}", state))
    target = "" if groups else f"{model.name}:{model.model}"
    strategy = groups[0].strategy.name if groups else None
    return _describe(name, target, problem, model, strategy, found)


def _describe(
    name: str, served_by: str, state: str, model: ModelEntry | ServedModel, strategy: str | None,
    candidates: Sequence[tuple[str, str]],
) -> dict[str, Any]:  # fmt: skip
    cost = model.priced_as.cost(Usage(0, 0, search_units=0))
    facts = asdict(model.capabilities).items()
    return {
        "name": name,
        "served_by": served_by,
        "state": state,
        "capabilities": {fact: value for fact, value in facts if value.source != "unknown"},
        "price": cost.row if isinstance(cost, Cost) else None,
        "price_unknown": None if isinstance(cost, Cost) else cost.reason,
        "strategy": strategy,
        "candidates": [{"served_by": each, "state": its} for each, its in candidates],
    }


def _find_rates(model: ModelEntry | ServedModel) -> dict[str, Decimal | None]:
    """Return the prices of a million tokens; empty if they are unknown, as those of a group are."""
    cost = model.priced_as.cost(Usage(0, 0, search_units=0))
    row = cost.row if isinstance(cost, Cost) else None
    return {} if row is None else {name: getattr(row, name) for name in _RATES}


def find_ends(model: Model) -> list[Model]:
    """Return the models that answer calls themselves, without the layers around them."""
    return [part for part in walk(model) if len([*walk(part)]) == 1]


async def _problem(provider: ServedModel) -> str | None:
    try:
        async with asyncio.timeout(5):
            await provider.ready()
    except ProviderError as error:
        return error.category
    except TimeoutError:
        return "provider_unavailable"
    except Exception:
        log.exception("the readiness check of %s failed", provider.name)
        return "provider_unavailable"
    return None
