"""Implement the command ``dragoman serve``."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import ssl
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import click
from msgspec import Struct
from msgspec.structs import asdict

from ..database import is_postgres
from ..errors import ProviderError, scrub
from ..gateway.access import Bounds
from ..gateway.keys import KeyRing, new_key
from ..gateway.keystore import load_keys
from ..gateway.ledger import Ledger
from ..gateway.limits import POLICIES, RedisLimits
from ..gateway.people import People
from ..log import LogError, PostgresLog, open_log
from ..provider import SCHEMES
from ..registry import ConfigError, Registry, expand_group, find_pattern_problem
from ..transport.connect import is_loopback
from .clients import write_hint
from .errors import reject, report_errors, report_mistakes
from .parameters import ExistingFile, Json, add_options, option

_MIB = 1024 * 1024
_BOUNDS = Bounds()
# open files other than connections of the main port: the log, the ledger, the event loop, and up
# to 64 connections of --ready-port
_OTHER_FILES = 128


class ServeOptions(Struct):
    """The options of ``dragoman serve``."""

    models: Annotated[
        tuple[str, ...],
        "Serve this model, under NAME if given, in place of all configured ones; may be repeated. "
        "NAME may be a pattern such as 'claude-haiku-*', for names that clients choose; "
        "'openai/*=openai:*' serves each listed model of a vendor under another name.",
        option("[NAME=]MODEL", "--model"),
    ] = ()
    config: Annotated[ExistingFile, "Use this file as models.yaml.", option("FILE")] = None
    host: Annotated[str, "Listen on this address."] = "127.0.0.1"
    port: Annotated[int, "Listen on this port.", option(ge=0, le=65535)] = 8100
    tls_cert: Annotated[
        ExistingFile, "Serve TLS with this certificate (PEM, with its chain).", option("FILE")
    ] = None
    tls_key: Annotated[
        ExistingFile, "Use this private key for the certificate of --tls-cert.", option("FILE")
    ] = None
    keys: Annotated[
        str | None,
        "Require a key from this YAML file, or from this database of dragoman keys gateway, a"
        " SQLite file or a postgresql:// URL. Needed to serve other machines.",
        option("PLACE", "--auth"),
    ] = None
    jwt: Annotated[
        ExistingFile,
        "Accept tokens of the identity providers that this YAML file names, too. With login settings, "
        "their people log in to the web pages. Needs the extra jwt.",
        option("FILE"),
    ] = None
    new_key: Annotated[
        str | None, "Print a new key and its lines for the key file, and exit.", option("NAME")
    ] = None
    state: Annotated[
        str | None,
        "Store the usage of keys in a SQLite file, or at a postgresql:// URL for several "
        "machines. Limited keys and several workers need a store.",
        option("PLACE"),
    ] = None
    redis: Annotated[
        str | None,
        "Count requests, tokens and concurrent calls of keys in this Redis, for all "
        "workers and machines.",
        option("URL", envvar="DRAGOMAN_REDIS", show_envvar=True),
    ] = None
    on_redis_failure: Annotated[
        str,
        "Reject calls of limited keys (503) while Redis is unavailable, admit such calls, or "
        "count in each worker.",
        option(type=click.Choice(POLICIES)),
    ] = "closed"
    workers: Annotated[int, "Run this many worker processes.", option(ge=1, le=64)] = 1
    max_body: Annotated[
        int, "Reject request bodies above this size.", option("MIB", ge=1, le=1024)
    ] = _BOUNDS.body_bytes // _MIB
    timeout: Annotated[float, "Stop a reply after this time.", option("SECONDS", ge=1)] = (
        _BOUNDS.reply_seconds
    )
    max_connections: Annotated[
        int,
        "Limit the connections of a worker; the limit of open files may lower the number.",
        option("N", ge=1, le=1_000_000),
    ] = _BOUNDS.connections
    max_connections_per_peer: Annotated[
        int | None,
        "Limit the connections from one address, by default to half of --max-connections. "
        "Behind a proxy, repeat the number of --max-connections.",
        option("N", ge=1, le=1_000_000),
    ] = None
    media_urls: Annotated[
        bool,
        "Accept URLs of images, audio and documents. The model's server may fetch a URL, so refuse "
        "URLs if that server can reach internal addresses.",
    ] = True
    drain: Annotated[
        int, "Let replies continue for this long after SIGTERM.", option("SECONDS", ge=0, le=3600)
    ] = 30
    drain_delay: Annotated[
        float,
        "Report 503 at /ready for this long after SIGTERM before the port is closed, so that "
        "load balancers stop sending requests.",
        option("SECONDS", ge=0, le=600),
    ] = 0.0
    open_ready: Annotated[
        bool, "Answer /ready without a key and without names of models, for load balancers."
    ] = False
    ready_port: Annotated[
        int | None,
        "Answer /health and /ready on this port too, over plain HTTP, without a key and"
        " without names of models.",
        option(ge=1, le=65535),
    ] = None
    otel: Annotated[
        bool,
        "Record OpenTelemetry spans of requests and attempts; run "
        "opentelemetry-instrument -- dragoman serve --otel.",
    ] = False
    access_log: Annotated[
        bool, "Print one line of JSON for each request on standard error, without content or keys."
    ] = True
    log: Annotated[
        str | None,
        "Record every call in this event log, a file or a postgresql:// URL: key, model, tokens, "
        "cost, warnings and times, without content.",
        option("PLACE"),
    ] = None
    log_content: Annotated[bool, "Record the messages as well (with --log)."] = False
    log_days: Annotated[
        int | None,
        "Remove the sessions of the log that are older than this many days, once a day (with --log).",
        option(ge=1, le=36_500),
    ] = None
    cors: Annotated[
        tuple[str, ...],
        "Let web pages of this origin (https://app.example) call the gateway from a "
        "browser; may be repeated. '*' needs --auth.",
        option("ORIGIN"),
    ] = ()
    url_keys: Annotated[
        bool | None,
        "Accept the key of a Gemini client in the URL (?key=), which proxies write to logs; "
        "by default only from this machine.",
    ] = None
    betas: Annotated[
        tuple[str, ...],
        "Pass on a beta that clients name (or a pattern such as 'files-api-*') to models of the "
        "same wire; may be repeated. 'default' stands for betas that affect one request only.",
        option("BETA", "--beta"),
    ] = ("default",)
    store: Annotated[
        str | None,
        "Store responses in a SQLite file or postgresql:// database, each for its key alone; "
        "previous_response_id, conversations and background mode need a store. The store also "
        "keeps the reasoning between tool calls that clients do not send back.",
        option("PLACE"),
    ] = None
    store_days: Annotated[
        float,
        "Delete stored responses and reasoning after this many days.",
        option("DAYS", ge=0.001),
    ] = 30.0
    sessions: Annotated[
        str | None,
        "Run the agents of a YAML file, or of MODULE:FUNCTION, for clients at /v1/sessions. "
        "Their tools run in this process; without the option, the gateway runs no tool.",
        option("FILE"),
    ] = None
    admin: Annotated[
        ExistingFile,
        "Show overview, keys and traces at /, and the figures of all keys at /metrics, to the key "
        "whose hash (sha256:...) is in this file, or to several people with roles, a line each; "
        "--new-key makes a key.",
        option("FILE"),
    ] = None
    ui: Annotated[
        bool,
        "Serve the web pages at /. With --auth, only the key of --admin opens the pages; without "
        "--auth and --admin, this machine sees the playground and the models.",
    ] = True
    as_json: Annotated[Json, "Print a new key as JSON."] = False


@click.command("serve")
@add_options
def command(options: ServeOptions) -> None:
    """Serve models to existing clients, each over the API that it uses.

    Chat Completions is served at /v1/chat/completions, Responses at /v1/responses, Messages at
    /v1/messages, and more.
    """
    if options.new_key is not None:
        _show_new_key(options.new_key, as_json=options.as_json)
        return
    if options.keys is None and options.jwt is None:
        _check_open(options.host, options.cors)
    if options.ready_port == options.port:
        raise click.UsageError("--ready-port must not be the same as --port")
    with report_errors():
        named = _read_models(options.models)
        tls = _read_tls(options.tls_cert, options.tls_key)
        _check_state(_check(options, named), options)
        _check_log(options)
        _check_sessions(options)
        is_keyed = options.keys is not None or options.jwt is not None
        _check_tokens(options.jwt, options.admin)
        settings = {
            **asdict(options),
            "models": named,
            "check_host": is_loopback(options.host) and not is_keyed,
            "bounds": _read_bounds(options),
            "admin": _read_admin(options.admin),
            "ui": "dragoman.gateway.web" if options.ui else None,
        }
        with contextlib.ExitStack() as stack:
            settings["metrics"] = _open_metrics_folder(stack) if options.workers > 1 else None
            server = {"host": options.host, "port": options.port, "workers": options.workers}
            _run(
                settings,
                {**server, **tls, "timeout_graceful_shutdown": options.drain},
                options.ready_port,
            )


def _open_metrics_folder(stack: contextlib.ExitStack) -> str | None:
    """Create a folder in which workers share their counters; remove it at the end."""
    try:
        return stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-metrics-"))
    except OSError as error:
        click.echo(f"/metrics will show one worker at a time: {error}", err=True)
        return None


def _read_bounds(options: ServeOptions) -> dict[str, Any]:
    connections = _fit_open_files(options.max_connections)
    return {
        "body_bytes": options.max_body * _MIB,
        "reply_seconds": options.timeout,
        "media_urls": options.media_urls,
        "connections": connections,
        "connections_per_peer": options.max_connections_per_peer or max(1, connections // 2),
    }


def _read_admin(file: str | None) -> str | None:
    """Return the people in a file after a check, or ``None`` if no file is given."""
    if file is None:
        return None
    text = Path(file).read_text(encoding="utf-8", errors="replace")
    try:
        People(text)
    except ValueError as error:
        raise click.UsageError(f"--admin: {file}: {error}") from None
    return text


def _check_state(ring: KeyRing, options: ServeOptions) -> None:
    """Check the options for limits; open the ledger once, to find a wrong location early."""
    state = options.state
    redis = options.redis
    counts = [key.has_budget or (key.has_rates and redis is None) for key in ring.keys]
    if options.workers > 1 and state is None and any(counts):
        raise click.UsageError(
            "--workers: keys with limits are counted together; give --state PLACE"
        )
    if redis is not None:
        with reject(ValueError, ImportError, about="--redis: "):
            RedisLimits(redis)
    if state is None:
        return
    # the SQLite and PostgreSQL drivers raise different exceptions
    with reject(Exception, about="--state: "):
        Ledger(state).close()


def _check_tokens(place: str | None, admin: str | None) -> None:
    """Read the file of --jwt before the server starts, so that a mistake is one line."""
    if place is None:
        return
    with report_mistakes(), reject(ImportError):
        tokens = importlib.import_module("dragoman.gateway.tokens").load_tokens(Path(place))
    if tokens.login is not None and admin is None:
        raise click.UsageError(
            f"--jwt: {place}: people log in to the pages, which need --admin; its key opens them "
            "if the identity provider is down"
        )


def _load_keys(place: str) -> KeyRing:
    if not is_postgres(place) and not Path(place).exists():
        raise click.UsageError(f"--auth: {place} does not exist")
    try:
        ring = load_keys(place)
    except ConfigError:
        raise
    except Exception as error:  # an exception of the SQLite or the PostgreSQL driver
        raise click.UsageError(f"--auth: {scrub(str(error))}") from error
    ring.close()
    if ring.source is None or len(ring):
        return ring
    raise click.UsageError(
        f"--auth: {scrub(place)} has no keys; create one with dragoman keys gateway new"
    )


def _read_tls(tls_cert: str | None, tls_key: str | None) -> dict[str, Any]:
    """Return the TLS settings, if any; reject a certificate and a key that do not match."""
    if tls_cert is None or tls_key is None:
        if tls_cert != tls_key:
            raise click.UsageError("--tls-cert and --tls-key go together; give both")
        return {}
    with reject(ssl.SSLError, OSError, about="--tls-cert, --tls-key: "):
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls_cert, tls_key)
    return {"ssl_certfile": tls_cert, "ssl_keyfile": tls_key}


def _check_open(host: str, cors: Sequence[str]) -> None:
    """Refuse to start without keys if other machines or web pages could reach the gateway."""
    if not is_loopback(host):
        raise click.UsageError(
            f"--host {host} can be reached from outside: give --auth FILE, or stay on 127.0.0.1"
        )
    if "*" in cors:
        raise click.UsageError(
            "--cors '*': every web page could use a gateway without keys; give --auth FILE"
        )


def _check_log(options: ServeOptions) -> None:
    """Open the log once, to report a wrong location before the first call."""
    where = options.log
    if where is None:
        if options.log_content:
            raise click.UsageError("--log-content needs a log; add --log PLACE")
        if options.log_days is not None:
            raise click.UsageError("--log-days needs a log; add --log PLACE")
        return
    with reject(LogError, about="--log: "), open_log(where) as log:
        is_file = not isinstance(log, PostgresLog)
    if options.workers > 1 and is_file:
        raise click.UsageError(
            "--log: a file has one writer; give a postgresql:// URL, or --workers 1"
        )


def _check_sessions(options: ServeOptions) -> None:
    """Read the agents once, and open their log, to report a mistake before the server starts."""
    place = options.sessions
    if place is None:
        return
    with report_mistakes(), reject(LogError, about="--sessions: "):
        service = importlib.import_module("dragoman.service").load_sessions(place)
    is_file = not isinstance(service.log, PostgresLog)
    service.log.close()
    if options.workers > 1 and is_file:
        raise click.UsageError(
            "--sessions: the log of the agents is a file, which has one writer; give a postgresql:// "
            "URL in it, or --workers 1"
        )


def _fit_open_files(connections: int) -> int:
    """Raise the limit of open files if necessary; return how many connections it allows.

    A call uses two open files: the client's connection and the one to the model's server.
    """
    if sys.platform == "win32":  # Windows does not limit the number of open files
        return connections
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(1, min(connections, (soft - _OTHER_FILES) // 2))
    return connections


def _show_new_key(name: str, *, as_json: bool) -> None:
    key, digest = new_key()
    if as_json:
        click.echo(json.dumps({"name": name, "key": key, "hash": digest}))
        return
    click.echo(f"key: {key}")
    click.echo(
        "It is shown this once. Give it to its owner, and put these lines into the file for "
        "--auth:\n",
        err=True,
    )
    click.echo(f"keys:\n  {json.dumps(name)}:\n    hash: {digest}")


def _read_models(models: tuple[str, ...]) -> dict[str, str]:
    named: dict[str, str] = {}
    for entry in models:
        name, equals, target = entry.partition("=")
        if not name or (equals and not target):
            raise click.UsageError(f"--model: {entry!r} is not NAME=MODEL")
        problem = find_pattern_problem(name, target or name)
        if problem is not None:
            raise click.UsageError(f"--model: {entry!r}: {problem}")
        if name in named:
            raise click.UsageError(
                f"--model: {name!r} is given to two models; give each its own name"
            )
        named[name] = target or name
    return named


def _check(options: ServeOptions, named: dict[str, str]) -> KeyRing:
    """Check the models and the keys before the server starts; return the keys.

    Later, a mistake would crash the worker processes.
    """
    with report_mistakes():
        registry = Registry.load(options.config)
        if not named and not registry.served() and options.sessions is None:
            raise click.UsageError(
                "models.yaml lists no models; add models, groups or serve to it, or give --model"
            )
        for name, target in named.items():
            _check_model(registry, name, target, options)
        return _load_keys(options.keys) if options.keys is not None else KeyRing()


def _check_model(registry: Registry, name: str, target: str, options: ServeOptions) -> None:
    """Check that a name, or a pattern of names, stands for models that can be called."""
    expanded = registry.served({name: target})
    if not expanded:
        raise click.UsageError(f"--model {name}: no model is listed whose name matches {target}")
    for model in expanded.values():
        is_name = model == name and ":" not in name
        hint = f"to serve a model by this name, write {name}=vendor:model. " if is_name else ""
        with reject(ProviderError, about=f"--model {name}: {hint}"):
            registry.provider(model)
        _check_address(registry, name, model, options)


def _check_address(registry: Registry, name: str, target: str, options: ServeOptions) -> None:
    """Reject a model whose address, in a variable for the gateway's clients, is the gateway's."""
    candidates = expand_group(target, registry.groups(), registry.aliases())
    for each in [candidate.model for candidate in candidates]:
        if each.partition(":")[0] in SCHEMES:
            continue
        adapter = registry.adapter(registry.find(each).adapter)
        variable = adapter.address_env
        address = urlsplit(adapter.base_url or "")
        if variable and address.port == options.port and is_loopback(address.hostname or ""):
            raise click.UsageError(
                f"--model {name}: {variable} names this gateway, so its requests would come back "
                f"to it; start the gateway without {variable}"
            )


def _run(settings: dict[str, Any], server: dict[str, Any], ready_port: int | None) -> None:
    """Run the gateway; ``server`` contains settings of the HTTP server."""
    try:
        import uvicorn  # noqa: F401 - it needs the extra ``gateway``
    except ImportError as error:
        raise click.UsageError(
            "the gateway needs its extra: pip install 'dragoman[gateway]'"
        ) from error
    place = importlib.import_module("dragoman.gateway.app")
    os.environ[place.SETTINGS] = json.dumps(settings)
    supervisor = importlib.import_module("dragoman.gateway.supervisor")
    listener = None
    if ready_port is not None:
        with reject(OSError, about=f"--ready-port {ready_port}: "):
            listener = supervisor.bind_port(server["host"], ready_port)
    # Bind the port before it is announced: a client that waits for the line may connect at once.
    with reject(OSError, about=f"--port {server['port']}: "):
        bound = supervisor.bind_port(server["host"], server["port"])
        bound.listen(server.get("backlog", 2048))
        bound.set_inheritable(True)
    shown = f"[{server['host']}]" if ":" in server["host"] else server["host"]
    names = ", ".join(settings["models"]) or "the models of models.yaml"
    scheme = "https" if "ssl_certfile" in server else "http"
    url = f"{scheme}://{shown}:{server['port']}"
    click.echo(f"serving {names} at {url}", err=True)
    click.echo(write_hint(url, settings["models"]), err=True)
    if ready_port is not None:
        click.echo(f"serving /health and /ready at http://{shown}:{ready_port}", err=True)
    config = supervisor.ServerConfig(
        partial(supervisor.create_worker_app, listener),
        factory=True,
        access_log=False,
        log_level="warning",
        server_header=False,
        ws="none",
        http="dragoman.gateway.http_protocol:BoundedHttpProtocol",
        **server,
    )
    with contextlib.closing(bound):
        supervisor.run(config, listener, bound)
