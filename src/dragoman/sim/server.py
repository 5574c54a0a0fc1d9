"""Serve a script over HTTP: every wire with a server codec on one port, with byte-level faults."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec.structs import replace

from ..errors import InvalidModelError, ProviderError, advise_import
from ..events import Event
from ..messages import Assistant, Request, System, User
from ..provider import Provider, connect
from ..retrieval import Embedder, Reranker, connect_embedder, connect_reranker
from ..retrieval.wire.server import RetrievalServer
from ..retrieval.wire.tei import TeiEmbed
from ..tokens import estimate_input_tokens, loaded_tools
from ..transport.serving import MISSING, serving
from ..validate import check_request
from ..wire import SERVER_CODECS, Asked, HttpReply, ReplyEncoder, ServerCodec
from ..wire.endpoint import offers_search
from .batches import BatchScript, SimBatches, show
from .faults import Mangler
from .provider import Scene, ScriptedProvider, explain, read_batches
from .retrieval import RETRIEVAL_BASES, RETRIEVAL_PATHS, SimulatedEmbedder, SimulatedReranker
from .script import Answer, Script, ScriptRule
from .strict import StrictModel
from .yaml import read_script

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.types import Receive, Scope, Send

MAX_BODY = 64 * 1024 * 1024


class SimServer:
    """A scripted provider behind a port. It runs in its own thread, so any test can use it.

    The port is opened when ``url`` is first read, and closed with ``stop()`` or at the end of a
    ``with``. ``requests`` has the accepted requests of all wires, and ``refused`` the texts of the
    errors by which the other requests were refused.
    """

    def __init__(
        self,
        provider: ScriptedProvider,
        *,
        models: tuple[str, ...] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        batches: BatchScript | None = None,
        embedder: Embedder | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        self.provider = provider
        self.embedder = embedder or SimulatedEmbedder(model=provider.model)
        self.reranker = reranker or SimulatedReranker(model=provider.model)
        self.models = models
        self.refused: list[str] = []
        self.dropped: list[int] = []
        self.batches = SimBatches(provider, batches or BatchScript())
        self._host = host
        self._port = port
        self._url: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def requests(self) -> list[Request]:
        """The requests accepted so far."""
        return self.provider.requests

    @property
    def url(self) -> str:
        """The server's address, without the path of a wire."""
        return self._url or self.start()

    @property
    def base_urls(self) -> dict[str, str]:
        """The base URL that clients of each wire use."""
        return {wire: self.url + SERVER_CODECS[wire].base_path for wire in sorted(SERVER_CODECS)}

    def connect(self, wire: str = "openai", model: str | None = None, **settings: Any) -> Provider:
        """Return a provider that calls this server over a socket."""
        return connect(
            model or self.provider.model, wire=wire, base_url=self.base_urls[wire], **settings
        )

    def connect_embedder(
        self, wire: str = "openai", model: str | None = None, **settings: Any
    ) -> Embedder:
        """Return an embedder that calls this server over a socket."""
        return connect_embedder(
            model or self.embedder.model, wire=wire, base_url=self._base(wire), **settings
        )

    def connect_reranker(
        self, wire: str = "openai", model: str | None = None, **settings: Any
    ) -> Reranker:
        """Return a reranker that calls this server over a socket."""
        return connect_reranker(
            model or self.reranker.model, wire=wire, base_url=self._base(wire), **settings
        )

    def _base(self, wire: str) -> str:
        return self.url + RETRIEVAL_BASES[wire]

    def start(self) -> str:
        """Open the port; raise ``OSError`` if that fails."""
        if self._thread is None:
            ready = threading.Event()
            failed: list[BaseException] = []
            self._thread = threading.Thread(
                target=self._run, args=(ready, failed), name="dragoman-sim", daemon=True
            )
            self._thread.start()
            ready.wait()
            if failed:
                self._thread = None
                raise failed[0]
        assert self._url is not None
        return self._url

    def stop(self) -> None:
        """Close the port and every connection."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join()
        self._url = None

    def wait(self) -> None:
        """Serve requests until the process is interrupted."""
        self.start()
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.5)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- methods that run in the server's thread

    def _run(self, ready: threading.Event, failed: list[BaseException]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        with advise_import(MISSING):  # Starlette is an optional dependency and slow to import
            from starlette.routing import Route, Router

        routes = [
            Route(path, _Endpoint(handle), methods=[method])
            for method, path, handle in (*self.batches.list_routes(), *self._list_routes())
        ]
        app = Router(routes, redirect_slashes=False, max_body_size=MAX_BODY)
        async with serving(app, host=self._host, port=self._port) as self._url:
            self._loop = asyncio.get_running_loop()
            self._stopping = asyncio.Event()
            ready.set()
            await self._stopping.wait()

    def _list_routes(self) -> list[tuple[str, str, _Handler]]:
        """Return the method, the path and the handler of each route."""
        routes: list[tuple[str, str, _Handler]] = [
            ("POST", path, partial(self._answer_retrieval, server))
            for path, server in RETRIEVAL_PATHS.items()
        ]
        routes.append(("POST", "/v1/messages/count_tokens", self._count))
        for codec in SERVER_CODECS.values():
            answer = partial(self._answer_chat, codec)
            routes += [("POST", path, answer) for path in codec.paths]
        for path in ("/v1/models", "/v1beta/models", "/foundation-models"):
            routes.append(("GET", path, self._list))
            routes.append(("GET", path + "/{name:path}", self._find))
        for path in ("/api/tags", "/api/ps"):
            routes.append(("GET", path, self._list))
        for path in ("/health", "/tei/health"):
            routes.append(("GET", path, self._healthy))
        return [*routes, ("GET", "/tei/info", self._describe_tei)]

    async def _answer_chat(
        self, codec: ServerCodec, request: HttpRequest
    ) -> HttpReply | _Performance:
        try:
            asked = codec.decode(await request.body(), request.scope["path"])
            if self.models and asked.request.model not in self.models:
                raise InvalidModelError(f"the script has no model {asked.request.model!r}")
            made = asked.with_extras()
            check_request(_complete(made), history=False)
            native: dict[str, Any] = {}
            if self.provider.strict:
                named = made.model or self.provider.model
                rules = StrictModel(codec.wire, named, self.provider.vendor)
                rules.check_end(self.provider.today)
                rules.check(asked.client, made)
                if rules.always_reports_usage:
                    asked = replace(asked, stream_usage=True)
                dropped = rules.list_dropped(asked.client, made)
                native = codec.show_dropped(asked.client, dropped)
                self.dropped.append(len(dropped))
            scene = self.provider.begin(made, codec.wire)
            if native:
                scene.out.native = {codec.wire: native}
        except Exception as error:
            refusal = explain(error)
            self.refused.append(str(refusal))
            return codec.error(refusal)
        return _Performance(request, codec, asked, scene)

    async def _answer_retrieval(self, codec: RetrievalServer, request: HttpRequest) -> HttpReply:
        model: Any = self.embedder if codec.operation == "embed" else self.reranker
        try:
            asked = codec.decode(await request.body(), request.scope["path"])
            answer = await model.answer(asked.request)
        except ProviderError as error:
            return codec.error(error)
        return codec.encode(answer, asked, asked.request.model or model.model)

    async def _list(self, request: HttpRequest) -> HttpReply:
        listed = [_describe(name) for name in self.models or (self.provider.model,)]
        return show({"object": "list", "data": listed, "models": listed, "has_more": False})

    async def _find(self, request: HttpRequest) -> HttpReply:
        name = request.path_params["name"]
        if self.models and name not in self.models:
            error = InvalidModelError(f"the script has no model {name!r}")
            own = "anthropic" if "anthropic-version" in request.headers else "openai"
            wire = "gemini" if request.url.path.startswith("/v1beta") else own
            return SERVER_CODECS[wire].error(error)
        return show(_describe(name))

    async def _healthy(self, request: HttpRequest) -> HttpReply:
        return show({"status": "ok"})

    async def _describe_tei(self, request: HttpRequest) -> HttpReply:
        """Describe both simulated models in one reply; a real TEI server has only one model."""
        kinds = {"embedding": {"pooling": "mean"}, "reranker": {"id2label": {}, "label2id": {}}}
        limit = {"max_client_batch_size": self.embedder.batch_size or TeiEmbed.batch_limit}
        return show({"model_id": self.embedder.model, "model_type": kinds, **limit})

    async def _count(self, request: HttpRequest) -> HttpReply:
        codec = SERVER_CODECS["anthropic"]
        try:
            asked = codec.decode(_with_limit(await request.body())).with_extras()
        except ProviderError as error:
            return codec.error(error)
        tools = loaded_tools(asked.tools, searched=offers_search(asked))
        count = estimate_input_tokens(asked.messages, tools)
        return show({"input_tokens": count})


def _describe(name: str) -> dict[str, Any]:
    """Return a model's description, with the fields that clients of all wires expect."""
    return {
        "id": name,
        "name": f"models/{name}",
        "model": name,
        "object": "model",
        "type": "model",
        "created": 0,
        "owned_by": "sim",
    }


