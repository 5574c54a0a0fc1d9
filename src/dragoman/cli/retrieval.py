"""The options, input and model that ``dragoman embed`` and ``dragoman rerank`` share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import click

from ..errors import InvalidModelError
from ..messages import LossWarning
from ..retrieval import connect_embedder, connect_reranker
from ..sync import SyncEmbedder, SyncReranker
from .console import legible
from .options import load_registry


def retrieval_options(wires: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds the options for the address of a model."""
    options = [
        click.option(
            "--base-url",
            metavar="URL",
            help="Where it is served; not needed for a name like vendor:model.",
        ),
        click.option(
            "--wire",
            type=click.Choice(sorted(wires)),
            default="openai",
            show_default=True,
            help="The wire.",
        ),
        click.option(
            "--api-key-env",
            metavar="NAME",
            default="DRAGOMAN_API_KEY",
            show_default=True,
            help="The environment variable that holds the key.",
        ),
        click.option(
            "--batch-size",
            type=click.IntRange(1),
            metavar="N",
            help="How many go into one request.",
        ),
        click.option("--timeout", type=float, metavar="SECONDS", help="Give up after this long."),
    ]

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def read_lines(file: Any, *, or_stdin: bool) -> list[str]:
    """Return the lines of a file, or of standard input if no file is given; omit empty lines."""
    if file is None:
        if not or_stdin or sys.stdin.isatty():
            return []
        file = sys.stdin
    return [line.rstrip("\n") for line in file if line.strip()]


def open_retrieval(side: Literal["embed", "rerank"], model: str, options: dict[str, Any]) -> Any:
    """Return the embedder or reranker that the options name, for blocking calls.

    It retries a call up to twice after a transient failure.
    """
    settings: dict[str, Any] = {"keep_raw": False}
    if options["timeout"] is not None:
        settings["timeouts"] = options["timeout"]
    if options["batch_size"] is not None:
        settings["batch_size"] = options["batch_size"]
    connect: Any = connect_embedder if side == "embed" else connect_reranker
    blocking: Any = SyncEmbedder if side == "embed" else SyncReranker
    if options["base_url"] is not None:
        key = os.environ.get(options["api_key_env"])
        settings |= {"base_url": options["base_url"], "wire": options["wire"], "api_key": key}
    else:
        load_registry()  # report a mistake in models.yaml as a usage error with its line
    try:
        return blocking(connect(model, retries=2, **settings))
    except InvalidModelError as error:
        error.advice = (
            "A name is vendor:model or an alias of models.yaml; a server of your own needs "
            "--base-url."
        )
        raise
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def show_warnings(warnings: Sequence[LossWarning]) -> None:
    """Print warnings about requested features that were not applied."""
    for warning in warnings:
        click.echo(legible(f"warning: {warning}"), err=True)
