"""Handle one request and its reply with raw ASGI messages, which is fast for streamed chunks."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from asyncio import to_thread
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec
from msgspec.structs import replace

from ..errors import (
    InvalidModelError,
    InvalidRequestError,
    OverloadedError,
    ProviderError,
    QuotaExceededError,
    TimedOutError,
    UnavailableError,
    without_frames,
)
from ..events import Event, MessageComplete
from ..messages import LossWarning, Request, new_ulid
from ..middleware.attempts import CallEnd
from ..middleware.redis_limiter import LimiterUnavailableError
from ..provider import Model, Provider, Reply
from ..validate import check_request
from ..wire import Asked, HttpReply, ReplyEncoder, ServerCodec
from ..wire.fields import read_body
from ..wire.seal import holds_sealed
from .access import Bounds, Service
from .accounts import LARGE, Charged, account, charge
from .counting import count_input
from .interruption import Interruption, Receive
from .keys import Key
from .ledger import Lease
from .models import find_losses, fit_reasoning
from .policy import Target, read, refuse_losses, rename_settings, translate
from .routing import show_route
from .signals import release_models
from .stop_sequences import StopCutter
from .stored_responses import KeepingEncoder, Memory, keep
from .tracing import begin_trace

log = logging.getLogger("dragoman")

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Headers for authentication and framing. A request that repeats one of them is rejected, since a
# proxy in front may use the other value (request smuggling).
_SINGLE = frozenset(
    {
        b"authorization",
        b"x-api-key",
        b"x-goog-api-key",
        b"content-length",
        b"content-type",
        b"host",
    }
)
_LENGTH = re.compile("[0-9]{1,19}")
# seconds by which a lease outlasts the reply timeout, so that the end of the call can be recorded
_SPARE = 60.0


class GoneError(Exception):
    """Raised when the client has disconnected, so that no reply can be sent."""


class RouteHandler:
    """Handle the POST requests of one wire."""

    def __init__(self, service: Service, codec: ServerCodec) -> None:
        self._service = service
        self._codec = codec

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return Exchange(self._service, self._codec, scope, receive, send).run()


def read_headers(scope: Scope) -> dict[str, str]:
    """Return the headers by lower-case name; reject a request that repeats a critical header."""
    pairs = scope["headers"]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    if len(headers) < len(pairs):
        names = [name for name, _ in pairs if name in _SINGLE]
        for name in set(names):
            if names.count(name) > 1:
                raise InvalidRequestError(f"the header {name.decode('latin-1')} is there twice")
    return headers


class Exchange:
    """Process one request: admit it, send the reply, and record its usage."""

    __slots__ = (
        "_id",
        "began",
        "charged",
        "codec",
        "complete",
        "encoder",
        "error",
        "first",
        "headers",
        "held",
        "interruption",
        "is_native",
        "key",
        "lease",
        "length",
        "limited",
        "memory",
        "model",
        "models",
        "provider",
        "receive",
        "record",
        "reply",
        "request",
        "response_id",
        "scope",
        "send",
        "service",
        "size",
        "span",
        "started",
        "status",
        "stops",
        "warnings",
    )  # fmt: skip

    def __init__(
        self, service: Service, codec: ServerCodec, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.service = service
        self.codec = codec
        self.scope = scope
        self.receive = receive
        self.send = send
        self._id: str | None = None
        # the stored responses that this request refers to; ``None`` if the gateway stores none
        self.memory: Memory | None = None
        # the id of the background response that this request generates
        self.response_id: str | None = None
        self.began = time.perf_counter()
        self.first: float | None = None
        self.headers: Mapping[str, str] = {}
        self.span: Any = None  # the request's OpenTelemetry span
        self.key: Key | None = None
        self.limited: Key | None = None  # the same key, if it has limits
        self.lease: Lease | None = None
        self.charged: Charged | None = None
        self.model = ""
        self.models = service.models
        self.provider: Provider | None = None
        self.request: Request | None = None
        self.encoder: ReplyEncoder | None = None
        self.warnings: tuple[LossWarning, ...] = ()
        # Whether the client's native fields are sent to a model that uses the same wire.
        self.is_native = True
        # stop sequences that the gateway must apply, because the model's wire cannot
        self.stops: tuple[str, ...] = ()
        # A function that builds the records of a retrieval request.
        self.record: Callable[[float], list[CallEnd]] | None = None
        self.reply: Reply | None = None  # the provider's reply, after the provider was called
        self.complete: MessageComplete | None = None
        self.size = 0  # size of the request's body in bytes
        self.held = 0  # how many bytes of the shared memory budget this request has reserved
        self.length = 0  # number of bytes sent to the client
        self.status = 0
        self.error: ProviderError | None = None
        self.started = False

    async def run(self) -> None:
        """Process the request from start to end; if that fails, reply with an error.

        The only exception that can leave this method is a cancellation by the server.
        """
        self.interruption = Interruption(self.scope, self.receive)
        self.service.metrics.in_flight += 1
        self.service.live.add(self)
        # use the same models for the complete request, even if the configuration is reloaded
        models = self.models = self.service.models
        models.users += 1
        try:
            await self._run()
        except GoneError:
            self.status = self.status or 499
        except asyncio.CancelledError:
            # the client disconnected just as the reply ended
            if not self.interruption.undo():
                raise
            self.status = self.status or 499
        except ProviderError as error:
            await self._refuse(error)
        except LimiterUnavailableError as error:
            log.warning("%s", error)
            await self._refuse(
                OverloadedError(
                    "the gateway cannot check its rate limit at the moment", retry_after=2
                )
            )
        except Exception:
            log.exception("the gateway failed")
            await self._refuse(UnavailableError("the gateway failed; see its log"))
        finally:
            self.service.metrics.in_flight -= 1
            self.service.live.discard(self)
            self.service.release(self.held)
            self.held = 0
            account(self)
            if self.error is not None:
                # Its frames refer to the exchange, which refers to the error: the request would
                # stay in memory until the cyclic collector runs.
                without_frames(self.error)
            await release_models(models)

    async def _run(self) -> None:
        self._identify()
        body = await self._read_body()
        self.size = len(body)
        path = self.scope["path"]
        question = self.codec.read_question(body, path)
        if question is not None:
            known = self._find(question.model).capabilities
            written = question.write(known, int(time.time()))
            await self._reply(HttpReply(200, _JSON, written))
            return
        is_count = self.codec.is_count(path)
        is_large = self.size > LARGE  # large enough to block the event loop
        bounds = self.service.bounds
        fields = await to_thread(_parse, bounds, body) if is_large else _parse(bounds, body)
        if self.codec.keeps_responses and self.service.store is not None:
            if (
                not is_count
                and fields.get("background") is True
                and fields.get("stream") is not True
            ):
                await self._start_background(fields)
                return
            self.memory = Memory(self.service.store, self.owner)
            self.memory.response_id = self.response_id
            fields = await self.memory.recall(fields)
        asked = await to_thread(self._read, body, fields) if is_large else self._read(body, fields)
        del body, fields  # free the memory of the body, since the reply may take minutes
        self.service.release(self.held)
        self.held = 0
        provider = self.provider = self._find(asked.request.model)
        if is_large:
            self.request = await to_thread(self._translate, asked, provider)
        else:
            self.request = self._translate(asked, provider)
        if self.limited is not None:
            await self._count(self.limited, provider)
        if is_count:
            assert self.request is not None
            count, estimated = await count_input(provider, self.request)
            self.warnings += estimated
            await self._reply(HttpReply(200, _JSON, self.codec.write_count(count)))
        else:
            await self._answer(provider, asked)

    # --- admitting the request

    def _identify(self) -> None:
        self.headers = read_headers(self.scope)
        service = self.service
        self.span = begin_trace(service.tracing, self.scope["path"], self.codec.wire, self.headers)
        self.key = service.identify(
            self.headers, service.find_key(self.scope, self.headers, self.codec)
        )
        if self.key is not None and self.key.is_limited:
            self.limited = self.key
        if service.draining:
            raise OverloadedError("the gateway is shutting down", retry_after=1)
        if service.metrics.in_flight > service.bounds.in_flight:
            raise OverloadedError("the gateway has too many requests under way", retry_after=1)
        is_encoded = self.headers.get("content-encoding", "identity") != "identity"
        if is_encoded or not _is_json(self.headers, self.codec):
            raise InvalidRequestError(
                "content-type must be application/json, without a content-encoding", status=415
            )

    async def _read_body(self) -> bytes:
        bounds = self.service.bounds
        length = self.headers.get("content-length", "0")
        # Some ASGI servers do not validate Content-Length, and ``int`` accepts more than HTTP
        # allows.
        if not _LENGTH.fullmatch(length):
            raise InvalidRequestError("content-length must be a number of bytes")
        if int(length) > bounds.body_bytes:
            raise InvalidRequestError(
                f"the body is longer than {bounds.body_bytes} bytes", status=413
            )
        self.interruption.set_timeout(bounds.body_seconds)
        try:
            return await self._receive_body(bounds.body_bytes)
        except asyncio.CancelledError:
            if not self.interruption.undo():
                raise
            raise InvalidRequestError(
                f"no complete body within {bounds.body_seconds:g} seconds", status=408
            ) from None
        finally:
            self.interruption.stop()

    async def _receive_body(self, limit: int) -> bytes:
        pieces: list[bytes] = []
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise GoneError
            piece = message.get("body", b"")
            if self.held + len(piece) > limit:
                raise InvalidRequestError(f"the body is longer than {limit} bytes", status=413)
            self.service.hold(len(piece))
            self.held += len(piece)
            pieces.append(piece)
            if not message.get("more_body"):
                return b"".join(pieces)

    def _read(self, body: bytes, fields: Mapping[str, Any]) -> Asked:
        path = self.scope["path"]
        asked = read(self.codec, dict(self.codec.unwrap(fields, path)), path)
        request = asked.request
        if self._id is None:
            self._id = request.request_id
        elif self._id != request.request_id:
            request = replace(request, request_id=self._id)
            asked = replace(asked, request=request)
        self.is_native = not holds_sealed(body)
        self.service.bounds.check_request(request)
        self.request = request
        return asked

    async def _start_background(self, fields: Mapping[str, Any]) -> None:
        background = self.service.background
        assert background is not None

        async def serve(scope: Scope, receive: Receive, send: Send, response_id: str) -> None:
            exchange = Exchange(self.service, self.codec, scope, receive, send)
            exchange.response_id = response_id
            await exchange.run()

        made = await background.start(self.scope, fields, self.owner, serve)
        await self._reply(HttpReply(200, _JSON, msgspec.json.encode(made)))

    @property
    def id(self) -> str:
        """The id of the request; a request that was not decoded gets one when it is needed."""
        if self._id is None:
            self._id = new_ulid()
        return self._id

    @property
    def owner(self) -> str:
        """The id of the client's key, to which stored responses belong; empty without a key."""
        return "" if self.key is None else self.key.id

    # --- reading and authorising the request

    def _find(self, name: str) -> Provider:
        if self.key is not None and not self.key.allows(name):
            # use the message for unknown names, so that clients cannot find out which models exist
            raise InvalidModelError("no model of this name is served here")
        provider = self.models.find(name)
        self.model = name
        return provider

    def _translate(self, asked: Asked, provider: Provider) -> Request:
        """Check a request, then translate it to the provider's wire and its name for the model.

        Raise ``UnsupportedFeatureError`` if a part of the request would be lost and the
        configuration forbids losses.
        """
        check_request(asked.request, history=False)
        upstream = self.models.find_upstream(self.model)
        has_limit = provider.capabilities.known("max_output_tokens") is not None
        target = Target(self.model, upstream.wires, has_limit)
        made = translate(asked, self.codec, target, is_native=self.is_native)
        self.warnings += made.warnings
        self.stops = made.stops
        request, approximated = fit_reasoning(
            provider, replace(made.request, model=provider.model)
        )
        self.warnings += approximated
        if upstream.refuses_losses or (self.key is not None and self.key.on_loss == "reject"):
            refuse_losses((*self.warnings, *find_losses(provider, request)), self.model)
        provider.check(request)
        return request

    async def _count(self, key: Key, provider: Model) -> None:
        """Count the request against its key's limits; raise an error if a limit is reached."""
        # the operator may have added limits that workers without a shared ledger cannot count
        if not self.service.can_count(key):
            raise QuotaExceededError(
                "this key has limits, and the gateway's workers have no shared ledger to count "
                "them in"
            )
        if key.has_budget and provider.priced_as.find_problem() is not None:
            raise QuotaExceededError(
                "this model has no known price, so this key's budget cannot be kept"
            )
        self.lease = await self.service.ledger.admit(
            key, self.service.bounds.reply_seconds + _SPARE
        )

    # --- sending the reply

    async def _answer(self, provider: Provider, asked: Asked) -> None:
        assert self.request is not None
        issuer = self.models.find_upstream(self.model).issuer
        asked = replace(asked, issuer=issuer, echo=_echo(self.memory, asked))
        encoder = self.codec.encoder(asked, created=int(time.time()))
        if asked.request.stream:
            query = bytes(self.scope.get("query_string", b"")).decode("latin-1")
            encoder = self.codec.fit_stream(encoder, query)
        if self.memory is not None:
            encoder = KeepingEncoder(encoder)
        self.encoder = encoder
        reply = self.reply = provider.open(self.request)
        self.interruption.watch()
        self.interruption.set_timeout(self.service.bounds.reply_seconds)
        try:
            await self._pass_all(encoder, reply)
            last = encoder.end()
        except ProviderError as error:
            last = self._fail(encoder, error)
        except asyncio.CancelledError:
            # ``cancel`` estimates the tokens that were used so far, so that they are charged
            if self.size > LARGE:
                await to_thread(reply.cancel)
            else:
                reply.cancel()
            last = self._cancelled(encoder)
        finally:
            self.interruption.stop()
            await reply.aclose()
        await charge(self)
        if isinstance(encoder, KeepingEncoder) and self.memory is not None:
            await keep(self.memory, encoder.response)
        await self._finish(encoder, last)

    async def _pass_all(self, encoder: ReplyEncoder, reply: Reply) -> None:
        if not self.stops:
            while batch := await reply.next():
                await self._pass_on(encoder, batch)
            return
        cutter = StopCutter(self.stops)
        while batch := await reply.next():
            passed: list[Event] = cutter.feed(batch)
            if cutter.found is not None:
                ending = [
                    each for each in [*batch, *reply.cancel()] if type(each) is MessageComplete
                ]
                passed += [cutter.close(each) for each in ending[:1]]
            if passed:
                await self._pass_on(encoder, passed)
            if cutter.found is not None:
                return

    async def _pass_on(self, encoder: ReplyEncoder, batch: Sequence[Event]) -> None:
        last = batch[-1]
        if type(last) is MessageComplete:
            self.complete = last
        if self.first is None:
            self.first = time.perf_counter() - self.began
            self.warnings += () if self.reply is None else self.reply.warnings
        data = (
            encoder.feed(batch[0])
            if len(batch) == 1
            else b"".join([encoder.feed(event) for event in batch])
        )
        if data:
            if self.complete is not None:
                await charge(self)
            if not self.started:
                headers = {"content-type": encoder.content_type, "cache-control": "no-cache"}
                await self.send(self._begin(200, headers))
            self.length += len(data)
            await self.send({"type": "http.response.body", "body": data, "more_body": True})

    def _fail(self, encoder: ReplyEncoder, error: ProviderError) -> bytes:
        """Return the bytes that end a failed reply; raise the error if the reply has not begun."""
        self.error = error
        if encoder.content_type == "application/json" or self.started:
            return encoder.fail(error)
        raise error

    def _cancelled(self, encoder: ReplyEncoder) -> bytes:
        if self.interruption.undo():
            if self.interruption.is_gone:
                raise GoneError
            return self._fail(encoder, too_slow())
        if not self.started:
            raise OverloadedError("the gateway is shutting down", retry_after=1)
        return self._fail(encoder, OverloadedError("the gateway is shutting down"))

    async def _finish(self, encoder: ReplyEncoder, last: bytes) -> None:
        if not self.started:
            await self._reply(HttpReply(200, {"content-type": encoder.content_type}, last))
            return
        self.length += len(last)
        await self.send({"type": "http.response.body", "body": last, "more_body": False})

    # --- receiving and sending bytes

    async def _refuse(self, error: ProviderError) -> None:
        self.error = error
        error.request_id = error.request_id or self.id
        error.message = rename_settings(self.codec, error.message)
        if self.started:  # the status has been sent already, so an error response is impossible
            return
        await charge(self)  # charge failed attempts too, since some providers bill them
        reply = self.codec.error(error)
        if error.status in (408, 413) or self.service.draining:
            reply = replace(reply, headers={**reply.headers, "connection": "close"})
        await self._reply(reply)

    async def _reply(self, reply: HttpReply) -> None:
        self.length = len(reply.body)
        headers = {**reply.headers, "content-length": str(self.length)}
        await self.send(self._begin(reply.status, headers))
        await self.send({"type": "http.response.body", "body": reply.body, "more_body": False})

    def _begin(self, status: int, headers: Mapping[str, str]) -> dict[str, Any]:
        """Return the message that begins the reply."""
        self.started = True
        self.status = status
        own = {"x-request-id": self.id}
        if self.codec.request_id_header is not None:
            own[self.codec.request_id_header] = self.id
        if self.limited is not None:
            own |= self.service.ledger.describe_limits(self.limited)
        if self.warnings:
            own["x-dragoman-warnings"] = _shown(self.warnings)
        if self.reply is not None and self.models.find_upstream(self.model).is_group:
            own |= show_route(self.reply)
        pairs = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in {**headers, **own}.items()
        ]
        return {"type": "http.response.start", "status": status, "headers": pairs}


