"""The models that a gateway serves, by the names that its clients use."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from msgspec import Struct

from ..errors import AuthenticationError, InvalidModelError, ProviderError
from ..messages import Issuer
from ..middleware import Fallback
from ..middleware.layer import walk
from ..provider import HttpProvider, Provider
from ..registry import Registry
from ..retrieval import RetrievalModel
from ..retrieval.values import Operation

log = logging.getLogger("dragoman")

Served: TypeAlias = Provider | RetrievalModel
"""What a served name refers to: a model for chat, embedding or reranking."""


class Upstream(Struct, frozen=True):
    """The properties of a provider that translating a request depends on.

    They do not change while the provider is open, so they are found only once.
    """

    wires: frozenset[str]
    """The wires that the provider may use; empty if unknown."""
    issuer: Issuer | None
    """The issuer of the opaque state in the provider's replies; ``None`` if it varies."""
    refuses_losses: bool
    """Whether the provider, or one that it wraps, is configured with ``on_loss: reject``."""
    is_group: bool = False
    """Whether a call may be answered by one of several models."""


def describe_upstream(provider: Provider) -> Upstream:
    """Return the properties of a provider that translating a request depends on."""
    ends = [part for part in walk(provider) if isinstance(part, HttpProvider)]
    # connections that differ only in their keys have the same issuer, so equal issuers are merged
    issuers = {Issuer(end.codec.wire, end.codec.issuer_vendor, end.model) for end in ends}
    return Upstream(
        frozenset([end.codec.wire for end in ends]),
        issuers.pop() if len(issuers) == 1 else None,
        any(end.on_loss == "reject" for end in ends),
        any(isinstance(part, Fallback) for part in walk(provider)),
    )


_READY_FOR = 10.0  # how many seconds the result of a readiness check is cached


class Models:
    """Map the names that clients use to providers.

    The providers of a registry are opened on first use. A registry could also open other names,
    such as a file for the embedded model or a model that the catalogue does not list, but clients
    cannot use those names.
    """

    def __init__(self, source: Mapping[str, Served] | Registry) -> None:
        self._registry = source if isinstance(source, Registry) else None
        given: Mapping[str, Served] = {} if isinstance(source, Registry) else source
        self._providers = {
            name: cast("Provider", each)
            for name, each in given.items()
            if each.operation == "chat"
        }
        self._retrieval = {
            (name, each.operation): cast("RetrievalModel", each)
            for name, each in given.items()
            if each.operation != "chat"
        }
        self._upstreams: dict[str, Upstream] = {}
        self.users = 0  # number of requests in progress that use these models
        self.is_retired = False
        self._asked: float | None = None
        self._problems: dict[str, str] | None = None
        self._probe: asyncio.Task[None] | None = None

    def names(self) -> list[str]:
        """Return every name that is served."""
        if self._registry is None:
            return sorted({*self._providers, *[name for name, _ in self._retrieval]})
        found = [*self._registry.aliases(), *self._registry.names()]
        return [
            name
            for name in dict.fromkeys(found)
            if self._registry.find(name).status == "configured"
        ]

    def find(self, name: str) -> Provider:
        """Return the provider with this name; raise ``InvalidModelError`` if it is not served."""
        provider = self._providers.get(name)
        if provider is None and (registry := self._find_registry(name)) is not None:
            try:
                provider = self._providers[name] = registry.provider(name, keep_raw=False)
            except AuthenticationError as error:
                # the operator has not configured a key for the provider; the client's key is valid
                raise InvalidModelError("the model is not configured here") from error
        if provider is None:
            raise InvalidModelError("no model of this name is served here")
        return provider

    def find_upstream(self, name: str) -> Upstream:
        """Return the properties of the provider with this name."""
        found = self._upstreams.get(name)
        if found is None:
            found = self._upstreams[name] = describe_upstream(self.find(name))
        return found

    def find_retrieval(self, name: str, operation: Operation) -> RetrievalModel:
        """Return an embedding or reranking model; raise ``InvalidModelError`` if it is unknown."""
        model = self._retrieval.get((name, operation))
        if model is None and (registry := self._find_registry(name)) is not None:
            opener: Any = (
                registry.open_embedder if operation == "embed" else registry.open_reranker
            )
            try:
                model = self._retrieval[name, operation] = opener(name, retries=0, keep_raw=False)
            except AuthenticationError as error:
                raise InvalidModelError("the model is not configured here") from error
        if model is None:
            what = "embeds" if operation == "embed" else "ranks"
            raise InvalidModelError(f"no model of this name {what} here")
        return model

    def _find_registry(self, name: str) -> Registry | None:
        """Return the registry if it lists a name."""
        known = self._registry
        is_listed = known is not None and (name in known.aliases() or name in known.names())
        return known if is_listed else None

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

    def describe_upstreams(self, problems: Mapping[str, str]) -> list[list[str]]:
        """Return a row for each provider that is open: served name, provider and model, state.

        The state is the error for which the circuit breaker suspended the model, or else the
        result of the readiness check.
        """
        found = []
        for name, provider in sorted(self._providers.items()):
            problem = problems.get(name, "ready")
            breakers = [part.availability for part in walk(provider) if isinstance(part, Fallback)]
            for end in [part for part in walk(provider) if len([*walk(part)]) == 1]:
                causes = [
                    cause
                    for each in breakers
                    if (cause := each.trigger(end.name, end.model)) is not None
                ]
                state = f"unavailable: {causes[0]}" if causes else problem
                found.append([name, f"{end.name}:{end.model}", state])
        return found

    async def _find_problems(self) -> None:
        asked: dict[str, Served] = {**self._providers}
        asked |= {
            f"{name} ({operation})": each for (name, operation), each in self._retrieval.items()
        }
        found = await asyncio.gather(*[_problem(provider) for provider in asked.values()])
        named = zip(asked, found, strict=True)
        self._problems = {name: problem for name, problem in named if problem is not None}
        self._asked = time.monotonic()

    async def close(self) -> None:
        """Close every provider that is open."""
        if self._probe is not None and not self._probe.done():
            self._problems = None
            self._probe.cancel()
            await asyncio.wait([self._probe])
        opened: list[Served] = [*self._providers.values(), *self._retrieval.values()]
        for provider in {id(provider): provider for provider in opened}.values():
            await provider.close()


async def _problem(provider: Served) -> str | None:
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
