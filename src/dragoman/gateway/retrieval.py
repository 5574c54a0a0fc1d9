"""Serve embedding and reranking with the same stages, keys, limits and records as chat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any

from msgspec.structs import replace

from ..errors import InvalidRequestError
from ..middleware.attempts import Attempt, Counted
from ..retrieval import Embeddings, EmbedRequest, Ranking, RerankRequest, RetrievalModel
from ..retrieval.wire.server import AskedRetrieval, RetrievalServer
from ..wire import HttpReply
from .access import Bounds, Scope, Service
from .exchange import handle, identify
from .interruption import Receive
from .models import Models
from .reading import Incoming
from .request_account import Account, ModelCall
from .writing import ReplyWriter, Send

MAX_TEXTS = 10_000
"""The maximum number of texts or documents in one client request."""


class RetrievalHandler:
    """Handle the POST requests of one operation (embed or rerank) of a wire."""

    def __init__(self, service: Service, codec: RetrievalServer) -> None:
        self._service = service
        self._codec = codec
        # typed as Any, since the shared stages use only the wire, the errors and the keys
        self._front: Any = codec

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return handle(self._service, self._front, scope, receive, send, self._answer)

    async def _answer(
        self, incoming: Incoming, writer: ReplyWriter, account: Account, models: Models
    ) -> None:
        """Identify the caller, decode the request and answer it; note each step in ``account``."""
        service = self._service
        codec = self._codec
        caller = identify(service, self._front, incoming.scope, account)
        body = await incoming.receive_body(caller.headers, self._front)
        account.size = len(body)
        asked = await incoming.work(_decode, codec, body, incoming.path, service.bounds)
        account.warnings = asked.warnings
        del body
        incoming.release_body()
        name = asked.request.model
        caller.check_model(name)
        served = models.resolve(name)
        model = models.find_retrieval(served, codec.operation)
        model = models.guard(model, served, caller.key)
        account.model = served
        await account.admit(model, asked.request)
        request = replace(asked.request, model=model.model, request_id=account.id)
        call = account.call = _RetrievalCall(model, request)
        call.include_content = service.calls is not None and service.calls.include_content
        incoming.watch(service.bounds.reply_seconds)
        answer = await call.send(incoming)
        account.warnings += answer.warnings
        reply = await _write(codec, answer, replace(asked, request=request), name)
        await account.settle_early()
        await writer.reply(reply)


def _decode(codec: RetrievalServer, body: bytes, path: str, bounds: Bounds) -> AskedRetrieval:
    bounds.check_body(body)
    asked = codec.decode(body, path)
    if len(asked.request.inputs) > MAX_TEXTS:
        raise InvalidRequestError(f"the request has more than {MAX_TEXTS} texts", status=413)
    return asked


async def _write(
    codec: RetrievalServer, answer: Embeddings | Ranking, asked: AskedRetrieval, name: str
) -> HttpReply:
    """Encode a reply; use a thread if the reply is large enough to block the event loop."""
    if isinstance(answer, Embeddings) and answer.vectors.data.nbytes > 64 * 1024:
        return await asyncio.to_thread(codec.encode, answer, asked, name)
    return codec.encode(answer, asked, name)


class _RetrievalCall(ModelCall):
    include_content = False
    _answer: Embeddings | Ranking | None = None

    def __init__(self, model: RetrievalModel, request: EmbedRequest | RerankRequest) -> None:
        self._model: Any = model
        self._request = request

    async def send(self, incoming: Incoming) -> Embeddings | Ranking:
        """Send the request and return the answer; stop if the client disconnects."""
        try:
            answer: Embeddings | Ranking = await self._model.send(self._request)
        except asyncio.CancelledError:
            raise incoming.explain() from None
        finally:
            incoming.stop()
        self._answer = answer
        return answer

    def make_records(self, account: Account, seconds: float) -> Sequence[Counted]:
        content = self.include_content
        at = time.time() - seconds
        attempt = Attempt(self._model, self._request, include_content=content, at=at)
        attempt.answer = self._answer
        attempt.stop(
            None if self._answer is not None else account.error or asyncio.CancelledError()
        )
        attempt.began = 0.0
        attempt.ended = seconds
        return [attempt.end(inbound=account.describe())]
