"""Implement the command ``dragoman embed``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import click

from ..retrieval import EMBED_CODECS, Embeddings
from . import retrieval
from .console import notify
from .errors import reject, report_errors
from .options import model_argument
from .parameters import Json, add_options, option


class _EmbedOptions(retrieval.RetrievalOptions, frozen=True):
    wire: Annotated[
        str,
        "Set the wire (API format) of --base-url.",
        option(type=click.Choice(sorted(EMBED_CODECS))),
    ] = "openai"


@click.command("embed")
@model_argument()
@click.argument("texts", nargs=-1)
@add_options
def command(
    model: str,
    texts: tuple[str, ...],
    *,
    file: Annotated[retrieval.TextFile, "Read texts, one per line; - is standard input."] = None,
    input_type: Annotated[
        str | None, "Embed the texts as query, document, or another type.", option("TYPE")
    ] = None,
    dimensions: Annotated[int | None, "Request vectors of this length.", option("N", ge=1)] = None,
    output: Annotated[
        Path | None,
        "Write the vectors to a .npy file for NumPy, or a .jsonl file.",
        option(
            "FILE", "--output -o", type=click.Path(dir_okay=False, writable=True, path_type=Path)
        ),
    ] = None,
    options: _EmbedOptions,
    as_json: Annotated[Json, "Print the vectors and the usage as JSON."] = False,
) -> None:
    """Turn TEXTS into vectors with MODEL: a vendor:model, an alias, or local.

    Without TEXTS, each line of standard input is one text. A long list is sent in several
    requests.
    """
    given = [*texts, *retrieval.read_lines(file, or_stdin=not texts)]
    if not given:
        raise click.UsageError("there is no text to embed; give TEXTS or --file")
    with report_errors(), retrieval.open_retrieval("embed", model, options) as embedder:
        found: Embeddings = embedder.embed(given, input_type=input_type, dimensions=dimensions)
    retrieval.show_warnings(found.warnings)
    if output is not None:
        _write_file(output, given, found)
    if as_json:
        counts = {"count": len(found.vectors), "dimensions": found.dimensions}
        vectors = {} if output else {"vectors": found.vectors.tolist()}
        bill = retrieval.describe_bill(found)
        click.echo(json.dumps({"model": found.model, **counts, **bill, **vectors}))
    elif output is not None:
        notify(f"{len(found.vectors)} vectors of {found.dimensions} numbers: {output}")
    else:
        for line in _show(given, found):
            click.echo(line)


def _show(texts: list[str], found: Embeddings) -> Iterator[str]:
    """Yield the start of each vector at a terminal, and full vectors as JSON Lines elsewhere."""
    if not sys.stdout.isatty():
        yield from [json.dumps(row.tolist()) for row in found.vectors]
        return
    for text, row in zip(texts, found.vectors, strict=True):
        numbers = " ".join([f"{number:+.4f}" for number in row[:6]])
        yield f"{numbers} … ({found.dimensions})  {text[:60]!r}"


def _write_file(path: Path, texts: list[str], found: Embeddings) -> None:
    with reject(OSError, about=f"{path} cannot be written: "):
        if path.suffix == ".npy":
            header = _npy_header(len(found.vectors), found.dimensions)
            path.write_bytes(header + found.vectors.tobytes())
        else:
            pairs = zip(texts, found.vectors, strict=True)
            lines = [json.dumps({"text": text, "vector": row.tolist()}) for text, row in pairs]
            path.write_text("\n".join(lines) + "\n", "utf-8")


def _npy_header(rows: int, columns: int) -> bytes:
    """Return the header of a NumPy file, padded to a multiple of 64 bytes."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}"
    padded = text + " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()
