"""Implement the command ``dragoman rerank``."""

from __future__ import annotations

import json
from typing import Annotated

import click
from msgspec.structs import asdict

from ..retrieval import RERANK_CODECS, Ranking
from . import retrieval
from .console import legible
from .errors import report_errors
from .options import model_argument
from .parameters import Json, add_options, option
from .retrieval import TextFile


class _RerankOptions(retrieval.RetrievalOptions, frozen=True):
    wire: Annotated[
        str,
        "Set the wire (API format) of --base-url.",
        option(type=click.Choice(sorted(RERANK_CODECS))),
    ] = "openai"


@click.command("rerank")
@model_argument()
@click.argument("query")
@click.argument("documents", nargs=-1)
@add_options
def command(
    model: str,
    query: str,
    documents: tuple[str, ...],
    *,
    file: Annotated[TextFile, "Read documents, one per line; - is standard input."] = None,
    top_k: Annotated[int | None, "Print only the N best documents.", option("N", ge=1)] = None,
    options: _RerankOptions,
    as_json: Annotated[Json, "Print the ranking and the usage as JSON."] = False,
) -> None:
    """Order DOCUMENTS by their relevance to QUERY with MODEL, the best first.

    Without DOCUMENTS, each line of standard input is one document.
    """
    given = [*documents, *retrieval.read_lines(file, or_stdin=not documents)]
    if not given:
        raise click.UsageError("there is no document to rank; give DOCUMENTS or --file")
    with report_errors(), retrieval.open_retrieval("rerank", model, options) as reranker:
        found: Ranking = reranker.rerank(query, given, top_k=top_k)
    retrieval.show_warnings(found.warnings)
    if as_json:
        results = [{**asdict(each), "document": given[each.index]} for each in found.results]
        bill = retrieval.describe_bill(found)
        click.echo(json.dumps({"model": found.model, "results": results, **bill}))
        return
    for each in found.results:
        click.echo(f"{each.relevance_score:8.4f}  {legible(given[each.index])}")
