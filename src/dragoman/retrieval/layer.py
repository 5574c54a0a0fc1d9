"""Middleware for embedders and rerankers: a layer applies a policy to each request.

Each middleware class that supports these models applies one policy to both kinds. A call that is
split passes through its layers once for each request, so that a retry sends only the part that
failed, and a rate limit counts the requests that are really sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ..prices import PricedAs
from .contract import Embedder, Reranker, RetrievalModel
from .values import Embeddings, EmbedRequest, Ranking, RerankRequest


class RetrievalPolicy(ABC):
    """A policy that handles each request to an embedder or a reranker, such as a rate limit."""

    title: str = ""
    """The name of the layer in ``describe``."""

    @abstractmethod
    async def answer(self, inner: RetrievalModel[Any, Any], request: Any) -> Any:
        """Answer a request, usually by calling ``inner.answer``."""

    def settings(self) -> Mapping[str, Any]:
        """Return the layer's settings for ``describe``, without keys and URLs."""
        return {}

    async def ready(self, inner: RetrievalModel[Any, Any]) -> None:
        """Check whether the next call is likely to succeed.

        If it is not, raise the error that the call would raise.
        """
        await inner.ready()

    async def close(self, inner: RetrievalModel[Any, Any]) -> None:
        """Release the resources of this layer and of the model that it wraps."""
        await inner.close()


class LayeredEmbedder(Embedder):
    """An embedder whose requests pass through a policy before they reach the wrapped model."""

    def __init__(self, inner: Embedder, policy: RetrievalPolicy) -> None:
        self.inner = inner
        self.policy = policy
        _copy_facts(inner, self)

    async def answer(self, request: EmbedRequest) -> Embeddings:
        answer: Embeddings = await self.policy.answer(self.inner, request)
        return answer

    def parts(self) -> tuple[RetrievalModel[Any, Any], ...]:
        """Return a tuple with the wrapped model."""
        return (self.inner,)

    async def ready(self) -> None:
        await self.policy.ready(self.inner)

    async def close(self) -> None:
        await self.policy.close(self.inner)

    def _find_seller(self) -> PricedAs:
        return self.inner.priced_as


class LayeredReranker(Reranker):
    """A reranker whose requests pass through a policy before they reach the wrapped model."""

    def __init__(self, inner: Reranker, policy: RetrievalPolicy) -> None:
        self.inner = inner
        self.policy = policy
        _copy_facts(inner, self)

    async def answer(self, request: RerankRequest) -> Ranking:
        answer: Ranking = await self.policy.answer(self.inner, request)
        return answer

    def parts(self) -> tuple[RetrievalModel[Any, Any], ...]:
        """Return a tuple with the wrapped model."""
        return (self.inner,)

    async def ready(self) -> None:
        await self.policy.ready(self.inner)

    async def close(self) -> None:
        await self.policy.close(self.inner)

    def _find_seller(self) -> PricedAs:
        return self.inner.priced_as


def _copy_facts(inner: RetrievalModel[Any, Any], outer: RetrievalModel[Any, Any]) -> None:
    outer.name, outer.model, outer.server = inner.name, inner.model, inner.server
    outer.capabilities, outer.batch_size = inner.capabilities, inner.batch_size


def put_around(model: RetrievalModel[Any, Any], policy: RetrievalPolicy) -> Embedder | Reranker:
    """Return a model wrapped by a policy; an embedder stays an embedder, a reranker a reranker."""
    if isinstance(model, Embedder):
        return LayeredEmbedder(model, policy)
    if isinstance(model, Reranker):
        return LayeredReranker(model, policy)
    raise TypeError(
        f"{policy.title}: must be an Embedder or a Reranker, not {type(model).__name__}"
    )
