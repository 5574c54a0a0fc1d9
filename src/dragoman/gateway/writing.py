"""The stage that writes a reply with raw ASGI messages, which is fast for streamed chunks."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from itertools import accumulate
from typing import Any

from msgspec.structs import replace

from ..errors import ProviderError
from ..events import Event, MessageComplete
from ..messages import LossWarning
from ..provider import Reply
from ..wire import HttpReply, ReplyEncoder, ServerCodec
from ..wire.policy import rename_settings
from .access import Service
from .lost_reasoning import advise
from .reading import Incoming
from .request_account import Account, ChatCall, find_switches
from .stop_sequences import StopCutter

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# maximum length of the warnings header; clients limit all headers together to 8 KB or more
_HEADER = 4000
_ROUTE = 1000  # maximum length of a header that names models


CACHE_HEADER = "x-dragoman-cache"
"""The header in which a request chooses how it uses the cache, and a reply states how it did."""


class ReplyWriter:
    """Write the reply to a request, and note in its account what was sent."""

    __slots__ = ("_account", "_front", "_send", "_service", "cached", "route")

    def __init__(self, service: Service, front: ServerCodec, account: Account, send: Send) -> None:
        self._service = service
        self._front = front
        self._account = account
        self._send = send
        # the reply of a group of models, if the head has to name the model that answers
        self.route: Reply | None = None
        # the reply of a model with a cache, if the head has to state whether it was stored
        self.cached: Reply | None = None

    async def reply(self, reply: HttpReply) -> None:
        """Write a complete reply."""
        self._account.length = len(reply.body)
        headers = {**reply.headers, "content-length": str(len(reply.body))}
        await self._send(self._begin(reply.status, headers))
        await self._send({"type": "http.response.body", "body": reply.body, "more_body": False})

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Write the head of a reply whose body is passed on as it arrives."""
        await self._send(self._begin(status, headers))

    async def write(self, data: bytes) -> None:
        """Write the next bytes of a body."""
        self._account.length += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        """Write the last bytes of a body."""
        self._account.length += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def reply_json(self, body: bytes) -> None:
        """Write a complete reply with the status 200."""
        await self.reply(HttpReply(200, {"content-type": "application/json"}, body))

    async def refuse(self, error: ProviderError) -> None:
        """Write an error; if a reply has begun, write nothing, so that the reply is cut off."""
        account = self._account
        account.error = error
        error.request_id = error.request_id or account.id
        error.message = rename_settings(self._front, error.message)
        advise(error)
        if account.status:
            return
        await account.settle_early()  # count failed attempts too, since some providers bill them
        reply = self._front.error(error)
        if error.status in (408, 413) or self._service.draining:
            reply = replace(reply, headers={**reply.headers, "connection": "close"})
        await self.reply(reply)

    async def pass_on(
        self, call: ChatCall, encoder: ReplyEncoder, events: Sequence[Event]
    ) -> None:
        """Write some events of a reply; before the last of them, settle the call."""
        account = self._account
        last = events[-1]
        if type(last) is MessageComplete:
            call.complete = last
        if call.first is None:
            call.first = time.perf_counter() - account.began
        data = b"".join(map(encoder.feed, events))
        if data:
            if call.complete is not None:
                await account.settle_early()
            if not account.status:
                headers = {"content-type": encoder.content_type, "cache-control": "no-cache"}
                await self._send(self._begin(200, headers))
            account.length += len(data)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def fail(self, encoder: ReplyEncoder, error: ProviderError) -> bytes:
        """Return the bytes that end a failed reply; raise the error if the reply has not begun."""
        account = self._account
        account.error = error
        if encoder.content_type != "application/json" and not account.status:
            raise error
        last = encoder.fail(error)
        account.is_passed_on = encoder.unsound is not None
        return last

    async def finish(self, encoder: ReplyEncoder, last: bytes) -> None:
        """Write the rest of a reply: its end, or all of it if nothing has been written yet."""
        if not self._account.status:
            await self.reply(HttpReply(200, {"content-type": encoder.content_type}, last))
            return
        self._account.length += len(last)
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    def _begin(self, status: int, headers: Mapping[str, str]) -> dict[str, Any]:
        """Return the message that begins the reply."""
        account = self._account
        account.status = status
        own = {"x-request-id": account.id}
        if self._front.request_id_header is not None:
            own[self._front.request_id_header] = account.id
        if account.caller.limited is not None:
            own |= self._service.ledger.describe_limits(account.caller.limited)
        if losses := account.losses:
            own["x-dragoman-warnings"] = _shown(losses)
        if self.cached is not None:
            own[CACHE_HEADER] = "hit" if self.cached.is_cached else "miss"
        if self.route is not None:
            own["x-dragoman-served-by"] = _plain(f"{self.route.provider}:{self.route.model}")
            if tried := [f"{each.from_} {each.reason}" for each in find_switches(self.route)]:
                own["x-dragoman-switched"] = _plain("; ".join(tried))
        pairs = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in {**headers, **own}.items()
        ]
        return {"type": "http.response.start", "status": status, "headers": pairs}


async def write_events(
    call: ChatCall,
    encoder: ReplyEncoder,
    stops: Sequence[str],
    incoming: Incoming,
    writer: ReplyWriter,
) -> bytes:
    """Write the events of a reply as they arrive; return the bytes that end the reply."""
    reply = call.reply
    try:
        if stops:
            await _cut(call, encoder, StopCutter(stops), writer)
        else:
            while events := await reply.next():
                await writer.pass_on(call, encoder, events)
        return encoder.end()
    except ProviderError as error:
        return writer.fail(encoder, error)
    except asyncio.CancelledError:
        # ``cancel`` estimates the tokens that were used so far, so that the ledger counts them
        await incoming.work(reply.cancel)
        return writer.fail(encoder, incoming.explain())
    finally:
        incoming.stop()
        await reply.aclose()


async def _cut(
    call: ChatCall, encoder: ReplyEncoder, cutter: StopCutter, writer: ReplyWriter
) -> None:
    """Write the events up to the first stop sequence."""
    while events := await call.reply.next():
        passed: list[Event] = cutter.feed(events)
        if cutter.found is not None:
            ended = [*events, *call.reply.cancel()]
            ending = [each for each in ended if type(each) is MessageComplete]
            passed += [cutter.close(each) for each in ending[:1]]
        if passed:
            await writer.pass_on(call, encoder, passed)
        if cutter.found is not None:
            return


def _shown(warnings: Sequence[LossWarning]) -> str:
    """Return the value of a header that lists the codes and paths of losses, without client data.

    Losses that do not fit into the header are only counted.
    """
    items = [f"{warning.code} {warning.path}" for warning in warnings]
    fitting = bisect_right(list(accumulate([len(each) + 2 for each in items])), _HEADER)
    shown = "; ".join(
        [*items[:fitting], f"{len(items) - fitting} more"] if fitting < len(items) else items
    )
    return _plain(shown, len(shown))


def _plain(text: str, longest: int = _ROUTE) -> str:
    return "".join([letter if " " <= letter <= "~" else "?" for letter in text])[:longest]
