"""Embedding and reranking models over HTTP: encode, send and decode, without retries."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, final

from msgspec.structs import replace

from ..capabilities import Capabilities
from ..errors import (
    InvalidResponseError,
    NetworkError,
    ProviderError,
    StreamInterruptedError,
    UnsupportedFeatureError,
    without_frames,
)
from ..messages import LossWarning
from ..prices import PricedAs, find_seller, find_server
from ..provider.tracing import add_trace
from ..transport import MAX_ERROR_BODY, Secret, Timeouts, Transport
from ..wire.codec import Encoded, HttpReply
from .contract import Embedder, Reranker, RetrievalModel, find_sale
from .split import KEPT_BYTES
from .values import Embeddings, EmbedRequest, Ranking, Replies, RerankRequest
from .vectors import from_little_endian
from .wire import EmbedCodec, RerankCodec, RetrievalCodec
from .wire.reading import show_raw

log = logging.getLogger("dragoman")

MAX_REPLY = 512 * 1024 * 1024
"""The largest accepted reply, in bytes: five times the size of 2,048 vectors of 4,096 numbers in
decimal.
"""

RequestT = TypeVar("RequestT", EmbedRequest, RerankRequest)


class Endpoint(Generic[RequestT]):
    """One model at one address: its codec, its transport, and the credentials for this address."""

    def __init__(
        self,
        codec: RetrievalCodec[Any, RequestT],
        transport: Transport,
        *,
        name: str,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        on_loss: Literal["warn", "reject"] = "warn",
        hint: str | None = None,
        keep_raw: bool | None = None,
    ) -> None:
        self.codec: RetrievalCodec[Any, RequestT] = codec
        self.name = name
        self._transport = transport
        self._timeouts = timeouts or Timeouts()
        self._on_loss = on_loss
        self._hint = hint
        self._keep_raw = keep_raw
        self._key = Secret(api_key)
        self._credentials = {name: Secret(value) for name, value in (headers or {}).items()}
        if api_key:
            self._credentials |= {
                name: Secret(value) for name, value in codec.authorise(api_key).items()
            }

    async def exchange(self, encoded: Encoded) -> HttpReply:
        """Send a request and return its complete reply; raise an error for an error status."""
        credentials = add_trace(self._credentials)
        async with self._transport.send(encoded.http, credentials, self._timeouts) as http:
            if http.status >= 300:
                body = await http.read(MAX_ERROR_BODY)
                raise self.codec.error(http.status, http.headers, body, time.time())
            body = await http.read(MAX_REPLY + 1)
            if len(body) > MAX_REPLY:
                raise InvalidResponseError(f"the reply is longer than {MAX_REPLY} bytes")
            return HttpReply(http.status, http.headers, body)

    async def ready(self) -> None:
        """Send the codec's readiness checks; raise the first problem that they find."""
        questions = self.codec.ready()
        try:
            question = next(questions)
            while True:
                question = questions.send(
                    await self._transport.exchange(question, self._credentials, self._timeouts)
                )
        except StopIteration:
            return
        except ProviderError as error:
            raise self.annotate(error, None, ()).with_traceback(None) from None

    async def close(self) -> None:
        """Close the transport."""
        await self._transport.close()

    def report(self, warnings: Sequence[LossWarning], request: RequestT) -> None:
        """Log losses; with ``on_loss="reject"`` raise the first of them."""
        if warnings and self._on_loss == "reject":
            raise UnsupportedFeatureError(f"on_loss='reject': {warnings[0]}")
        for warning in warnings:
            log.warning("%s/%s %s: %s", self.name, self.codec.model, request.request_id, warning)

    def keep(self, reply: HttpReply) -> Replies | None:
        """Return the raw reply, or ``None`` if it is not kept.

        By default, only small replies are kept.
        """
        keeps = len(reply.body) <= KEPT_BYTES if self._keep_raw is None else self._keep_raw
        return Replies((reply.body,), show_raw) if keeps else None

    def annotate(
        self, error: ProviderError, request: RequestT | None, texts: Sequence[str]
    ) -> ProviderError:
        """Add the provider, the model and the request id to an error.

        Keys and the caller's texts are removed from its message.
        """
        error.provider, error.model = error.provider or self.name, error.model or self.codec.model
        if self._hint and isinstance(error, NetworkError) and error.is_unreached:
            error.advice = self._hint
        if request is not None:
            error.request_id = error.request_id or request.request_id
        secrets = [secret.reveal() or "" for secret in (self._key, *self._credentials.values())]
        # The Infinity server repeats all texts of a request that it rejects.
        error.hide(secrets, [text for text in texts if text])
        if error.__cause__ is not None:
            error.__cause__ = without_frames(error.__cause__)
        return error

    def price(self, base_url: str) -> PricedAs:
        """Return the vendor and model whose price applies, which depends on the host."""
        return find_seller(base_url, self.codec.model)


def _bind(
    model: RetrievalModel[Any, Any],
    endpoint: Endpoint[Any],
    known: Capabilities,
    batch_size: int | None,
) -> None:
    model.name = endpoint.name
    model.model = endpoint.codec.model
    model.server = find_server(endpoint.codec.base_url)
    model.capabilities = known
    model.batch_size = batch_size or known.known("max_batch_size") or endpoint.codec.limit