def _with_limit(body: bytes) -> bytes:
    """Add ``max_tokens`` to a body: the anthropic wire requires it, except to count tokens."""
    with contextlib.suppress(msgspec.DecodeError):
        record = msgspec.json.decode(body)
        if isinstance(record, dict):
            return msgspec.json.encode({"max_tokens": 1, **record})
    return body


class _Endpoint:
    """The ASGI application of a route: send what a handler returns.

    The handler is cancelled as soon as the client disconnects.
    """

    def __init__(self, handle: _Handler) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import ClientDisconnect, Request

        request = Request(scope, receive, send)
        with contextlib.suppress(ClientDisconnect):
            await request.body()
            working = asyncio.create_task(self._work(request, send))
            # after the body, only a disconnection can be received
            watching = asyncio.ensure_future(request.receive())
            try:
                await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
            finally:
                working.cancel()
                watching.cancel()
                await asyncio.wait((working, watching))
            if not working.cancelled():
                working.result()  # raise its exception

    async def _work(self, request: HttpRequest, send: Send) -> None:
        from starlette.responses import Response

        made = await self._handle(request)
        reply = await made.run(send) if isinstance(made, _Performance) else made
        if reply is not None:
            response = Response(reply.body, reply.status, reply.headers)
            await response(request.scope, request.receive, send)


