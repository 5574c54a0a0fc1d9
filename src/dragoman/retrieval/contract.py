"""The contract of embedding and reranking models: what they implement, and what callers use.

``Embedder`` and ``Reranker`` are siblings of ``Provider``: each stands for one model, is
stateless, and sends a request only once. A subclass implements ``answer``, which handles one
request. A call that is too large for one request is split into several.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import cached_property
from itertools import islice
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from msgspec.structs import replace

from ..capabilities import Capabilities
from ..errors import CallCancelledError, InvalidRequestError, ProviderError, quote
from ..events import Sale
from ..prices import PricedAs, PriceRow
from ..provider.stream import CallsInFlight, WaitingCall
from .check import build_embed_request, build_rerank_request, check_abilities
from .split import JoinedEmbeddings, join_rankings, split_documents, split_texts
from .values import Embeddings, EmbedRequest, Operation, Ranking, RerankRequest

RequestT = TypeVar("RequestT", EmbedRequest, RerankRequest)
AnswerT = TypeVar("AnswerT", Embeddings, Ranking)


class RetrievalModel(ABC, Generic[RequestT, AnswerT]):
    """The common base of ``Embedder`` and ``Reranker``."""

    operation: ClassVar[Operation]
    name: str = ""
    model: str = ""
    capabilities: Capabilities = Capabilities()
    batch_size: int | None = None
    """How many texts or documents go into one request; ``None`` if there is no limit."""
    server: str | None = None
    """The host and port that calls go to; ``None`` if they use no network."""
    _priced_as: PricedAs | None = None

    @abstractmethod
    async def answer(self, request: RequestT) -> AnswerT:
        """Answer one request, or raise an error.

        Subclasses implement this method, and layers wrap it.
        """

    async def ready(self) -> None:
        """Check whether the next call is likely to succeed.

        If it is not, raise the error that the call would raise.
        """

    async def close(self) -> None:
        """Release connections."""

    async def cancel(self, request_id: str) -> bool:
        """Cancel the call with this id; return ``False`` if it is not in flight. Idempotent."""
        return await self._calls.cancel(request_id)

    @property
    def priced_as(self) -> PricedAs:
        """The vendor and model whose price applies to calls, as a ``PricedAs``.

        It can be set to ``"vendor:model"``, to ``"free"`` or to a ``PriceRow``.
        """
        return self._priced_as or self._find_seller()

    @priced_as.setter
    def priced_as(self, given: PricedAs | PriceRow | str) -> None:
        self._priced_as = PricedAs.of(given, self.model)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or '?'} {self.model or '?'}>"

    # --- private methods of embedders and rerankers

    def _find_seller(self) -> PricedAs:
        return PricedAs(f"{self.name}:{self.model}")

    @cached_property
    def _calls(self) -> CallsInFlight:
        return CallsInFlight()  # a cached property, so that subclasses need not call __init__

    async def _call(self, request: RequestT, send: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        """Make a call that can be cancelled by its id."""
        if request.request_id in self._calls:
            raise InvalidRequestError(
                f"request_id {quote(request.request_id)} is already in flight"
            )
        began, waiting = time.perf_counter(), WaitingCall()
        self._calls.add(request.request_id, waiting)
        try:
            answer = await send()
        except asyncio.CancelledError as error:
            if not waiting.is_interrupted():
                raise
            cancelled = CallCancelledError(
                "the call was cancelled", response=getattr(error, "response", None)
            )
            raise self._annotate(cancelled, request) from None
        finally:
            waiting.end()
            self._calls.remove(request.request_id)
        return replace(answer, latency_ms=(time.perf_counter() - began) * 1000)

    def _annotate(self, error: ProviderError, request: RequestT) -> ProviderError:
        error.provider, error.model = (
            error.provider or self.name or None,
            error.model or self.model or None,
        )
        error.request_id = error.request_id or request.request_id
        return error


class Embedder(RetrievalModel[EmbedRequest, Embeddings]):
    """A model that turns texts into vectors.

    A subclass implements ``answer``; callers use ``embed``.
    """

    operation: ClassVar[Operation] = "embed"

    async def embed(
        self,
        texts: Sequence[str],
        *,
        input_type: str | None = None,
        dimensions: int | None = None,
        extras: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        session_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Embeddings:
        """Return one vector for each text, in the order of the texts.

        ``input_type`` is what the texts are for, ``"query"`` or ``"document"``; ``dimensions`` the
        length of the vectors, for models that can shorten them. ``extras`` are further fields of
        the wire, sent unchanged.

        More texts than ``batch_size`` are sent in several requests, one after the other. If one of
        them fails, ``error.response`` has the vectors of the texts before it; the texts after it
        were not sent.
        """
        request = build_embed_request(
            texts, input_type=input_type, dimensions=dimensions, extras=extras, model=self.model,
            request_id=request_id, session_id=session_id, metadata=metadata,
        )  # fmt: skip
        return await self.send(request)

    async def embed_batches(
        self,
        texts: Iterable[str],
        *,
        size: int | None = None,
        input_type: str | None = None,
        dimensions: int | None = None,
        extras: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Embeddings]:
        """Yield the vectors request by request, for more texts than fit in memory.

        ``size`` is how many texts go into one request, by default ``batch_size`` or 1,000.
        """
        if isinstance(texts, str):
            raise InvalidRequestError(
                "texts must be an iterable of strings; put the one string into a list"
            )
        left = iter(texts)
        step = min([each for each in (size, self.batch_size) if each is not None], default=1000)
        while part := list(islice(left, step)):
            yield await self.embed(
                part,
                input_type=input_type,
                dimensions=dimensions,
                extras=extras,
                metadata=metadata,
            )

    async def send(self, request: EmbedRequest) -> Embeddings:
        """Answer a request of any size; one that is too large is split."""
        try:
            check_abilities(request, self.capabilities)
        except ProviderError as error:
            raise self._annotate(error, request) from None
        return await self._call(request, lambda: self._embed(request))

    async def _embed(self, request: EmbedRequest) -> Embeddings:
        size = self.batch_size
        if size is None or len(request.texts) <= size:
            return await self.answer(request)
        joined = JoinedEmbeddings()
        try:
            for part in split_texts(request, size):
                joined.add(await self.answer(part))
        except (ProviderError, asyncio.CancelledError) as error:
            _report_partial(error, request, joined.count, size, joined.result())
            raise
        answer = joined.result()
        assert answer is not None
        return answer


class Reranker(RetrievalModel[RerankRequest, Ranking]):
    """A model that orders documents by relevance.

    A subclass implements ``answer``; callers use ``rerank``.
    """

    operation: ClassVar[Operation] = "rerank"

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        return_documents: bool | None = None,
        extras: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        session_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Ranking:
        """Return at most ``top_k`` documents, sorted by relevance to the query, best first.

        The ``index`` of a result is its position in ``documents``. With ``return_documents`` the
        server returns the texts as well; Dragoman does not add them itself. ``extras`` are further
        fields of the wire, sent unchanged.
        """
        request = build_rerank_request(
            query, documents, top_k=top_k, return_documents=return_documents, extras=extras,
            model=self.model,
            request_id=request_id, session_id=session_id, metadata=metadata,
        )  # fmt: skip
        return await self.send(request)

    async def send(self, request: RerankRequest) -> Ranking:
        """Answer a request of any size; one that is too large is split."""
        try:
            check_abilities(request, self.capabilities)
        except ProviderError as error:
            raise self._annotate(error, request) from None
        return await self._call(request, lambda: self._rerank(request))

    async def _rerank(self, request: RerankRequest) -> Ranking:
        size = self.batch_size
        if size is None or len(request.documents) <= size:
            return await self.answer(request)
        parts: list[Ranking] = []
        try:
            for part in split_documents(request, size):
                parts.append(await self.answer(part))
        except (ProviderError, asyncio.CancelledError) as error:
            _report_partial(
                error,
                request,
                len(parts),
                size,
                join_rankings(parts, request, size) if parts else None,
            )
            raise
        return join_rankings(parts, request, size)


def find_sale(model: RetrievalModel[Any, Any]) -> Sale:
    """Return a ``Sale``, which looks up a model's price only when a cost is computed."""
    return Sale(lambda: model.priced_as)


def _report_partial(
    error: BaseException,
    request: EmbedRequest | RerankRequest,
    count: int,
    size: int,
    answered: Embeddings | Ranking | None,
) -> None:
    """Attach the billed partial answer to an error, and name the texts without a result."""
    given = request.texts if isinstance(request, EmbedRequest) else request.documents
    name = "texts" if isinstance(request, EmbedRequest) else "documents"
    start = count * size
    end = min(start + size, len(given))
    if isinstance(error, ProviderError):
        error.response = answered
        rest = "" if end == len(given) else f"; {name}[{end}:{len(given)}] were not sent"
        done = f"; {name}[0:{start}] were answered and are in error.response" if start else ""
        error.message = (
            f"{error.message} ({name}[{start}:{end}] of {len(given)} failed{done}{rest})"
        )
        error.args = (error.message,)
    else:
        error.response = answered  # type: ignore[attr-defined]


def walk_models(model: RetrievalModel[Any, Any]) -> Iterator[RetrievalModel[Any, Any]]:
    """Yield a model and all models that it wraps, outermost first."""
    yield model
    for part in getattr(model, "parts", tuple)():
        yield from walk_models(part)
