"""Response cache: repeated identical calls receive the stored reply at no cost."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ..errors import ProviderError
from ..events import (
    Event,
    MessageComplete,
    MessageStart,
    UnknownEvent,
    Usage,
    decode_event,
    encode_event,
)
from ..messages import Request, new_ulid
from ..provider import EventsReply, LayerCall
from ..provider.model import Kind, OfKind
from ..retrieval import Embeddings, EmbedRequest, Ranking, RerankRequest, join_embeddings
from ..retrieval.split import check_length
from ..retrieval.stored import read_answer, write_answer
from .cassette import readdress
from .layer import Middleware, Wrapper, read_whole
from .request_keys import request_key
from .stores import Store, open_store

log = logging.getLogger("dragoman")

T = TypeVar("T")

CACHE = "dragoman.cache"
"""The key in ``metadata`` that changes how a call uses the cache: ``"off"`` disables the cache for
the call, ``"refresh"`` sends the call and replaces the stored reply.
"""

CACHE_SCOPE = "dragoman.cache_scope"
"""The key in ``metadata`` for a text, such as the name of a client. Calls with different texts never
share an entry.
"""

_SOUND = ("stop", "length", "tool_calls", "content_filter")


class _StoredReply(EventsReply):
    @property
    def is_cached(self) -> bool:
        return True


class Cache(Wrapper[Kind], Middleware[Kind]):
    """Return a stored reply if the same request was answered before; otherwise call the model.

    ``store`` is a ``SqliteStore``, a ``RedisStore``, the path of a SQLite file or a ``redis://``
    URL. The key is computed as for cassettes: a hash of everything that changes the reply,
    together with the provider's name. A streamed and a complete call have the same key. If
    identical calls run at the same time, only one is sent.

    In a reply from the cache, ``Response.cached`` is true, ``raw`` is ``None``, and the usage is
    zero, so it adds nothing to a total cost. Replies that failed or were cancelled are never
    stored. If the store fails, a warning is logged and the call is sent.
    ``metadata={"dragoman.cache": "off"}`` disables the cache for a call; ``"refresh"`` sends the
    call and replaces the stored reply. ``endings`` are the finish reasons of replies that are
    stored. With ``needs_scope``, calls without ``CACHE_SCOPE`` in their metadata are not cached.
    """

    def __init__(
        self,
        provider: OfKind[Kind],
        store: Store | str | os.PathLike[str],
        *,
        endings: Sequence[str] = _SOUND,
        needs_scope: bool = False,
    ) -> None:
        super().__init__(provider)
        self.store = open_store(store)
        self._endings = endings
        self._needs_scope = needs_scope
        self._in_flight: dict[str, asyncio.Future[Sequence[Event] | None]] = {}

    def settings(self) -> Mapping[str, Any]:
        return {"store": self.store}

    async def close(self) -> None:
        await self.store.close()
        await self.inner.close()

    async def serve(self, request: Any, served: LayerCall) -> AsyncGenerator[list[Event], None]:
        mode = request.metadata.get(CACHE, "on")
        if mode not in ("on", "off", "refresh"):
            raise ValueError(f"{CACHE}: must be on, off or refresh, not {mode!r}")
        if not isinstance(request, Request):
            yield [await self._answer(request, mode, served)]
            return
        scope = str(request.metadata.get(CACHE_SCOPE, ""))
        if self._needs_scope and not scope:
            mode = "off"
        key = ""
        if mode != "off":
            key = f"{scope}{self.name}:{request_key(replace(request, stream=False))}"
        found = await self._find(key) if mode == "on" else None
        source = (
            self._play(request, found, served)
            if found is not None
            else self._call(request, key, served)
        )
        async with aclosing(source):
            async for batch in source:
                yield batch

    async def _find(self, key: str) -> Sequence[Event] | None:
        """Return the stored reply, or the reply of an identical call that is in flight.

        Return ``None`` if there is neither.
        """
        while True:
            waiting = self._in_flight.get(key)
            if waiting is None:
                found = await self._read(key, _decode_events)
                if found is not None or key not in self._in_flight:
                    return found
                continue  # an identical call began while the store was read: wait for it
            found = await asyncio.shield(waiting)
            if found is not None:
                return found

    async def _play(
        self, request: Request, events: Sequence[Event], served: LayerCall
    ) -> AsyncGenerator[list[Event], None]:
        # each reply to a client of a gateway has an id of its own, by which it can be stored
        message_id = f"msg_{new_ulid()}" if CACHE_SCOPE in request.metadata else ""

        async def readdressed(request: Request) -> AsyncIterator[Event]:
            for event in events:
                event = readdress(event, request.request_id)
                if isinstance(event, MessageStart | MessageComplete) and message_id:
                    event = replace(event, message_id=message_id)
                if type(event) is MessageComplete:
                    event = replace(
                        event, usage=Usage(0, 0, total_tokens=0, from_cache=True), kept=None
                    )
                yield event

        async with aclosing(_StoredReply(request, self.name, self.model, readdressed)) as reply:
            served.reply = reply
            while batch := await reply.next():
                yield batch

    async def _call(
        self, request: Request, key: str, served: LayerCall
    ) -> AsyncGenerator[list[Event], None]:
        events: list[Event] = []
        result: Sequence[Event] | None = None
        failure: ProviderError | None = None
        waiting: asyncio.Future[Sequence[Event] | None] = (
            asyncio.get_running_loop().create_future()
        )
        if key:
            self._in_flight.setdefault(key, waiting)
        try:
            async with aclosing(self.inner.open(request)) as reply:
                served.reply = reply
                while batch := await reply.next():
                    events += batch if key else ()
                    if type(batch[-1]) is MessageComplete:
                        # Hold back the last event: an error may still follow it, and then the
                        # reply must not be stored.
                        served.held = [batch.pop()]
                    if batch:
                        yield batch
            if (
                events
                and type(last := events[-1]) is MessageComplete
                and last.finish_reason in self._endings
            ):
                result = [*events[:-1], replace(last, kept=None)]
                if not last.usage.from_cache:
                    await self._write(key, b"[%b]" % b",".join(map(encode_event, result)))
        except ProviderError as error:
            failure = error
        finally:
            if self._in_flight.get(key) is waiting:
                del self._in_flight[key]
            waiting.set_result(result)
        if held := served.held:
            served.held = []
            yield held
        if failure is not None:
            raise failure

    async def _read(self, key: str, decode: Callable[[bytes], T | None]) -> T | None:
        try:
            data = await self.store.get(key)
            return None if data is None else decode(data)
        except Exception as error:
            log.warning("the cache cannot be read, so the call is sent: %s", type(error).__name__)
            return None

    async def _write(self, key: str, data: bytes) -> None:
        try:
            await self.store.put(key, data)
        except Exception as error:
            log.warning(
                "the cache cannot be written, so the reply is not stored: %s", type(error).__name__
            )

    # --- vectors and rankings

    async def _answer(self, request: Any, mode: str, served: LayerCall) -> Any:
        """Return the answer to a request for vectors or a ranking."""
        if mode == "off":
            return await self._ask(request, served)
        if isinstance(request, EmbedRequest):
            return await self._embed(request, served, reads=mode == "on")
        return await self._rank(request, served, reads=mode == "on")

    async def _ask(self, request: Any, served: LayerCall) -> Any:
        served.reply = self.inner.open(request)
        return await read_whole(served.reply)

    async def _embed(self, request: EmbedRequest, served: LayerCall, *, reads: bool) -> Embeddings:
        """Return the vectors of texts; each is stored, and only those not stored are sent.

        The usage counts the texts that were sent. If none was sent, it has ``from_cache``, and the
        answer costs nothing.
        """
        keys = [
            f"{self.name}:{request_key(replace(request, texts=(text,)))}" for text in request.texts
        ]
        found = [await self._read(key, read_answer) if reads else None for key in keys]
        lacking = [at for at, each in enumerate(found) if each is None]
        if not lacking:
            return self._join(
                request, [each for each in found if each is not None], Usage(0, 0, from_cache=True)
            )
        sent = replace(request, texts=[request.texts[at] for at in lacking])
        answer: Embeddings = await self._ask(sent, served)
        for place, at in enumerate(lacking):
            found[at] = one = replace(
                answer, vectors=answer.vectors[place : place + 1], kept=None, sale=None
            )
            await self._write(keys[at], write_answer(one))
        if len(lacking) == len(keys):
            return answer
        joined = self._join(request, [each for each in found if each is not None], answer.usage)
        return replace(joined, warnings=answer.warnings, sale=answer.sale)

    def _join(
        self, request: EmbedRequest, parts: Sequence[Embeddings], usage: Usage
    ) -> Embeddings:
        for part in parts:
            check_length(part, parts[:1])
        return replace(
            join_embeddings(parts), usage=usage, kept=None, request_id=request.request_id
        )

    async def _rank(self, request: RerankRequest, served: LayerCall, *, reads: bool) -> Ranking:
        key = f"{self.name}:{request_key(request)}"
        found = await self._read(key, read_answer) if reads else None
        if isinstance(found, Ranking):
            return replace(
                found,
                usage=Usage(0, 0, from_cache=True, search_units=0),
                request_id=request.request_id,
            )
        answer: Ranking = await self._ask(request, served)
        await self._write(key, write_answer(answer))
        return answer


def _decode_events(data: bytes) -> Sequence[Event] | None:
    events = [
        decode_event(bytes(each)) for each in msgspec.json.decode(data, type=list[msgspec.Raw])
    ]
    known = [event for event in events if not isinstance(event, UnknownEvent)]
    # A later version of the library has written an event of an unknown type, so ignore the entry.
    return known if len(known) == len(events) and known else None
