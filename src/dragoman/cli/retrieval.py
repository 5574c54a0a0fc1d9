"""The options, input and model that ``dragoman embed`` and ``dragoman rerank`` share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import click
import msgspec

from ..blocking import SyncEmbedder, SyncReranker
from ..errors import InvalidModelError
from ..messages import LossWarning
from ..prices import cost
from ..retrieval import Embeddings, Ranking, connect_embedder, connect_reranker
from .console import notify
from .errors import reject
from .options import ModelOptions, load_registry
from .parameters import option
from .progress import fetch_default_model

TextFile: TypeAlias = Annotated[
    Any, option(flags="--file -f", type=click.File("r", encoding="utf-8"))
]


class RetrievalOptions(ModelOptions, frozen=True):
    """The options for the address of a model; a subclass has the choice of wires."""

    batch_size: Annotated[int | None, "Send up to N texts in a request.", option("N", ge=1)] = None


def read_lines(file: Any, *, or_stdin: bool) -> list[str]:
    """Return the lines of a file, or of standard input if no file is given; omit empty lines."""
    if file is None:
        if not or_stdin or sys.stdin.isatty():
            return []
        file = sys.stdin
    return [line.rstrip("\n") for line in file if line.strip()]


def open_retrieval(side: Literal["embed", "rerank"], model: str, options: RetrievalOptions) -> Any:
    """Return the embedder or reranker that the options name, for blocking calls.

    It retries a call up to twice after a transient failure.
    """
    settings = {"keep_raw": False, **options.connect_settings()}
    if options.batch_size is not None:
        settings["batch_size"] = options.batch_size
    connect: Any = connect_embedder if side == "embed" else connect_reranker
    blocking: Any = SyncEmbedder if side == "embed" else SyncReranker
    if options.base_url is None:
        load_registry()  # report a mistake in models.yaml as a usage error with its line
        if side == "embed":
            fetch_default_model(model, embeds=True)
    try:
        with reject(ValueError):
            return blocking(connect(model, retries=2, **settings))
    except InvalidModelError as error:
        server = "a server of your own needs --base-url."
        error.advice = f"A name is vendor:model or an alias of models.yaml; {server}"
        raise


def describe_bill(found: Embeddings | Ranking) -> dict[str, Any]:
    """Return the usage, the cost and the warnings of a result, as ``--json`` prints them."""
    bill = cost(found)
    return {
        "usage": msgspec.to_builtins(found.usage),
        "cost_usd": str(bill.total) if bill else None,
        "warnings": [str(warning) for warning in found.warnings],
    }


def show_warnings(warnings: Sequence[LossWarning]) -> None:
    """Print warnings about requested features that were not applied."""
    for warning in warnings:
        notify(f"warning: {warning}")
