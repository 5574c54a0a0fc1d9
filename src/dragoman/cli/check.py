"""Implement the command ``dragoman check``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from ..conformance import Report, check_server, write_html, write_junit, write_markdown, write_text
from ..conformance.retrieval import check_retrieval_server
from ..retrieval import EMBED_CODECS, RERANK_CODECS
from ..wire import CODECS
from .console import echo_json, legible
from .errors import EXIT_CODES, report_errors

_COLOURS = {
    "pass": "green",
    "fail": "red",
    "unsupported": "yellow",
    "not_applicable": "bright_black",
}
_WIRES = sorted({*CODECS, *EMBED_CODECS, *RERANK_CODECS})
_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command("check")
@click.argument("url")
@click.option(
    "--model", metavar="NAME", help="The model to ask; the first one listed, if left out."
)
@click.option(
    "--wire", type=click.Choice(_WIRES), help="The wire it speaks; found out, if left out."
)
@click.option(
    "--operation",
    type=click.Choice(["chat", "embed", "rerank"]),
    default="chat",
    show_default=True,
    help="What to check: a chat, embeddings, or reranking.",
)
@click.option(
    "--api-key-env",
    metavar="NAME",
    default="DRAGOMAN_API_KEY",
    show_default=True,
    help="The environment variable that holds the key.",
)
@click.option(
    "--timeout",
    type=float,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="For each call.",
)
@click.option(
    "--budget",
    type=float,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="For all of it.",
)
@click.option(
    "--max-tokens", type=click.IntRange(16), default=48, show_default=True, help="Of a reply."
)
@click.option(
    "--context",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="The window, if the server does not tell.",
)
@click.option(
    "--skip", multiple=True, metavar="CHECK", help="Leave out, by name; * is allowed. Repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--junit", type=_FILE, metavar="FILE", help="Write the report as JUnit XML, too.")
@click.option("--html", type=_FILE, metavar="FILE", help="Write the report as a page, too.")
@click.option("--markdown", type=_FILE, metavar="FILE", help="Write the report as Markdown, too.")
@click.option(
    "--save",
    type=_FILE,
    metavar="FILE",
    help="Write the capabilities that were found, for models.yaml.",
)
def command(
    url: str,
    model: str | None,
    wire: str | None,
    operation: str,
    api_key_env: str,
    timeout: float,
    budget: float,
    max_tokens: int,
    context: int | None,
    skip: tuple[str, ...],
    *,
    as_json: bool,
    junit: Path | None,
    html: Path | None,
    markdown: Path | None,
    save: Path | None,
) -> None:
    """Check whether the server at URL conforms to its wire, and which features its model supports.

    About forty short calls are made, limited in tokens and time. Exit code 30 means that a check
    failed.
    """
    with report_errors(), _progress(quiet=as_json) as progress:
        try:
            if operation != "chat":
                report = asyncio.run(
                    _check_retrieval(
                        url, model, operation, wire, os.environ.get(api_key_env), timeout
                    )
                )
                _finish(
                    report,
                    {junit: write_junit, html: write_html, markdown: write_markdown, save: _facts},
                    as_json,
                )
                return
            run = check_server(
                url,
                model,
                wire,
                os.environ.get(api_key_env),
                seconds=timeout,
                budget=budget,
                max_tokens=max_tokens,
                context=context,
                skip=skip,
                progress=progress,
            )
            report = asyncio.run(run)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    _finish(
        report,
        {junit: write_junit, html: write_html, markdown: write_markdown, save: _facts},
        as_json,
    )


async def _check_retrieval(
    url: str,
    model: str | None,
    operation: Any,
    wire: str | None,
    api_key: str | None,
    seconds: float,
) -> Report:
    if model is None:
        raise click.UsageError("--operation embed and rerank need --model")
    return await check_retrieval_server(
        url, model, operation, wire or "openai", api_key, seconds=seconds
    )


def _finish(
    report: Report, forms: dict[Path | None, Callable[[Report], str]], as_json: bool
) -> None:
    _write(report, forms)
    echo_json(report.to_json()) if as_json else click.echo(_show(report))
    if report.failed:
        sys.exit(EXIT_CODES["check_failed"])


def _facts(report: Report) -> str:
    return report.to_facts().decode() + "\n"


def _write(report: Report, forms: dict[Path | None, Callable[[Report], str]]) -> None:
    for path, form in forms.items():
        if path is not None:
            try:
                path.write_text(form(report), "utf-8")
            except OSError as error:
                raise click.UsageError(
                    f"{path} cannot be written: {error.strerror or error}"
                ) from error


def _show(report: Report) -> str:
    """Return the report in colour; escape control characters that the server sent."""
    marks = {status: chr(0xE000 + at) for at, status in enumerate(_COLOURS)}
    text = legible(write_text(report, paint=lambda text, status: f"{marks[status]}{text}\ue0ff"))
    end = click.style("|", fg="red").split("|")[1] if _wants_colour() else ""
    for status, mark in marks.items():
        start = click.style("|", fg=_COLOURS[status]).split("|")[0] if _wants_colour() else ""
        text = text.replace(mark, start)
    return text.replace("\ue0ff", end)


def _wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int, str], None] | None]:
    """Show a progress bar on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    bar: Any
    with click.progressbar(length=1, label="checking", file=sys.stderr, show_eta=False) as bar:

        def show(done: int, total: int, name: str) -> None:
            bar.length = total
            bar.label = f"checking {name:<22}"
            bar.update(done - bar.pos)

        yield show
