"""The contract of embedding and reranking models: what they implement, and what callers use.

``Embedder`` and ``Reranker`` are siblings of ``Provider``: each stands for one model, is
stateless, and sends a request only once. A subclass implements ``answer``, which handles one
request. A call that is too large for one request is split into several.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from ..calls import Operation
from ..errors import InvalidRequestError, ProviderError
from ..events import Sale, Usage
from ..provider import AssembledReply, Model, Reply
from ..provider.awaited import awaited
from ..provider.model import KindOut, OfKind
from ..provider.stream import WaitingCall
from .check import build_embed_request, build_rerank_request, check_abilities
from .split import Joined, split_request
from .values import Embeddings, EmbedRequest, Ranking, RerankRequest


class RetrievalModel(Model):
    """The common base of ``Embedder`` and ``Reranker``."""

    batch_size: int | None = None
    """How many texts or documents go into one request; ``None`` if there is no limit."""

    @abstractmethod
    async def answer(self, request: Any) -> Any:
        """Answer one request, or raise an error.

        Subclasses implement this method, and layers wrap it.
        """

    def open(self, request: Any) -> Reply:
        return AnswerReply(self, request)

    def check(self, request: Any) -> None:
        check_abilities(request, self.capabilities)

    async def send(self, request: Any) -> Any:
        """Answer a request of any size; one that is too large is split."""
        self._check_request(request)
        began = time.perf_counter()
        waiting = WaitingCall()
        self._calls.add(request.request_id, waiting)
        try:
            answer = await self._answer_parts(request)
        except asyncio.CancelledError as error:
            if not waiting.is_interrupted():
                raise
            raise self._cancelled(request, getattr(error, "response", None)) from None
        finally:
            waiting.end()
            self._calls.remove(request.request_id)
        return replace(answer, latency_ms=(time.perf_counter() - began) * 1000)

    async def _answer_parts(self, request: Any) -> Any:
        size = self.batch_size
        if size is None or len(request.inputs) <= size:
            return await self.answer(request)
        joined = Joined(request, size)
        try:
            for part in split_request(request, size):
                joined.add(await self.answer(part))
        except (ProviderError, asyncio.CancelledError) as error:
            _report_partial(error, request, joined.count, size, joined.result())
            raise
        return joined.result()


class AnswerReply(AssembledReply):
    """The reply of an embedder or a reranker, whose only event is the answer."""

    def __init__(self, owner: RetrievalModel, request: Any) -> None:
        super().__init__(request, owner.name, owner.model)
        self._owner: RetrievalModel | None = owner
        self._usage = Usage()

    @property
    def usage(self) -> Usage:
        return self._usage

    async def next(self) -> list[Any]:
        owner, self._owner = self._owner, None
        if owner is None:
            return []
        try:
            answer = await owner.answer(self.request)
        except BaseException as error:
            # A part of the request may have been answered and billed before the failure.
            self._usage = getattr(getattr(error, "response", None), "usage", None) or Usage()
            raise
        self._usage = answer.usage
        return [answer]

    async def aclose(self) -> None:
        pass


class _Sends(OfKind[KindOut], Protocol[KindOut]):
    """A model of one kind, with what the methods for callers use."""

    @property
    def model(self) -> str: ...

    @property
    def batch_size(self) -> int | None: ...

    async def send(self, request: Any) -> Any: ...


class _Embeds(_Sends["Embedder"], Protocol):
    @property
    def embed(self) -> Callable[..., Awaitable[Embeddings]]: ...


class Embedder(RetrievalModel):
    """A model that turns texts into vectors.

    A subclass implements ``answer``; callers use ``embed``.
    """

    operation: Operation = "embed"

    if TYPE_CHECKING:

        @property
        def _kind(self) -> Embedder: ...

    @abstractmethod
    async def answer(self, request: EmbedRequest) -> Embeddings:
        """Answer one request, or raise an error."""

    @awaited
    async def embed(
        self: _Sends[Embedder],
        texts: str | Sequence[str],
        *,
        input_type: str | None = None,
        dimensions: int | None = None,
        extras: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        session_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Embeddings:
        """Return one vector for each text, in the order of the texts; one text may be a string.

        ``input_type`` is what the texts are for, ``"query"`` or ``"document"``; ``dimensions`` the
        length of the vectors, for models that can shorten them. ``extras`` are further fields of
        the wire, sent unchanged.

        More texts than ``batch_size`` are sent in several requests, one after the other. If one of
        them fails, ``error.response`` has the vectors of the texts before it; the texts after it
        were not sent.
        """
        request = build_embed_request(
            [texts] if isinstance(texts, str) else texts,
            input_type=input_type, dimensions=dimensions, extras=extras, model=self.model,
            request_id=request_id, session_id=session_id, metadata=metadata,
        )  # fmt: skip
        answer: Embeddings = await self.send(request)
        return answer

    async def embed_batches(
        self: _Embeds,
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


class Reranker(RetrievalModel):
    """A model that orders documents by relevance.

    A subclass implements ``answer``; callers use ``rerank``.
    """

    operation: Operation = "rerank"

    if TYPE_CHECKING:

        @property
        def _kind(self) -> Reranker: ...

    @abstractmethod
    async def answer(self, request: RerankRequest) -> Ranking:
        """Answer one request, or raise an error."""

    @awaited
    async def rerank(
        self: _Sends[Reranker],
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
        ranking: Ranking = await self.send(request)
        return ranking


def find_sale(model: RetrievalModel) -> Sale:
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
    given = request.inputs
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
