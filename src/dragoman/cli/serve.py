"""Implement the command ``dragoman serve``."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import ssl
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..errors import ProviderError, scrub
from ..gateway.access import Bounds
from ..gateway.database import is_postgres
from ..gateway.keys import Key, KeyRing, is_hash, new_key
from ..gateway.keystore import load_keys
from ..gateway.ledger import Ledger
from ..gateway.limits import POLICIES, RedisLimits
from ..log import LogError, PostgresLog, open_log
from ..registry import ConfigError, Registry
from ..wire.urls import is_loopback
from .errors import WrongFile, report_errors

_ACCESS = logging.getLogger("dragoman.access")
_MIB = 1024 * 1024
_BOUNDS = Bounds()
# Options that are passed to the worker processes unchanged.
_PASSED = (
    "state", "redis", "on_redis_failure", "access_log", "log", "log_content", "url_keys", "store",
    "store_days",
    "drain_delay", "open_ready", "otel",
)  # fmt: skip
# open files other than connections of the main port: the log, the ledger, the event loop, and up
# to 64 connections of --ready-port
_OTHER_FILES = 128


@click.command("serve")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="[NAME=]MODEL",
    help=(
        "Serve this model, under this name. Again for more; without it, every configured one of "
        "the registry."
    ),
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Your models.yaml.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    default=8100,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port to listen on.",
)
@click.option(
    "--tls-cert",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Serve TLS with this certificate (PEM, with its chain).",
)
@click.option(
    "--tls-key",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="The private key of --tls-cert.",
)
@click.option(
    "--auth",
    "keys",
    metavar="PLACE",
    help=(
        "The keys: a YAML file, or a database of dragoman keys gateway (a SQLite file or "
        "postgresql:// URL). Requests without a key are rejected. Required beyond loopback."
    ),
)
@click.option(
    "--new-key",
    metavar="NAME",
    help="Make a key, print it once and the lines for the file, and exit.",
)
@click.option(
    "--state",
    metavar="PLACE",
    help=(
        "What keys have used: a SQLite file, or a postgresql:// URL for several machines; needed "
        "by limited keys with several workers."
    ),
)
@click.option(
    "--redis",
    metavar="URL",
    envvar="DRAGOMAN_REDIS",
    show_envvar=True,
    help=(
        "Count requests, tokens and calls at a time of keys in this Redis, for all workers and "
        "machines."
    ),
)
@click.option(
    "--on-redis-failure",
    default="closed",
    show_default=True,
    type=click.Choice(POLICIES),
    help=(
        "While Redis is unavailable: reject calls of keys with such limits (503), admit them, or "
        "count in each worker."
    ),
)
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="How many processes.",
)
@click.option(
    "--max-body",
    default=8,
    show_default=True,
    type=click.IntRange(1, 1024),
    metavar="MIB",
    help="The longest body taken.",
)
@click.option(
    "--timeout",
    default=900.0,
    show_default=True,
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="The longest reply.",
)
@click.option(
    "--max-connections",
    default=_BOUNDS.connections,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help=(
        "The most connections of one worker at a time; lowered to what the limit of open files "
        "allows."
    ),
)
@click.option(
    "--max-connections-per-peer",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help=(
        "The most connections from one address; half of --max-connections unless given. Behind a "
        "proxy, give as many."
    ),
)
@click.option(
    "--media-urls/--no-media-urls",
    default=True,
    show_default=True,
    help=(
        "Take images and documents as URLs. A server behind the gateway may fetch them: refuse "
        "where it could reach inner addresses."
    ),
)
@click.option(
    "--drain",
    default=30,
    show_default=True,
    type=click.IntRange(0, 3600),
    metavar="SECONDS",
    help="How long replies may go on after SIGTERM.",
)
@click.option(
    "--drain-delay",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 600),
    metavar="SECONDS",
    help=(
        "How long /ready reports 503 after SIGTERM before the port is closed, so that load "
        "balancers stop sending requests."
    ),
)
@click.option(
    "--open-ready",
    is_flag=True,
    help="Answer /ready without a key, for load balancers; it then names no models.",
)
@click.option(
    "--ready-port",
    type=click.IntRange(1, 65535),
    help=(
        "Also answer /health and /ready on this port, over plain HTTP, without a key and without "
        "the names of models."
    ),
)
@click.option(
    "--otel",
    is_flag=True,
    help=(
        "Record OpenTelemetry spans of requests and attempts with the global tracer provider; run "
        "it under opentelemetry-instrument."
    ),
)
@click.option(
    "--access-log/--no-access-log",
    default=True,
    show_default=True,
    help="One line of JSON a request, to standard error, without content or keys.",
)
@click.option(
    "--log",
    metavar="PLACE",
    help=(
        "Record every call in this event log, a file or a postgresql:// URL: key, model, tokens, "
        "cost, warnings and times, without content."
    ),
)
@click.option("--log-content", is_flag=True, help="With --log: record the messages, too.")
@click.option(
    "--cors",
    multiple=True,
    metavar="ORIGIN",
    help=(
        "Let web pages of this origin (https://app.example) call the gateway from a browser. Again"
        " for more; '*' needs --auth."
    ),
)
@click.option(
    "--url-keys/--no-url-keys",
    default=None,
    help=(
        "Take the key of a Gemini client from the URL (?key=). Unless given, only from this "
        "machine: URLs are written to the logs of proxies."
    ),
)
@click.option(
    "--store",
    metavar="PLACE",
    help=(
        "Keep responses in this SQLite file or postgresql:// database, each for its key alone: "
        "previous_response_id, item references, conversations and background mode need it."
    ),
)
@click.option(
    "--store-days",
    default=30.0,
    show_default=True,
    type=click.FloatRange(min=0.001),
    metavar="DAYS",
    help="How long responses are kept.",
)
@click.option(
    "--admin",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help=(
        "Serve the admin page at /admin to the key whose hash (sha256:...) is in this file; "
        "--new-key makes one. Off unless given."
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print a new key as JSON.")
def command(
    models: tuple[str, ...],
    config: str | None,
    host: str,
    port: int,
    keys: str | None,
    new_key: str | None,
    workers: int,
    drain: int,
    cors: tuple[str, ...],
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Serve models to existing clients, each over the API that it uses.

    Chat Completions is served at /v1/chat/completions, Responses at /v1/responses, Messages at
    /v1/messages, and more.
    """
    if new_key is not None:
        _show_new_key(new_key, as_json=as_json)
        return
    if keys is None:
        _check_open(host, cors)
    if options["ready_port"] == port:
        raise click.UsageError("--ready-port must not be the same as --port")
    with report_errors():
        named, tls = _read_models(models), _read_tls(options["tls_cert"], options["tls_key"])
        ring = _check(config, named, keys)
        _check_state(ring, options["state"], options["redis"], workers)
        _check_log(options["log"], workers, log_content=options["log_content"])
        settings = {name: options[name] for name in _PASSED} | {
            "config": config,
            "models": named,
            "keys": keys,
            "workers": workers,
            "check_host": is_loopback(host) and keys is None,
            "bounds": _read_bounds(options),
            "cors": cors,
            "admin": _read_admin(options["admin"]),
        }
        with contextlib.ExitStack() as stack:
            settings["metrics"] = _open_metrics_folder(stack) if workers > 1 else None
            server = {"host": host, "port": port, "workers": workers, **tls}
            server["timeout_graceful_shutdown"] = drain
            _run(settings, server, options["ready_port"])


