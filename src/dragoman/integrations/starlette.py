"""Return a model's replies as responses of a Starlette or FastAPI application.

::

    @app.post("/chat")
    async def chat(prompt: str) -> Response:
        return await sse_response(model.stream(prompt))

Each function waits for the first event before it returns, so that an error of the model becomes an
HTTP status with a JSON body. A later error becomes the last event of the body, and the connection
is then closed without the end of the body, so that the reply does not look complete. If the client
disconnects, the call to the model is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from ..errors import ProviderError, advise_import

with advise_import(
    "dragoman.integrations.starlette needs the extra: pip install 'dragoman[starlette]'"
):
    from starlette.responses import Response, StreamingResponse
    from starlette.types import Receive, Scope, Send

from ..events import Event, encode_event
from ..provider import EventStream
from ..wire.server_errors import headers_of, message_of, status_of
from .ui_messages import UIMessageChunks

__all__ = ["ndjson_response", "sse_response", "ui_message_stream_response"]

# HTTP statuses that a caller can act on. Other statuses, such as 401 or 404, concern the
# application's own key or model, and would mislead a client about the application.
_KEPT = frozenset({400, 413, 422, 429, 503, 504})
_SSE = "text/event-stream"
# These headers keep proxies from buffering events (nginx) and from caching the reply.
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def sse_response(stream: EventStream[Any]) -> Response:
    """Return the events as server-sent events, one JSON object each.

    The last event is ``message.complete`` with ``finish_reason`` and ``usage``, or ``{"type":
    "error", "error": {...}}``.
    """
    return await _respond(stream, _Events(), _SSE)


async def ndjson_response(stream: EventStream[Any]) -> Response:
    """Return the events as JSON lines; the last line is the same object as in ``sse_response``."""
    return await _respond(stream, _Events(), "application/x-ndjson")


async def ui_message_stream_response(
    stream: EventStream[Any], *, message_id: str | None = None
) -> Response:
    """Return the reply as a UI message stream, which ``useChat`` of the AI SDK reads.

    The finish reason, usage and warnings are in the metadata of the message. Omit ``message_id``
    if the client executes tools and sends their results, so that the client continues its last
    message.
    """
    headers = {"x-vercel-ai-ui-message-stream": "v1"}
    return await _respond(stream, _UIMessages(message_id), _SSE, headers)


# --- the JSON objects of a reply ---------------------------------------------------------------


class _Events:
    """Send each event unchanged. The last event marks the end of the reply."""

    def convert(self, event: Event) -> list[Any]:
        return [msgspec.Raw(encode_event(event))]

    def finish(self) -> list[Any]:
        return []

    def fail(self, error: ProviderError) -> list[Any]:
        return [{"type": "error", **_describe(error)}]


class _UIMessages(_Events):
    """Send the chunks of a UI message stream, and a mark at the end."""

    def __init__(self, message_id: str | None) -> None:
        self._chunks = UIMessageChunks(message_id)

    def convert(self, event: Event) -> list[Any]:
        return self._chunks.convert(event)

    def finish(self) -> list[Any]:
        return [*self._chunks.finish(), msgspec.Raw(b"[DONE]")]

    def fail(self, error: ProviderError) -> list[Any]:
        return self._chunks.fail(_write_message(error))


def _describe(error: ProviderError) -> dict[str, Any]:
    described: dict[str, Any] = {
        "type": error.category,
        "kind": error.kind,
        "message": _write_message(error),
        "retryable": error.transient,
        "request_id": error.request_id,
    }
    if error.response is not None:  # the tokens that the call used before it failed
        described["usage"] = error.response.usage
    return {"error": described}


def _write_message(error: ProviderError) -> str:
    """Return an error's redacted message, or its category if the message may quote a prompt."""
    return message_of(error) if error.quotable else error.category


# --- sending the response ----------------------------------------------------------------------


async def _respond(
    stream: EventStream[Any], form: _Events, media_type: str, headers: dict[str, str] | None = None
) -> Response:
    try:
        first = await anext(stream, None)
    except ProviderError as error:
        return Response(
            msgspec.json.encode(_describe(error)), _choose_status(error), headers_of(error)
        )
    if first is None:
        raise RuntimeError("the stream has been read to its end: pass one that has not been read")
    return _StreamedReply(first, stream, form, {**_HEADERS, **(headers or {})}, media_type)


def _choose_status(error: ProviderError) -> int:
    # Some servers report an overload with 429. Keep this status; do not replace it with 503.
    status = 429 if error.status == 429 else status_of(error)
    if status in _KEPT:
        return status
    return error.status if error.status is not None and 500 <= error.status <= 599 else 502


class _StreamedReply(StreamingResponse):
    """Send a reply as it arrives, and cancel it as soon as the client disconnects.

    On servers with ASGI 2.4 or later, Starlette notices a disconnect only when it sends the next
    event. A model can think for minutes before that event, so this class watches for the
    disconnect itself.
    """

    def __init__(
        self,
        first: Event,
        stream: EventStream[Any],
        form: _Events,
        headers: dict[str, str],
        media_type: str,
    ) -> None:
        super().__init__(self._write(first, form), headers=headers, media_type=media_type)
        self._stream = stream

    async def _write(self, first: Event, form: _Events) -> AsyncIterator[bytes]:
        yield self._encode(form.convert(first))
        try:
            async for event in self._stream:
                yield self._encode(form.convert(event))
        except ProviderError as error:
            yield self._encode(form.fail(error))
            # after an exception, the server logs the error and closes the connection before the
            # body is complete
            raise
        yield self._encode(form.finish())

    def _encode(self, objects: list[Any]) -> bytes:
        before, after = (b"data: ", b"\n\n") if self.media_type == _SSE else (b"", b"\n")
        return b"".join([before + msgspec.json.encode(each) + after for each in objects])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self.stream_response(send))
        watching = asyncio.create_task(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            watching.cancel()
            await asyncio.wait((sending, watching))
            await self._stream.aclose()
        for task in (sending, watching):
            failure = None if task.cancelled() else task.exception()
            # a server raises OSError if the client has disconnected
            if failure is not None and not isinstance(failure, OSError):
                raise failure
        if self.background is not None:
            await self.background()
