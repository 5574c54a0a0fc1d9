"""The gateway application: serve providers over the wires that existing clients use.

::

    app = create_app({"fast": connect("llama3", base_url="http://127.0.0.1:8080/v1")})

This ASGI application needs the extra ``gateway``; ``dragoman serve`` runs it. A client requests a
model by the name in this mapping, over any wire, and the provider with that name answers. Only the
configuration decides where requests go; nothing in a request can change that.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpAsked
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from ..log import EventLog, open_log
from ..registry import Registry
from ..registry.entries import config_path
from ..registry.folders import read_stamp
from ..registry.passing import METHODS
from ..registry.registry import list_webhooks
from ..registry.webhooks import Webhook
from ..retrieval.wire.server import RETRIEVAL_SERVERS
from ..wire import OTHER_SERVER_CODECS, SERVER_CODECS
from .access import Bounds, Service, SessionService
from .administration import Administration
from .background import Background
from .call_log import CallLog
from .exchange import ChatHandler
from .keys import KeyRing
from .keystore import load_keys
from .ledger import Ledger
from .ledger_writer import LedgerWriter
from .limits import RedisLimits
from .lost_reasoning import ReasoningWatch
from .models import Models, ServedModel
from .open_pass import PATH
from .pages import Pages, refuse
from .passing import PassHandler
from .people import People
from .retrieval import RetrievalHandler
from .signals import follow_config, handle_signals
from .sockets import SocketHandler
from .store import DAY, ResponseStore
from .stored_response_pages import kept_routes
from .tracing import Tracing
from .unknown_paths import explain, find_codec
from .usage_book import UsageBook
from .webhooks import WebhookSender
from .worker_metrics import MetricsFolder

if TYPE_CHECKING:
    from .login import LogIn  # its library is an extra
    from .tokens import Tokens

SETTINGS = "DRAGOMAN_SERVE"
"""The environment variable with the settings for workers: names and paths, but no keys."""
_CORS_WITHOUT_KEYS = (
    "cors: every web page could use a gateway without keys; name the origins, or give keys"
)
_LIMITS_WITHOUT_LEDGER = (
    "workers: keys with limits are counted together in a ledger; give ledger=Ledger(place)"
)
_LOGIN_WITHOUT_ADMIN = "login: people log in to the pages, which need admin=; its key opens them if the provider is down"
# The settings of a worker that are passed to ``create_app`` unchanged.
_PASSED_ON = (
    "workers", "check_host", "log_content", "log_days", "cors", "url_keys", "admin", "open_ready", "betas",
    "ui",
)  # fmt: skip
log = logging.getLogger("dragoman")

_DOUBLE_ROOT = "/openai/v1/"
_POLL_SECONDS = 1.0  # seconds between two reads of the keys in a database


def create_app(
    models: Mapping[str, ServedModel] | Registry,
    *,
    keys: KeyRing | None = None,
    tokens: Tokens | None = None,
    ledger: Ledger | None = None,
    limits: RedisLimits | None = None,
    bounds: Bounds | None = None,
    workers: int = 1,
    check_host: bool = True,
    log: EventLog | None = None,
    log_content: bool = False,
    log_days: int | None = None,
    cors: Sequence[str] = (),
    url_keys: bool | None = None,
    store: ResponseStore | None = None,
    admin: str | None = None,
    usage: UsageBook | None = None,
    tracing: Tracing | None = None,
    open_ready: bool = False,
    betas: Sequence[str] = ("default",),
    ui: str | None = None,
    sessions: SessionService | None = None,
    webhooks: Sequence[Webhook] = (),
) -> Starlette:
    """Return an ASGI application that serves the given models.

    With ``keys``, clients must send one, or a token with ``tokens``. Without both, every local
    program has access, and ``check_host`` rejects web pages and other machines. ``ledger`` counts
    the usage of limited keys, by default in memory; ``limits`` counts requests, tokens and
    concurrent calls in Redis instead. ``workers`` is the number of processes. ``log`` receives the
    records of every call, with ``log_content`` also messages; ``log_days`` removes older sessions.
    ``cors`` are origins whose web pages may call the gateway. ``url_keys`` allows clients of the
    Gemini wire to send their key in the URL (``?key=``); by default only local clients may.
    ``store`` keeps responses. ``admin`` is the hash of a key that opens ``/metrics`` and the
    pages, or names people; then requests are counted in ``usage``. ``tracing`` records spans;
    ``open_ready`` lets ``/ready`` need no key. ``betas`` are patterns of those that clients may
    use on models of the same wire. ``ui`` names the module of the web pages at ``/``
    (``dragoman.gateway.web``), with ``admin``. ``sessions`` (``dragoman.service.Sessions``) runs
    agents for clients. ``webhooks`` receive alerts about budgets. The application closes no log,
    no store.
    """
    ledger = ledger or Ledger()
    writer = LedgerWriter(ledger, limits)
    service = Service(
        models=Models(models, webhooks), keys=keys, tokens=tokens, ledger=writer,
        webhooks=WebhookSender(writer, lambda: service.models.webhooks),
        login=_open_login(tokens, admin), url_keys=url_keys,
        counts=workers == 1 or ledger.is_shared, bounds=bounds or Bounds(),
        calls=None if log is None else _record_calls(log, log_days, include_content=log_content),
        store=store, background=None if store is None else Background(store), betas=betas,
        people=None if admin is None else People(admin), tracing=tracing, open_ready=open_ready,
        usage=None if admin is None else usage or UsageBook(None), origins=frozenset(cors),
        check_host=check_host, sessions=sessions,
    )  # fmt: skip
    _check_limits(service)
    return _make_gateway(service, cors, ui)


def _make_gateway(service: Service, cors: Sequence[str], ui: str | None) -> _Gateway:
    app = _Gateway(
        routes=_routes(service, ui),
        middleware=[_allow_origins(cors, service.keys)] if cors else [],
        lifespan=partial(_live, service),
    )
    # a redirect would be sent before the key is checked, and repeat the client's Host header
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def _check_limits(service: Service) -> None:
    keys = () if service.keys is None else service.keys.keys
    if not all(service.can_count(key) for key in keys):
        raise ValueError(_LIMITS_WITHOUT_LEDGER)


def _record_calls(log: EventLog, days: int | None, *, include_content: bool) -> CallLog:
    keep = None if days is None else timedelta(days=days)
    return CallLog(log, include_content=include_content, keep=keep)


def _count_misses(service: Service) -> None:
    """Count in the metrics what the ledger and the statistics can never store or not read."""
    service.ledger.on_miss = partial(service.metrics.miss, "ledger")
    service.ledger.on_unread = service.metrics.miss_budgets
    service.webhooks.on_miss = service.metrics.miss_alert
    if service.usage is not None:
        service.usage.on_miss = partial(service.metrics.miss, "usage")


class _Gateway(Starlette):
    """Run the routes without the two middleware layers that Starlette adds for exceptions.

    Each layer wraps every message of a reply. ``handle`` replies to errors itself, and the
    HTTP server replies to a defect with status 500; what remains are requests without a route.
    """

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = self._find_route
        for layer, arguments, options in reversed(self.user_middleware):
            app = layer(app, *arguments, **options)
        return app

    async def _find_route(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = scope
        # Groq's SDK adds /openai/v1 to the base URL (groq 1.7.0, 2026-11-19), and Azure's address
        # ends with it.
        if scope["type"] != "lifespan" and scope["path"].startswith(_DOUBLE_ROOT):
            found = {**scope, "path": scope["path"].removeprefix("/openai")}
        if scope["type"] != "lifespan" and self.state.service.tokens is not None:
            await self.state.service.prepare(scope)
        try:
            await self.router.app(found, receive, send)
        except HTTPException as error:
            asked = HttpAsked(scope)
            problem = explain(asked.method, asked.url.path, error.status_code)
            codec = find_codec(asked.url.path, asked.headers)
            await refuse(codec, problem)(scope, receive, send)


@contextlib.asynccontextmanager
async def _live(service: Service, app: Starlette) -> AsyncIterator[dict[str, Any]]:
    """Start the application's background tasks; stop them and close its resources at shutdown."""
    service.draining = False  # a previous shutdown of the same application may have set this flag
    _count_misses(service)
    tasks = [asyncio.ensure_future(_keep(name, work)) for name, work in _list_work(service)]
    service.leaving = False
    if service.reload is not None:
        handle_signals(service)
    async with (
        contextlib.nullcontext() if service.side_port is None else service.side_port(),
        contextlib.nullcontext() if service.sessions is None else service.sessions.running(),
    ):
        # uvicorn passes this state to ``BoundedHttpProtocol``, which enforces the limits.
        paths = [path for codec in SERVER_CODECS.values() if codec.socket for path in codec.paths]
        roots = ("", _DOUBLE_ROOT.removesuffix("/v1/"))
        places = frozenset([root + path for root in roots for path in paths])
        yield {"bounds": service.bounds, "socket_paths": places}
        service.draining = True
        for task in tasks:
            task.cancel()
        await _close(service)