_JSON = {"content-type": "application/json"}


def too_slow() -> TimedOutError:
    """Return the error for a reply that takes longer than ``Bounds.reply_seconds``."""
    return TimedOutError("the reply took longer than this gateway allows", which="total")


def _is_json(headers: Mapping[str, str], codec: ServerCodec) -> bool:
    """Return whether a body is declared as JSON.

    A web page can send other media types to any address without a preflight request (CSRF), but
    not JSON. Some clients of Ollama (curl -d, litellm) send no media type or that of an HTML form,
    and Ollama accepts their requests. The gateway accepts them on the Ollama wire too, unless the
    headers show that a browser sent the request.
    """
    given = headers.get("content-type", "")
    if given == "application/json":
        return True
    kind = given.partition(";")[0].strip().lower()
    if kind == "application/json" or not codec.accepts_forms:
        return kind == "application/json"
    is_page = any(
        name in headers for name in ("origin", "referer", "sec-fetch-site", "sec-fetch-mode")
    )
    return kind in ("", "application/x-www-form-urlencoded") and not is_page


def _echo(memory: Memory | None, asked: Asked) -> dict[str, Any]:
    """Return the request fields that the reply repeats."""
    return asked.echo if memory is None else memory.echo()


def _parse(bounds: Bounds, body: bytes) -> dict[str, Any]:
    bounds.check_body(body)
    return dict(read_body(body).data)


# maximum length of the warnings header; clients limit all headers together to 8 KB or more
_HEADER = 4000


def _shown(warnings: Sequence[LossWarning]) -> str:
    """Return the value of a header that lists the codes and paths of losses, without client data.

    Losses that do not fit into the header are only counted.
    """
    said = [f"{warning.code} {warning.path}" for warning in warnings]
    fitting = bisect_right(list(accumulate([len(each) + 2 for each in said])), _HEADER)
    shown = "; ".join(
        [*said[:fitting], f"{len(said) - fitting} more"] if fitting < len(said) else said
    )
    return "".join([letter if " " <= letter <= "~" else "?" for letter in shown])
