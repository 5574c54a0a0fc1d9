"""Handle a request: identify, read, resolve, translate, call, write, account.

In the gateway, ``front`` is the codec of the client's wire, and ``upstream`` the model's side.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from ..errors import (
    InvalidRequestError,
    OverloadedError,
    ProviderError,
    UnavailableError,
    without_frames,
)
from ..events import Assembler, Usage
from ..messages import Request
from ..middleware.cache import CACHE, CACHE_SCOPE
from ..middleware.redis_limiter import LimiterUnavailableError
from ..middleware.translation import ResolvedModel, check_translated, translate_for
from ..provider import Provider
from ..wire import Asked, ReplyEncoder, ServerCodec
from ..wire.server import ModelQuestion
from .access import Caller, Scope, Service, read_headers, resolve_model
from .background import is_background
from .counting import count_input
from .interruption import GoneError, Receive
from .kept_state import KeptState
from .keys import Key
from .labels import read_labels, read_tag_header, write_tag
from .models import Models
from .reading import Incoming, decode_request, parse_body
from .recent_responses import RecentOfLane
from .request_account import Account, ChatCall
from .signals import release_models
from .stored_responses import Memory
from .tracing import begin_trace
from .writing import CACHE_HEADER, ReplyWriter, Send, write_events

log = logging.getLogger("dragoman")

Answer = Callable[[Incoming, ReplyWriter, Account, Models], Awaitable[None]]


async def handle(
    service: Service,
    front: ServerCodec,
    scope: Scope,
    receive: Receive,
    send: Send,
    answer: Answer,
) -> None:
    """Answer a request, with an error if that fails, and account for it.

    The only exception that can leave this function is a cancellation by the server.
    """
    account = Account(service, front.wire)
    incoming = Incoming(service, scope, receive)
    writer = ReplyWriter(service, front, account, send)
    service.metrics.in_flight += 1
    service.live.add(account)
    # use the same models for the complete request, even if the configuration is reloaded
    models = service.models
    models.users += 1
    try:
        await answer(incoming, writer, account, models)
    except GoneError:
        account.status = account.status or 499
    except asyncio.CancelledError:
        # the client disconnected just as the reply ended
        if not incoming.undo():
            raise
        account.status = account.status or 499
    except ProviderError as error:
        await writer.refuse(error)
    except LimiterUnavailableError as error:
        log.warning("%s", error)
        await writer.refuse(
            OverloadedError("the gateway cannot check its rate limit at the moment", retry_after=2)
        )
    except Exception:
        log.exception("the gateway failed")
        await writer.refuse(UnavailableError("the gateway failed; see its log"))
    finally:
        service.metrics.in_flight -= 1
        service.live.discard(account)
        incoming.close()
        account.close()
        if account.error is not None:
            # Its frames refer to the account, which refers to the error: the request would stay
            # in memory until the cyclic collector runs.
            without_frames(account.error)
        await release_models(models)


def identify(
    service: Service,
    front: ServerCodec,
    scope: Scope,
    account: Account,
    own: Key | None = None,
) -> Caller:
    """Return who sent a request; begin its trace first, so that it records a denied access.

    ``own`` is what a person of the web pages may do who logged in and sent no key.
    """
    headers = read_headers(scope)
    account.span = begin_trace(service.tracing, scope["path"], front.wire, headers)
    if own is None:
        account.caller = service.identify(scope, headers, front)
    else:
        account.caller = Caller(headers, own, own if own.is_limited else None)
    read_tag_header(account, headers)
    return account.caller


async def _reply_count(
    front: ServerCodec,
    provider: Provider,
    request: Request,
    writer: ReplyWriter,
    account: Account,
) -> None:
    """Answer a request that asks for the number of its tokens."""
    count, estimated = await count_input(provider, request)
    account.warnings += estimated
    await writer.reply_json(front.write_count(count))


def _write_nothing(encoder: ReplyEncoder, request: Request) -> bytes:
    """Return a reply without content, for a request that no model answers."""
    out = Assembler(request_id=request.request_id, model=request.model)
    out.start()
    out.usage(Usage(0, 0))
    out.finish("stop")
    return b"".join(map(encoder.feed, out.take())) + encoder.end()


def _open_message(
    front: ServerCodec, fields: dict[str, Any], recent: RecentOfLane | None
) -> tuple[dict[str, Any], bool]:
    """Return the fields of a request, and whether a model has to answer it.

    With ``recent``, the fields are those of a message of a WebSocket.
    """
    if recent is None or front.socket is None:
        return fields, True
    return front.socket.read_request(fields)


async def _keep(memory: Memory | None, last: bytes, account: Account) -> bytes:
    """Keep the response in the end of a reply, if anything keeps it; return the end."""
    if memory is None:
        return last
    kept, lost = await memory.keep(last)
    account.warnings += lost
    return kept


def _find_model(name: str, models: Models, caller: Caller, account: Account) -> ResolvedModel:
    """Return the model that a caller asks for, and note it in the account."""
    found = resolve_model(models, caller, name)
    account.model = found.name
    return found


def answer_question(
    question: ModelQuestion, models: Models, caller: Caller, account: Account
) -> bytes:
    """Return the reply to a request about a model, which is not called."""
    found = _find_model(question.model, models, caller, account)
    return question.write(found.provider.capabilities, int(time.time()))


def _scope_cache(request: Request, models: Models, name: str, caller: Caller) -> Request:
    """Return a request that uses the entries of the cache that its caller may use.

    A client leaves the cache out, or replaces its entry, with the header ``x-dragoman-cache``.
    """
    scope = models.find_cache_scope(name, caller.key)
    if scope is None:
        return request
    mode = caller.headers.get(CACHE_HEADER, "on")
    if mode not in ("on", "off", "refresh"):
        raise InvalidRequestError(f"{CACHE_HEADER} must be on, off or refresh")
    return replace(request, metadata={**request.metadata, CACHE: mode, CACHE_SCOPE: scope})


def _open_call(resolved: ResolvedModel, request: Request, writer: ReplyWriter) -> ChatCall:
    """Open the call of a model; note which headers the head of its reply needs."""
    call = ChatCall(resolved.provider, request)
    if CACHE_SCOPE in request.metadata:
        writer.cached = call.reply
    if resolved.upstream.is_group:
        writer.route = call.reply
    return call


class ChatHandler:
    """Handle the POST requests of one wire that call a chat model or ask about one."""

    def __init__(self, service: Service, front: ServerCodec) -> None:
        self._service = service
        self._front = front

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return handle(self._service, self._front, scope, receive, send, self._answer)

    async def answer_message(
        self, scope: Scope, receive: Receive, send: Send, recent: RecentOfLane
    ) -> None:
        """Answer a message of a WebSocket, like a request that is posted."""
        answer = partial(self._answer, recent=recent)
        await handle(self._service, self._front, scope, receive, send, answer)

    async def _answer(
        self,
        incoming: Incoming,
        writer: ReplyWriter,
        account: Account,
        models: Models,
        response_id: str | None = None,
        recent: RecentOfLane | None = None,
    ) -> None:
        """Identify the caller, decode the request and answer it; note each step in ``account``.

        ``response_id`` is the id of the background response; ``recent`` is given for messages.
        """
        service = self._service
        front = self._front
        caller = identify(service, front, incoming.scope, account)
        body = await incoming.receive_body(caller.headers, front)
        account.size = len(body)
        question = front.read_question(body, incoming.path)
        if question is not None:
            await writer.reply_json(answer_question(question, models, caller, account))
            return
        fields = read_labels(account, await incoming.work(parse_body, body, service.bounds))
        fields, generates = _open_message(front, fields, recent)
        memory = self._make_memory(caller, response_id, recent)
        if memory is not None:
            if is_background(fields) and not front.is_count(incoming.path):
                await self._start_background(incoming, body, fields, account, models, writer)
                return
            fields = await memory.recall(fields)
        read = await incoming.work(
            decode_request, body, fields, incoming.path, front, service, caller
        )
        own = read.is_native and (memory is None or not memory.holds_sealed)
        del body, fields  # free the memory of the body, since the reply may take minutes
        incoming.release_body()
        kept = KeptState(service.store, caller.owner, front, service.reasoning)
        asked = account.note_request(await kept.recall(read.asked))
        resolved = _find_model(asked.request.model, models, caller, account)
        encoder = self._make_encoder(asked, resolved, incoming.scope, memory)
        if not generates:
            last = _write_nothing(encoder, asked.request)
            await writer.finish(encoder, await _keep(memory, last, account))
            return
        translated = await incoming.work(translate_for, resolved, asked, front, own, caller.drops)
        account.warnings = (*kept.lost, *translated.warnings)
        await incoming.work(check_translated, resolved, translated, caller.refuses_losses)
        is_count = front.is_count(incoming.path)
        await account.admit(resolved.provider, translated.request, translated, is_free=is_count)
        if is_count:
            await _reply_count(front, resolved.provider, translated.request, writer, account)
            return
        request = _scope_cache(translated.request, models, resolved.name, caller)
        call = account.call = _open_call(resolved, request, writer)
        incoming.watch(service.bounds.reply_seconds)
        last = await write_events(call, encoder, translated.stops, incoming, writer)
        await account.settle_early()
        account.warnings += await kept.keep(asked.request, call.complete)
        await writer.finish(encoder, await _keep(memory, last, account))

    async def _start_background(
        self,
        incoming: Incoming,
        body: bytes,
        fields: Mapping[str, Any],
        account: Account,
        models: Models,
        writer: ReplyWriter,
    ) -> None:
        """Start a background response; first reject what fails before a model is called."""
        service = self._service
        front = self._front
        caller = account.caller
        fields = write_tag(account, fields)
        background = service.background
        assert service.store is not None
        assert background is not None
        recalled = await Memory(service.store, caller.owner).recall(fields)
        read = await incoming.work(
            decode_request, body, recalled, incoming.path, front, service, caller
        )
        resolved = resolve_model(models, caller, read.asked.request.model)
        translated = await incoming.work(
            translate_for, resolved, read.asked, front, read.is_native, caller.drops
        )
        await incoming.work(check_translated, resolved, translated, caller.refuses_losses)

        async def serve(scope: Scope, receive: Receive, send: Send, response_id: str) -> None:
            answer = partial(self._answer, response_id=response_id)
            await handle(self._service, self._front, scope, receive, send, answer)

        made = await background.start(incoming.scope, fields, caller.owner, serve)
        await writer.reply_json(msgspec.json.encode(made))

    def _make_memory(
        self, caller: Caller, response_id: str | None, recent: RecentOfLane | None
    ) -> Memory | None:
        """Return what recalls earlier responses; None for a wire or a gateway without them."""
        store = self._service.store
        if recent is None and (store is None or not self._front.keeps_responses):
            return None
        return Memory(store, caller.owner, response_id, recent)

    def _make_encoder(
        self, asked: Asked, resolved: ResolvedModel, scope: Scope, memory: Memory | None
    ) -> ReplyEncoder:
        echo = asked.echo if memory is None else memory.echo()
        asked = replace(asked, echo=echo)
        encoder = self._front.encoder(asked, created=int(time.time()))
        began = time.perf_counter()
        encoder.elapsed = lambda: time.perf_counter() - began
        encoder.served_model = asked.request.model
        encoder.is_own = resolved.upstream.wires <= {self._front.wire}
        if asked.request.stream:
            query = bytes(scope.get("query_string", b"")).decode("latin-1")
            return self._front.fit_stream(encoder, query)
        return encoder