def _open_metrics_folder(stack: contextlib.ExitStack) -> str | None:
    """Create a folder in which workers share their counters; remove it at the end."""
    try:
        return stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-metrics-"))
    except OSError as error:
        click.echo(f"/metrics will show one worker at a time: {error}", err=True)
        return None


def _read_bounds(options: Mapping[str, Any]) -> dict[str, Any]:
    bounds = {"body_bytes": options["max_body"] * _MIB, "reply_seconds": options["timeout"]}
    bounds["media_urls"] = options["media_urls"]
    return bounds | _bound_connections(
        options["max_connections"], options["max_connections_per_peer"]
    )


def _read_admin(file: str | None) -> str | None:
    """Return the hash of the admin key in a file, or ``None`` if no file is given."""
    if file is None:
        return None
    digest = Path(file).read_text(encoding="utf-8", errors="replace").strip()
    if not is_hash(digest):
        raise click.UsageError(
            f"--admin: {file} must have one line, sha256: and 64 hexadecimal digits"
        )
    return digest


def _needs_ledger(key: Key, redis: str | None) -> bool:
    return key.has_budget or (key.has_rates and redis is None)


def _check_state(ring: KeyRing, state: str | None, redis: str | None, workers: int) -> None:
    """Check the options for limits; open the ledger once, to find a wrong location early."""
    if workers > 1 and state is None and any(_needs_ledger(key, redis) for key in ring.keys):
        raise click.UsageError(
            "--workers: keys with limits are counted together; give --state PLACE"
        )
    if redis is not None:
        try:
            RedisLimits(redis)
        except (ValueError, ImportError) as error:
            raise click.UsageError(f"--redis: {error}") from error
    if state is None:
        return
    try:
        Ledger(state).close()
    except Exception as error:  # an exception of the SQLite or the PostgreSQL driver
        raise click.UsageError(f"--state: {scrub(str(error))}") from error


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
    if not ring.is_polled or len(ring):
        return ring
    raise click.UsageError(
        f"--auth: {scrub(place)} has no keys; create one with dragoman keys gateway new"
    )