async def _close(service: Service) -> None:
    if service.gathering is not None:
        service.gathering.save()
    if service.usage is not None:
        await service.usage.flush(())
    if service.background is not None:
        await service.background.close()
    await service.models.close()
    if service.tokens is not None:
        await service.tokens.close()
    await service.webhooks.close()
    await service.ledger.close()
    if service.calls is not None:
        await service.calls.close()


def _allow_origins(origins: Sequence[str], keys: KeyRing | None) -> Middleware:
    """Let web pages from the listed origins send requests and read replies."""
    if "*" in origins and keys is None:
        raise ValueError(_CORS_WITHOUT_KEYS)
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE", "OPTIONS"),
        allow_headers=("*",),
        expose_headers=(
            "x-request-id",
            "request-id",
            "x-dragoman-warnings",
            "x-dragoman-cache",
            "retry-after",
        ),
        max_age=86_400,
    )


def _list_work(service: Service) -> list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
    """Return the background tasks that run while the application serves requests."""
    work: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = []
    if service.keys is not None and service.keys.source is not None:
        work.append(("reading the keys", partial(_poll, service.keys)))
    if service.config is not None:
        work.append(("following the configuration", partial(follow_config, service)))
    if service.usage is not None:
        work.append(("writing the usage", partial(service.usage.keep_flushing, service.live)))
    work.append(("sending alerts", service.webhooks.keep_sending))
    if service.gathering is not None:
        work.append(("saving the metrics", service.gathering.keep_saving))
    return work


