"""The gateway: providers behind the wires that existing clients speak. Needs the extra ``gateway``.

::

    app = create_app({"fast": connect("llama3", base_url="http://127.0.0.1:8080/v1")})

An ASGI application; ``dragoman serve`` runs it. A client asks for a model by the name it has here, over
whichever wire the client speaks, and is answered by whichever provider has that name. Where requests go
is decided here and never by a request.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HttpAsked
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..errors import InvalidModelError, ProviderError
from ..log import EventLog, open_log
from ..provider import Provider
from ..registry import Registry
from ..wire import SERVER_CODECS, ServerCodec
from .access import Bounds, Service
from .evidence import CallLog
from .exchange import RouteHandler, read_headers
from .keys import Key, KeyRing
from .ledger import Ledger
from .listings import list_models, show_gemini_model, show_model, show_ollama_tag
from .models import Models
from .openapi import document

SETTINGS = "DRAGOMAN_SERVE"
"""The environment variable that tells workers what to serve: names and paths, no keys."""


def create_app(
    models: Mapping[str, Provider] | Registry,
    *,
    keys: KeyRing | None = None,
    ledger: Ledger | None = None,
    bounds: Bounds | None = None,
    workers: int = 1,
    check_host: bool = True,
    log: EventLog | None = None,
    log_content: bool = False,
) -> Starlette:
    """An ASGI application in front of these models.

    ``keys`` are who may use it; without them everybody on this machine may, and ``check_host`` sees to
    it that nobody else does. ``ledger`` counts what limited keys use, in memory unless you give one.
    ``workers`` says how many processes share the keys; where these have limits, they share a ledger, too.
    ``log`` receives the records of every call, as one session for each run; it stays open at the end. With
    ``log_content`` it receives the messages, too.
    """
    ledger = ledger or Ledger()
    counts = workers == 1 or ledger.is_shared
    if not counts and keys is not None and any(key.is_limited for key in keys.keys):
        raise ValueError("workers: keys with limits are counted together in a file; give ledger=Ledger(path)")
    calls = CallLog(log, include_content=log_content) if log is not None else None
    service = Service(Models(models), keys, ledger, bounds or Bounds(), calls, counts=counts, check_host=check_host)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        service.draining = False  # an application may be run again
        yield {"bounds": service.bounds}  # for ``BoundedHttpProtocol``, which keeps those of connections
        service.draining = True
        await service.models.close()
        await service.ledger.close()
        if calls is not None:
            await calls.close()

    app = Starlette(routes=_routes(service), lifespan=lifespan)
    app.router.redirect_slashes = False  # it would answer before the key is checked, with the client's own Host
    app.state.service = service
    return app


# --- routes ---------------------------------------------------------------------------------------

_PATHS = {
    "/v1/chat/completions": "openai",
    "/v1/messages": "anthropic",
    "/v1/responses": "responses",
    "/v1beta/models/{call:path}": "gemini",
    "/api/chat": "ollama",
}


def _routes(service: Service) -> list[Route]:
    posts = [Route(path, RouteHandler(service, SERVER_CODECS[wire]), methods=["POST"]) for path, wire in _PATHS.items()]
    counting = RouteHandler(service, SERVER_CODECS["anthropic"], "count")
    showing = RouteHandler(service, SERVER_CODECS["ollama"], "show")
    pages = _Pages(service)
    return [
        *posts,
        Route("/v1/messages/count_tokens", counting, methods=["POST"]),
        Route("/v1/models", pages.models, methods=["GET"]),
        Route("/v1/models/{name:path}", pages.model, methods=["GET"]),
        Route("/v1beta/models", pages.gemini_models, methods=["GET"]),
        Route("/v1beta/models/{name:path}", pages.gemini_model, methods=["GET"]),
        Route("/api/show", showing, methods=["POST"]),
        Route("/api/tags", pages.ollama_tags, methods=["GET"]),
        Route("/api/version", pages.ollama_version, methods=["GET"]),
        Route("/health", pages.health, methods=["GET"]),
        Route("/ready", pages.ready, methods=["GET"]),
        Route("/metrics", pages.metrics, methods=["GET"]),
        Route("/openapi.json", pages.openapi, methods=["GET"]),
    ]


class _Pages:
    """What may be read."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._openapi: Response | None = None

    async def health(self, asked: HttpAsked) -> Response:
        """The process is alive."""
        return JSONResponse({"status": "ok"})

    async def ready(self, asked: HttpAsked) -> Response:
        """Calls can be expected to succeed; else which of this key's models stand in the way.

        To find out, the models' servers are asked, and that nobody without a key may cause.
        """
        try:
            key = self._identify(asked)
        except ProviderError as error:
            return _refusal(asked, error)
        problems = await self._service.models.problems()
        if problems is not None and not problems and not self._service.draining:
            return JSONResponse({"status": "ready"})
        shown = {name: why for name, why in (problems or {}).items() if key is None or key.allows(name)}
        return JSONResponse({"status": "not ready", "models": shown}, 503)

    async def metrics(self, asked: HttpAsked) -> Response:
        """Counters of this process."""
        try:
            self._identify(asked)
        except ProviderError as error:
            return _refusal(asked, error)
        return PlainTextResponse(self._service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(self, asked: HttpAsked) -> Response:
        """The models this key may use, in a form that clients of either vendor read."""
        return self._list_models(asked, list_models)

    async def model(self, asked: HttpAsked) -> Response:
        """One model."""
        return self._show_model(asked, show_model)

    async def gemini_models(self, asked: HttpAsked) -> Response:
        """The models this key may use, as the Gemini wire lists them."""
        return self._list_models(asked, lambda names: {"models": [show_gemini_model(name) for name in names]})

    async def gemini_model(self, asked: HttpAsked) -> Response:
        """One model, as the Gemini wire describes it."""
        return self._show_model(asked, show_gemini_model)

    async def ollama_tags(self, asked: HttpAsked) -> Response:
        """Return the models this key may use, as the Ollama wire lists them."""
        return self._list_models(asked, lambda names: {"models": [show_ollama_tag(name) for name in names]})

    async def ollama_version(self, asked: HttpAsked) -> Response:
        """Return the gateway's own version, which clients of the Ollama wire ask for first."""
        return self._list_models(asked, lambda names: {"version": version("dragoman")})

    def _list_models(self, asked: HttpAsked, record: Callable[[list[str]], dict[str, Any]]) -> Response:
        try:
            return JSONResponse(record(self._names(asked)))
        except ProviderError as error:
            return _refusal(asked, error)

    def _show_model(self, asked: HttpAsked, record: Callable[[str], dict[str, Any]]) -> Response:
        name = asked.path_params["name"]
        try:
            if name not in self._names(asked):
                raise InvalidModelError("no model of this name is served here")
        except ProviderError as error:
            return _refusal(asked, error)
        return JSONResponse(record(name))

    async def openapi(self, asked: HttpAsked) -> Response:
        """Return the description of all routes; made once, because a client without a key may ask for it."""
        if self._openapi is None:
            self._openapi = JSONResponse(document())
        return self._openapi

    def _names(self, asked: HttpAsked) -> list[str]:
        key = self._identify(asked)
        return [name for name in self._service.models.names() if key is None or key.allows(name)]

    def _identify(self, asked: HttpAsked) -> Key | None:
        headers = read_headers(asked.scope)
        return self._service.identify(headers, _codec_for(asked).key(headers))


def _codec_for(asked: HttpAsked) -> ServerCodec:
    """Return the wire that the reader of a page most likely uses."""
    path = asked.url.path
    if path.startswith(("/v1beta/", "/api/")):
        return SERVER_CODECS["gemini" if path.startswith("/v1beta/") else "ollama"]
    is_anthropic = "x-api-key" in asked.headers or "anthropic-version" in asked.headers
    return SERVER_CODECS["anthropic" if is_anthropic else "openai"]


def _refusal(asked: HttpAsked, error: ProviderError) -> Response:
    reply = _codec_for(asked).error(error)
    return Response(reply.body, reply.status, dict(reply.headers))


# --- workers --------------------------------------------------------------------------------------


def _log_access() -> None:
    """One line a request to standard error, and nothing around it: the line is JSON already."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("dragoman.access")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def create_app_from_environment() -> Starlette:
    """The application of one worker: what ``dragoman serve`` wrote into the environment, made again."""
    told = json.loads(os.environ[SETTINGS])
    if told["access_log"]:
        _log_access()
    registry = Registry.load(told["config"])
    models: Mapping[str, Provider] | Registry = registry
    if told["models"]:
        models = {name: registry.provider(target, keep_raw=False) for name, target in told["models"].items()}
    log = open_log(told["log"]) if told["log"] else None
    if log is not None:
        atexit.register(log.close)
    return create_app(
        models,
        keys=KeyRing.load(told["keys"]) if told["keys"] else None,
        ledger=Ledger(told["state"]),
        bounds=Bounds(**told["bounds"]),
        workers=told["workers"],
        check_host=told["check_host"],
        log=log,
        log_content=told["log_content"],
    )
