"""Implement the command ``dragoman rerank``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import click

from ..retrieval import RERANK_CODECS, Ranking
from .console import legible
from .errors import report_errors
from .options import model_argument
from .parameters import Json, add_options, option
from .retrieval import (
    RetrievalOptions,
    TextFile,
    describe_bill,
    open_retrieval,
    read_lines,
    show_warnings,
)


class _Options(RetrievalOptions, frozen=True):
    wire: Annotated[str, "The wire.", option(type=click.Choice(sorted(RERANK_CODECS)))] = "openai"


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
    file: Annotated[TextFile, "Documents, one a line; - for standard input."] = None,
    top_k: Annotated[int | None, "Only the N best.", option("N", ge=1)] = None,
    options: _Options,
    as_json: Annotated[Json, "Print the ranking and the usage as JSON."] = False,
) -> None:
    """Order DOCUMENTS by their relevance to QUERY with MODEL, the best first.

    Without DOCUMENTS, each line of standard input is one document.
    """
    given = [*documents, *read_lines(file, or_stdin=not documents)]
    if not given:
        raise click.UsageError("there is no document to rank")
    with report_errors(), open_retrieval("rerank", model, options) as reranker:
        found: Ranking = reranker.rerank(query, given, top_k=top_k)
    show_warnings(found.warnings)
    if as_json:
        click.echo(json.dumps(_describe(found, given)))
        return
    for each in found.results:
        click.echo(f"{each.relevance_score:8.4f}  {legible(given[each.index])}")


def _describe(found: Ranking, given: list[str]) -> dict[str, Any]:
    results = [
        {
            "index": each.index,
            "relevance_score": each.relevance_score,
            "document": given[each.index],
        }
        for each in found.results
    ]
    return {
        "model": found.model,
        "results": results,
        **describe_bill(found),
    }
