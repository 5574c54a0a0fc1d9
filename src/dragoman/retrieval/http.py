"""Embedding and reranking models over HTTP: encode, send and decode, without retries."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, final

from msgspec.structs import replace

from ..errors import InvalidResponseError, ProviderError, StreamInterruptedError, without_frames
from ..events import Usage, bound_usage
from ..messages import LossWarning
from ..provider import HttpModel
from ..provider.call_log import CallLine
from ..transport import Transport
from ..wire.codec import Encoded, HttpReply
from .contract import Embedder, Reranker, RetrievalModel, find_sale
from .split import KEPT_BYTES
from .values import Embeddings, EmbedRequest, Ranking, Replies, RerankRequest
from .wire import RetrievalCodec
from .wire.reading import show_raw

MAX_REPLY = 512 * 1024 * 1024
"""The largest accepted reply, in bytes: five times the size of 2,048 vectors of 4,096 numbers in
decimal.
"""


class HttpRetrieval(HttpModel, RetrievalModel):
    """An embedding or reranking model on a wire; ``settings`` are those of ``HttpModel``."""

    def __init__(
        self,
        codec: RetrievalCodec[Any],
        transport: Transport,
        *,
        batch_size: int | None = None,
        prefixes: Mapping[str, str] | None = None,
        keep_raw: bool | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(codec, transport, model=codec.model, base_url=codec.base_url, **settings)
        self._prefixes = dict(prefixes or {})
        self._keep_raw = keep_raw
        self.batch_size = batch_size or self.capabilities.known("max_batch_size") or codec.limit

    async def answer(self, request: Any) -> Any:
        line = self.begin_line(request)
        if line is None:
            return await self._answer(request, None)
        try:
            answer = await self._answer(request, line)
        except BaseException as error:
            line.end(Usage(), lambda: None, error)
            raise
        line.end(answer.usage, lambda: answer.raw, None)
        return answer

    async def _answer(self, request: Any, line: CallLine | None) -> Any:
        began = time.perf_counter()
        try:
            sent = self._prefix(request)
            encoded = self.codec.encode(sent)
            self._report(encoded.warnings, request)
            reply = await self._exchange(encoded, line)
            found = self.codec.decode(reply, sent)
        except ProviderError as error:
            if isinstance(error, StreamInterruptedError):
                error.advice = "Try again."
            # The Infinity server repeats all texts of a request that it rejects.
            texts = [text for text in (getattr(request, "query", ""), *request.inputs) if text]
            cause = error.__cause__ and without_frames(error.__cause__)
            raise self.annotate(error, request, texts).with_traceback(None) from cause
        usage, lost = bound_usage(found.usage)
        answer = replace(
            found,
            usage=usage,
            model=found.model or self.model,
            provider=self.name,
            request_id=request.request_id,
            latency_ms=(time.perf_counter() - began) * 1000,
            warnings=(*encoded.warnings, *lost),
            kept=self._keep(reply),
            sale=find_sale(self),
        )
        late = _find_loss(answer, request)
        return answer if late is None else self._report_late(late, answer, request)

    async def _exchange(self, encoded: Encoded, line: CallLine | None) -> HttpReply:
        """Send a request and return its complete reply; raise an error for an error status."""
        if line is not None:
            line.send(encoded.http)
        async with await self.exchange(encoded.http) as http:
            if line is not None:
                line.receive(http.status)
            if http.status >= 300:
                raise await self.read_failure(http, self.codec, encoded.http.url)
            body = await http.read(MAX_REPLY + 1)
            if len(body) > MAX_REPLY:
                raise InvalidResponseError(f"the reply is longer than {MAX_REPLY} bytes")
            return HttpReply(http.status, http.headers, body)

    def _prefix(self, request: Any) -> Any:
        """Put the input type's prefix before each text, for models trained with prefixes."""
        prefix = self._prefixes.get(getattr(request, "input_type", None) or "")
        if prefix is None:
            return request
        return replace(request, texts=[prefix + text for text in request.texts], input_type=None)

    def _keep(self, reply: HttpReply) -> Replies | None:
        """Return the raw reply, or ``None`` if it is not kept.

        By default, only small replies are kept.
        """
        keeps = len(reply.body) <= KEPT_BYTES if self._keep_raw is None else self._keep_raw
        return Replies((reply.body,), show_raw) if keeps else None

    def _report_late(self, warning: LossWarning, answer: Any, request: Any) -> Any:
        """Report a loss that was found in the reply.

        If the loss is reported as an error, the error contains the answer, which is billed.
        """
        answer = replace(answer, warnings=(*answer.warnings, warning))
        try:
            self._report((warning,), request)
        except ProviderError as error:
            error.response = answer
            raise self.annotate(error, request) from None
        return answer


@final
class HttpEmbedder(HttpRetrieval, Embedder):
    """An embedding model on a wire. To change its behaviour, wrap it in a layer."""


@final
class HttpReranker(HttpRetrieval, Reranker):
    """A reranking model on a wire. To change its behaviour, wrap it in a layer."""


def _find_loss(
    answer: Embeddings | Ranking, request: EmbedRequest | RerankRequest
) -> LossWarning | None:
    """Return what the caller requested and the server silently ignored."""
    if isinstance(answer, Embeddings) and isinstance(request, EmbedRequest):
        # llama.cpp ignores ``dimensions``.
        if request.dimensions in (None, answer.dimensions):
            return None
        return LossWarning(
            "dimensions_ignored",
            "dimensions",
            f"the vectors have {answer.dimensions} numbers, {request.dimensions} were asked for",
        )
    assert isinstance(answer, Ranking)
    assert isinstance(request, RerankRequest)
    # llama.cpp omits the requested documents.
    if (
        not request.return_documents
        or any(warning.path == "return_documents" for warning in answer.warnings)
        or all(each.document is not None for each in answer.results)
    ):
        return None
    return LossWarning(
        "documents_not_returned", "return_documents", "the server did not return the documents"
    )
