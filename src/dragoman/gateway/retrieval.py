"""Serve embedding and reranking with the same keys, limits and records as chat."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from msgspec.structs import replace

from ..errors import InvalidModelError, InvalidRequestError, OverloadedError
from ..middleware.attempts import Attempt, CallEnd
from ..retrieval import Embeddings, EmbedRequest, Ranking, RerankRequest, RetrievalModel
from ..retrieval.wire.server import AskedRetrieval, RetrievalServer
from .access import Service
from .accounts import LARGE, charge, describe_inbound
from .exchange import Exchange, GoneError, Scope, Send, too_slow
from .interruption import Receive

MAX_TEXTS = 10_000
"""The maximum number of texts or documents in one client request."""


class RetrievalHandler:
    """Handle the POST requests of one operation (embed or rerank) of a wire."""

    def __init__(self, service: Service, codec: RetrievalServer) -> None:
        self._service = service
        self._codec = codec

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await RetrievalExchange(self._service, self._codec, scope, receive, send).run()


class RetrievalExchange(Exchange):
    """Process one embedding or reranking request: admit it, reply, and record its usage."""

    __slots__ = ("answer", "asked", "found", "retrieval")

    def __init__(
        self, service: Service, codec: RetrievalServer, scope: Scope, receive: Receive, send: Send
    ) -> None:
        # typed as Any, since ``Exchange`` uses only the wire, the errors and the keys of the codec
        front: Any = codec
        super().__init__(service, front, scope, receive, send)
        self.retrieval = codec
        self.record = self._record_call
        self.asked: EmbedRequest | RerankRequest | None = None
        self.found: RetrievalModel | None = None
        self.answer: Embeddings | Ranking | None = None

    async def _run(self) -> None:
        self._identify()
        body = await self._read_body()
        self.size = len(body)
        is_large = self.size > LARGE  # large enough to block the event loop
        asked = await asyncio.to_thread(self._decode, body) if is_large else self._decode(body)
        del body
        self.service.release(self.held)
        self.held = 0
        model = self._find_model(asked.request.model)
        if self.limited is not None:
            await self._count(self.limited, model)
        self.asked = replace(asked.request, model=model.model, request_id=self.id)
        self.found = model
        answer = self.answer = await self._ask(model, self.asked)
        self.warnings += answer.warnings
        written = replace(asked, request=self.asked)
        reply = await self._write(answer, written)
        await charge(self)
        await self._reply(reply)

    def _decode(self, body: bytes) -> AskedRetrieval:
        self.service.bounds.check_body(body)
        asked = self.retrieval.decode(body, self.scope["path"])
        if len(asked.request.inputs) > MAX_TEXTS:
            raise InvalidRequestError(f"the request has more than {MAX_TEXTS} texts", status=413)
        self.warnings = asked.warnings
        return asked

    def _find_model(self, name: str) -> RetrievalModel:
        if self.key is not None and not self.key.allows(name):
            raise InvalidModelError("no model of this name is served here")
        model = self.models.find_retrieval(name, self.retrieval.operation)
        self.model = name
        return model

    async def _ask(self, model: Any, request: Any) -> Any:
        self.interruption.watch()
        self.interruption.set_timeout(self.service.bounds.reply_seconds)
        try:
            return await model.send(request)
        except asyncio.CancelledError:
            if not self.interruption.undo():
                raise OverloadedError("the gateway is shutting down", retry_after=1) from None
            raise GoneError if self.interruption.is_gone else too_slow() from None
        finally:
            self.interruption.stop()

    async def _write(self, answer: Embeddings | Ranking, asked: AskedRetrieval) -> Any:
        """Encode a reply; use a thread if the reply is large enough to block the event loop."""
        large = isinstance(answer, Embeddings) and answer.vectors.data.nbytes > 64 * 1024
        encode = self.retrieval.encode
        return (
            await asyncio.to_thread(encode, answer, asked, self.model)
            if large
            else encode(answer, asked, self.model)
        )

    def _record_call(self, seconds: float) -> list[CallEnd]:
        """Return a list with one call record; the list is empty if no model was called."""
        if self.asked is None or self.found is None:
            return []
        content = self.service.calls is not None and self.service.calls.include_content
        attempt = Attempt(
            self.found, self.asked, include_content=content, at=time.time() - seconds
        )  # fmt: skip
        attempt.answer = self.answer
        attempt.stop(None if self.answer is not None else self.error or asyncio.CancelledError())
        attempt.began, attempt.ended = 0.0, seconds
        return [attempt.end(inbound=describe_inbound(self))]