def _complete(made: Request) -> Request:
    """Return a request that the checks of ``Provider.complete`` accept, if a server would.

    Servers answer a conversation of a system prompt alone, one that begins or ends with the
    assistant, and one with system messages in its middle (OpenAI, llama.cpp: 2026-11).
    """
    turns = [message for message in made.messages if not isinstance(message, System)]
    last = made.messages[-1] if made.messages else None
    is_open = isinstance(last, Assistant) and bool(last.tool_calls)
    if last is None or is_open or any(not message.content for message in turns):
        return made
    return replace(made, messages=[User("begin"), *turns, User("end")])


class _Performance:
    """Send one scripted reply over HTTP, with its byte-level fault."""

    def __init__(
        self, request: HttpRequest, codec: ServerCodec, asked: Asked, scene: Scene
    ) -> None:
        self._request = request
        self._codec = codec
        self._fault = scene.fault
        self._batches = scene.batches
        self._is_stream = asked.request.stream
        self._encoder: ReplyEncoder = codec.encoder(asked)
        self._mangler = Mangler(scene.fault, scene.dice)
        self._begun = False  # whether the reply has begun
        self._started = False  # whether its HTTP headers are sent

    async def run(self, send: Send) -> HttpReply | None:
        """Send the reply; return an error response instead, if the reply fails at once."""
        try:
            async for event in read_batches(self._batches):
                if not await self._send_event(event, send):
                    await self._finish(b"", send)
                    return None
            last = self._encoder.end()
        except Exception as raised:
            error = explain(raised)
            if not self._begun:
                return self._refuse(error)
            try:
                last = self._encoder.fail(error)
            except ProviderError as refused:
                return self._refuse(refused)
        await self._finish(last, send)
        return None

    async def _send_event(self, event: Event, send: Send) -> bool:
        """Send the bytes of an event; return ``False`` when the reply is over."""
        self._begun = True
        sent = self._mangler.feed(self._encoder.feed(event))
        if sent.data:
            await self._write(sent.data, send)
        return sent.then == "on"

    async def _finish(self, last: bytes, send: Send) -> None:
        sent = self._mangler.end(last)
        whole = len(last) if not self._is_stream and self._mangler.cut else None
        await self._write(sent.data, send, length=whole)
        if self._mangler.cut:
            self._request.state.connection.transport.close()
            await self._request.receive()  # wait until the connection is closed
        else:
            await send({"type": "http.response.body"})

    async def _write(self, data: bytes, send: Send, length: int | None = None) -> None:
        if not self._started:
            self._started = True
            kind = self._fault.content_type or self._encoder.content_type
            headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store")]
            if length is not None:
                headers.append((b"content-length", b"%d" % length))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        for at, portion in enumerate(self._mangler.portions(data)):
            if at and self._fault.pace:
                await asyncio.sleep(self._fault.pace)
            if self._request.state.connection.transport.is_closing():
                return  # asyncio would log every write to a client that has left
            await send({"type": "http.response.body", "body": portion, "more_body": True})

    def _refuse(self, error: ProviderError) -> HttpReply:
        reply = self._codec.error(error)
        fault = self._fault
        headers = dict(reply.headers)
        if fault.content_type is not None:
            headers["content-type"] = fault.content_type
        body = reply.body if fault.body is None else fault.body.encode()
        return HttpReply(fault.status or reply.status, headers, body)


_Handler = Callable[["HttpRequest"], Awaitable[HttpReply | _Performance]]


def serve(
    *script: str | Path | Script | ScriptedProvider | ScriptRule | Answer | ProviderError,
    host: str = "127.0.0.1",
    port: int = 0,
    batches: BatchScript | None = None,
    **settings: Any,
) -> SimServer:
    """Return a server for a script: a file's path, a ``Script``, a provider, or rules.

    A string is an answer; give a path as ``Path``. ``settings`` are passed to
    ``ScriptedProvider``; ``batches`` configures the simulated batches.
    """
    rules: Any = script
    given = rules[0] if len(rules) == 1 else None
    models: tuple[str, ...] = ()
    if isinstance(given, ScriptedProvider):
        provider = given
    elif isinstance(given, Path | Script):
        read = read_script(given) if isinstance(given, Path) else given
        provider = ScriptedProvider.from_script(read, **settings)
        models = tuple(read.models)
    else:
        provider = ScriptedProvider(*rules, **settings)
    return SimServer(provider, models=models, host=host, port=port, batches=batches)