async def _keep(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a background task until it is cancelled; if it fails, report why and run it again."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("%s failed; it is tried again", name)
        await asyncio.sleep(_POLL_SECONDS)


async def _poll(keys: KeyRing) -> None:
    """Check the key database for changes every second, and reload the keys if there are any."""
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        await asyncio.to_thread(keys.poll)


# --- the routes of the application -------------------------------------------------------------


class _WebPages:
    """The web pages, which are imported and built when the first of them is requested."""

    def __init__(self, service: Service, module: str) -> None:
        self._service = service
        self._module = module

    @cached_property
    def _site(self) -> ASGIApp:
        site: ASGIApp = importlib.import_module(self._module).Site(self._service)
        return site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._site(scope, receive, send)


def _routes(service: Service, ui: str | None) -> list[BaseRoute]:
    posts = [
        Route(path, ChatHandler(service, codec), methods=["POST"])
        for codec in (*SERVER_CODECS.values(), *OTHER_SERVER_CODECS.values())
        for path in (*codec.paths, *codec.other_paths)
    ]
    retrieval = [
        Route(path, RetrievalHandler(service, codec), methods=["POST"])
        for path, codec in RETRIEVAL_SERVERS.items()
    ]
    sockets = [
        WebSocketRoute(path, SocketHandler(service, codec))
        for codec in SERVER_CODECS.values()
        if codec.socket is not None
        for path in codec.paths
    ]
    has_pages = ui is not None and (
        service.people is not None or (service.keys is None and service.tokens is None)
    )
    web = _WebPages(service, ui or "")
    paths = ("/", "/ui/{path:path}") if has_pages else ()
    # Starlette tries the routes in this order. Chat paths without parameters come first, since
    # nearly all requests use them. Retrieval paths come before chat paths with parameters, which
    # would match them too.
    return [
        *[route for route in posts if not route.param_convertors],
        *retrieval,
        *[route for route in posts if route.param_convertors],
        *sockets,
        *kept_routes(service),
        *Pages(service).routes(),
        Route(PATH + "{path:path}", PassHandler(service), methods=[*METHODS]),
        *Administration(service).routes(),
        *(() if service.sessions is None else service.sessions.routes(service)),
        *[Route(path, web) for path in paths],
    ]


# --- worker processes --------------------------------------------------------------------------


def _log_access() -> None:
    """Write one JSON line per request to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("dragoman.access")
    log.handlers = [handler]
    log.propagate = False
    log.setLevel(logging.INFO)


def _open_models(
    settings: Mapping[str, Any],
) -> tuple[Mapping[str, ServedModel] | Registry, Sequence[Webhook]]:
    """Return the models to serve, and the webhooks that receive alerts."""
    registry = Registry.load(settings["config"])
    if not settings["models"]:
        return registry, list_webhooks(registry)
    models = {
        name: registry.provider(model, keep_raw=False)
        for name, model in registry.served(settings["models"]).items()
    }
    return models, list_webhooks(registry)


def _load_tokens(place: str | None) -> Tokens | None:
    """Return the verifier of ``--jwt``; its module needs an extra, so it is loaded by its name."""
    if place is None:
        return None
    found: Tokens = importlib.import_module("dragoman.gateway.tokens").load_tokens(Path(place))
    return found


def _open_login(tokens: Tokens | None, admin: str | None) -> LogIn | None:
    """Return what logs people in to the pages, if the file of ``--jwt`` has settings for it."""
    if tokens is None or tokens.login is None:
        return None
    if admin is None:
        raise ValueError(_LOGIN_WITHOUT_ADMIN)
    found: LogIn = importlib.import_module("dragoman.gateway.login").LogIn(tokens)
    return found


def _load_sessions(place: str | None) -> SessionService | None:
    """Return the service of ``--sessions``; its box is loaded by its name, only if it is used."""
    if place is None:
        return None
    found = importlib.import_module("dragoman.service").load_sessions(place)
    atexit.register(found.log.close)
    service: SessionService = found
    return service


def create_app_from_environment() -> Starlette:
    """Build a worker's application from the environment that ``dragoman serve`` sets."""
    settings = json.loads(os.environ[SETTINGS])
    if settings["access_log"]:
        _log_access()
    log = open_log(settings["log"]) if settings["log"] else None
    if log is not None:
        atexit.register(log.close)
    store = None
    if settings["store"]:
        store = ResponseStore(settings["store"], keep_seconds=settings["store_days"] * DAY)
        atexit.register(store.close)
    keys = load_keys(settings["keys"]) if settings["keys"] else None
    if keys is not None:
        atexit.register(keys.close)
    limits = None
    if settings["redis"] is not None:
        spare = Ledger() if settings["on_redis_failure"] == "local" else None
        limits = RedisLimits(
            settings["redis"], on_failure=settings["on_redis_failure"], spare=spare
        )
    config = Path(settings["config"]) if settings["config"] else config_path()
    stamp = read_stamp(config)  # taken before the file is read, so that no change is missed
    models, webhooks = _open_models(settings)
    app = create_app(
        models,
        webhooks=webhooks,
        keys=keys,
        tokens=_load_tokens(settings["jwt"]),
        ledger=Ledger(settings["state"]),
        limits=limits,
        bounds=Bounds(**settings["bounds"]),
        log=log,
        store=store,
        usage=UsageBook(settings["state"]) if settings["admin"] else None,
        tracing=Tracing() if settings["otel"] else None,
        sessions=_load_sessions(settings["sessions"]),
        **{name: settings[name] for name in _PASSED_ON},
    )
    service: Service = app.state.service
    if settings["metrics"] is not None:
        service.gathering = MetricsFolder(settings["metrics"], service.metrics)
        service.reasoning = ReasoningWatch(Path(settings["metrics"]))
    service.drain_delay = settings["drain_delay"]
    service.reload = lambda: Models(*_open_models(settings))
    service.config = config
    service.config_stamp = stamp
    return app