def _read_tls(tls_cert: str | None, tls_key: str | None) -> dict[str, Any]:
    """Return the TLS settings, if any; reject a certificate and a key that do not match."""
    if tls_cert is None or tls_key is None:
        if tls_cert != tls_key:
            raise click.UsageError("--tls-cert and --tls-key go together")
        return {}
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls_cert, tls_key)
    except (ssl.SSLError, OSError) as error:
        raise click.UsageError(f"--tls-cert, --tls-key: {error}") from error
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


def _check_log(where: str | None, workers: int, *, log_content: bool) -> None:
    """Open the log once, to report a wrong location before the first call."""
    if where is None:
        if log_content:
            raise click.UsageError("--log-content needs --log")
        return
    try:
        with open_log(where) as log:
            is_file = not isinstance(log, PostgresLog)
    except LogError as error:
        raise click.UsageError(f"--log: {scrub(str(error))}") from error
    if workers > 1 and is_file:
        raise click.UsageError(
            "--log: a file has one writer; give a postgresql:// URL, or --workers 1"
        )


def _bound_connections(most: int, per_peer: int | None) -> dict[str, int]:
    connections = _fit_open_files(most)
    return {
        "connections": connections,
        "connections_per_peer": per_peer or max(1, connections // 2),
    }


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
        if name in named:
            raise click.UsageError(f"--model: {name!r} is there twice")
        named[name] = target or name
    return named


def _check(config: str | None, named: dict[str, str], keys: str | None) -> KeyRing:
    """Check the models and the keys before the server starts; return the keys.

    Later, a mistake would crash the worker processes.
    """
    try:
        registry = Registry.load(config)
        for name, target in named.items():
            try:
                registry.provider(target)
            except ProviderError as error:
                raise click.UsageError(f"--model {name}: {error}") from error
        return _load_keys(keys) if keys is not None else KeyRing()
    except ConfigError as error:
        raise WrongFile(str(error)) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _run(told: dict[str, Any], server: dict[str, Any], ready_port: int | None) -> None:
    """Run the gateway; ``server`` contains settings of the HTTP server."""
    try:
        import uvicorn  # lazy import: uvicorn is slow to import and needs the extra ``gateway``
    except ImportError as error:
        raise click.UsageError(
            "the gateway needs its extra: pip install 'dragoman[gateway]'"
        ) from error
    place = importlib.import_module("dragoman.gateway.app")
    os.environ[place.SETTINGS] = json.dumps(told)
    supervisor = importlib.import_module("dragoman.gateway.supervisor")
    listener = None
    if ready_port is not None:
        try:
            listener = supervisor.bind_port(server["host"], ready_port)
        except OSError as error:
            raise click.UsageError(f"--ready-port {ready_port}: {error}") from error
    shown = f"[{server['host']}]" if ":" in server["host"] else server["host"]
    names = ", ".join(told["models"]) or "the registry's models"
    scheme = "https" if "ssl_certfile" in server else "http"
    click.echo(f"serving {names} at {scheme}://{shown}:{server['port']}", err=True)
    if ready_port is not None:
        click.echo(f"serving /health and /ready at http://{shown}:{ready_port}", err=True)
    config = uvicorn.Config(
        partial(supervisor.create_worker_app, listener),
        factory=True,
        access_log=False,
        log_level="warning",
        server_header=False,
        ws="none",
        http="dragoman.gateway.http_protocol:BoundedHttpProtocol",
        **server,
    )
    supervisor.run(config, listener)