@final
class HttpEmbedder(Embedder):
    """An embedding model on a wire. To change its behaviour, wrap it in a layer."""

    def __init__(
        self,
        endpoint: Endpoint[EmbedRequest],
        codec: EmbedCodec[Any],
        *,
        capabilities: Capabilities | None = None,
        batch_size: int | None = None,
        prefixes: Mapping[str, str] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self.codec = codec
        self._prefixes = dict(prefixes or {})
        _bind(self, endpoint, capabilities or Capabilities(), batch_size)

    async def answer(self, request: EmbedRequest) -> Embeddings:
        endpoint, began = self._endpoint, time.perf_counter()
        try:
            sent = self._prefix(request)
            encoded = self.codec.encode(sent)
            endpoint.report(encoded.warnings, request)
            reply = await endpoint.exchange(encoded)
            part = self.codec.decode(reply, sent)
        except ProviderError as error:
            annotated = endpoint.annotate(_as_network(error), request, request.texts)
            raise annotated.with_traceback(None) from annotated.__cause__
        answer = Embeddings(
            vectors=from_little_endian(part.data, part.dimensions),
            model=part.model or self.model,
            usage=part.usage,
            response_id=part.response_id,
            provider=self.name,
            request_id=request.request_id,
            latency_ms=(time.perf_counter() - began) * 1000,
            warnings=encoded.warnings,
            kept=endpoint.keep(reply),
            sale=find_sale(self),
        )
        return self._check_dimensions(answer, request)

    async def ready(self) -> None:
        await self._endpoint.ready()

    async def close(self) -> None:
        await self._endpoint.close()

    def _find_seller(self) -> PricedAs:
        return self._endpoint.price(self.codec.base_url)

    def _prefix(self, request: EmbedRequest) -> EmbedRequest:
        """Put the input type's prefix before each text, for models trained with prefixes."""
        prefix = self._prefixes.get(request.input_type or "")
        if prefix is None:
            return request
        return replace(request, texts=[prefix + text for text in request.texts], input_type=None)

    def _check_dimensions(self, answer: Embeddings, request: EmbedRequest) -> Embeddings:
        """Warn about vectors of the wrong length: llama.cpp ignores ``dimensions``."""
        if request.dimensions in (None, answer.dimensions):
            return answer
        detail = (
            f"the vectors have {answer.dimensions} numbers, {request.dimensions} were asked for"
        )
        answer = replace(
            answer,
            warnings=(*answer.warnings, LossWarning("dimensions_ignored", "dimensions", detail)),
        )
        return _report_late(self._endpoint, answer, request)


@final
class HttpReranker(Reranker):
    """A reranking model on a wire. To change its behaviour, wrap it in a layer."""

    def __init__(
        self,
        endpoint: Endpoint[RerankRequest],
        codec: RerankCodec[Any],
        *,
        capabilities: Capabilities | None = None,
        batch_size: int | None = None,
    ) -> None:
        self._endpoint = endpoint
        self.codec = codec
        _bind(self, endpoint, capabilities or Capabilities(), batch_size)

    async def answer(self, request: RerankRequest) -> Ranking:
        endpoint, began = self._endpoint, time.perf_counter()
        try:
            encoded = self.codec.encode(request)
            endpoint.report(encoded.warnings, request)
            reply = await endpoint.exchange(encoded)
            part = self.codec.decode(reply, request)
        except ProviderError as error:
            annotated = endpoint.annotate(
                _as_network(error), request, (request.query, *request.documents)
            )
            raise annotated.with_traceback(None) from annotated.__cause__
        answer = Ranking(
            results=tuple(sorted(part.results, key=lambda each: -each.relevance_score)),
            model=part.model or self.model,
            usage=part.usage,
            response_id=part.response_id,
            provider=self.name,
            request_id=request.request_id,
            latency_ms=(time.perf_counter() - began) * 1000,
            warnings=encoded.warnings,
            kept=endpoint.keep(reply),
            sale=find_sale(self),
        )
        return self._check_echo(answer, request)

    async def ready(self) -> None:
        await self._endpoint.ready()

    async def close(self) -> None:
        await self._endpoint.close()

    def _find_seller(self) -> PricedAs:
        return self._endpoint.price(self.codec.base_url)

    def _check_echo(self, answer: Ranking, request: RerankRequest) -> Ranking:
        """Warn if the server omits the requested documents, as llama.cpp does."""
        told = any(warning.path == "return_documents" for warning in answer.warnings)
        if (
            not request.return_documents
            or told
            or all(each.document is not None for each in answer.results)
        ):
            return answer
        warning = LossWarning(
            "documents_not_returned", "return_documents", "the server did not return the documents"
        )
        return _report_late(
            self._endpoint, replace(answer, warnings=(*answer.warnings, warning)), request
        )


AnswerT = TypeVar("AnswerT", Embeddings, Ranking)


def _report_late(endpoint: Endpoint[Any], answer: AnswerT, request: Any) -> AnswerT:
    """Report a loss that was found in the reply.

    If the loss is reported as an error, the error contains the answer, which is billed.
    """
    try:
        endpoint.report(answer.warnings[-1:], request)
    except ProviderError as error:
        error.response = answer
        raise endpoint.annotate(error, request, ()) from None
    return answer


def _as_network(error: ProviderError) -> ProviderError:
    """Add the advice to try again to the error of an interrupted reply; return the error."""
    if isinstance(error, StreamInterruptedError):
        error.advice = "Try again."
    return error
