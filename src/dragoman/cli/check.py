"""Implement the command ``dragoman check``."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import click
from msgspec import Struct

from ..conformance import Report, check_server, write_html, write_junit, write_markdown, write_text
from ..conformance.believed import BeliefCheck, write_beliefs
from ..conformance.retrieval import check_retrieval_server
from ..errors import AuthenticationError
from ..registry import load_vendor, vendor_names
from ..retrieval import EMBED_CODECS, RERANK_CODECS
from ..wire import CODECS
from .console import Bar, echo_json, legible
from .errors import EXIT_CODES, reject, report_errors
from .options import ApiKeyVariable
from .parameters import Json, add_options, option

_COLOURS = {
    "pass": "green",
    "fail": "red",
    "unsupported": "yellow",
    "not_observed": "yellow",
    "not_applicable": "bright_black",
}
_WIRES = sorted({*CODECS, *EMBED_CODECS, *RERANK_CODECS})
_File: TypeAlias = Annotated[
    Path | None, option("FILE", type=click.Path(dir_okay=False, writable=True, path_type=Path))
]


class CheckOptions(Struct):
    """The options of ``dragoman check``."""

    model: Annotated[str | None, "Check this model, not the first listed.", option("NAME")] = None
    vendor: Annotated[
        str | None,
        "Check what the catalogue believes about a model of this vendor.",
        option(type=click.Choice(vendor_names())),
    ] = None
    yes: Annotated[bool, "Make the calls of --vendor without a question."] = False
    wire: Annotated[
        str | None, "Set the wire (API format) of the server.", option(type=click.Choice(_WIRES))
    ] = None
    operation: Annotated[
        Literal["chat", "embed", "rerank"], "Check a chat, embedding or reranking model."
    ] = "chat"
    api_key_env: ApiKeyVariable = "DRAGOMAN_API_KEY"
    timeout: Annotated[float, "Stop a call after this time.", option("SECONDS")] = 60.0
    budget: Annotated[float, "Stop the check after this many seconds.", option("SECONDS")] = 600.0
    max_tokens: Annotated[int, "Limit each reply to this many tokens.", option(ge=16)] = 48
    context: Annotated[
        int | None, "Set the context window, if the server reports none.", option("TOKENS", ge=1)
    ] = None
    skip: Annotated[
        tuple[str, ...], "Skip checks by name, such as tools*; may be repeated.", option("CHECK")
    ] = ()
    as_json: Annotated[Json, "Print the report as JSON."] = False
    junit: Annotated[_File, "Write the report to a file as JUnit XML."] = None
    html: Annotated[_File, "Write the report to a file as an HTML page."] = None
    markdown: Annotated[_File, "Write the report to a file as Markdown."] = None
    save: Annotated[_File, "Write the detected capabilities to a file, for models.yaml."] = None


@click.command("check")
@click.argument("url", required=False)
@add_options
def command(url: str | None, options: CheckOptions) -> None:
    """Check whether the server at URL conforms to its wire, and which features its model supports.

    About fifty short calls are made, limited in tokens and time. With --vendor, print what the
    catalogue believes about a model of this vendor and what it costs to ask, and then ask the
    server about each belief. Exit code 30 means that a check failed.
    """
    key = os.environ.get(options.api_key_env)
    if options.vendor is not None:
        _check_vendor(options.vendor, url, key, options)
        return
    if url is None:
        raise click.UsageError("name the URL of a server, or a vendor with --vendor")
    with report_errors(), Bar() as bar, reject(ValueError):
        show = lambda done, total, name: bar(f"checking {name:<22}", done, total)
        if options.operation != "chat":
            report = asyncio.run(_check_retrieval(url, key, options))
        else:
            run = check_server(
                url, options.model, options.wire, key,
                seconds=options.timeout, budget=options.budget, context=options.context,
                max_tokens=options.max_tokens, skip=options.skip,
                progress=None if options.as_json else show,
            )  # fmt: skip
            report = asyncio.run(run)
    _write(report, options)
    echo_json(report.to_json()) if options.as_json else click.echo(_show(report))
    if report.failed:
        sys.exit(EXIT_CODES["check_failed"])


def _check_vendor(vendor: str, url: str | None, key: str | None, options: CheckOptions) -> None:
    """Print the beliefs about a model of a vendor and the price of asking; ask if the user agrees."""
    settings = {"base_url": url, "api_key": key}
    given = {name: value for name, value in settings.items() if value}
    with report_errors(), Bar() as bar, reject(ValueError):
        model = options.model or _choose_model(vendor)
        missing = None
        try:
            check = BeliefCheck(vendor, model, options.wire, **given)
        except AuthenticationError as error:
            # The beliefs can be read without a key.
            if key or options.yes or error.provider_code != "not_configured":
                raise
            missing = error
            check = BeliefCheck(vendor, model, options.wire, **{**given, "api_key": "none"})
        most = check.estimate()
        price = "an unknown price" if most is None else f"at most ${most:.4f}"
        plan = f"{check.calls} calls of {vendor}:{model}, {price}"
        is_asked = options.yes
        if not is_asked:
            click.echo(legible(write_beliefs(check.describe())), err=options.as_json)
            click.echo(f"{plan}; nothing has been sent", err=True)
            if missing is not None:
                click.echo(f"To ask the server: {missing}", err=True)
                return
            is_asked = sys.stdin.isatty() and click.confirm("Ask the server?", err=True)
        else:
            click.echo(plan, err=True)
        if not is_asked:
            return
        show = lambda done, total, name: bar(f"asking about {name:<22}", done, total)
        report = asyncio.run(check.run(None if options.as_json else show))
    echo_json(report.to_json()) if options.as_json else click.echo(legible(write_beliefs(report)))
    if report.contradicted:
        sys.exit(EXIT_CODES["check_failed"])


def _choose_model(vendor: str) -> str:
    """Return the first model of a vendor that can chat and is not to be switched off."""
    known = load_vendor(vendor)
    ending = {name for each in known.retirements.values() for name in each.models}
    left_out = ending | {*known.not_chat}
    model = next((name for name in known.listed_models() if name not in left_out), None)
    if model is None:
        raise click.UsageError(f"the catalogue lists no model of {vendor}; add --model NAME")
    return str(model)


async def _check_retrieval(url: str, key: str | None, options: CheckOptions) -> Report:
    if options.model is None:
        raise click.UsageError("--operation embed and rerank need a model; add --model NAME")
    side: Any = options.operation
    return await check_retrieval_server(
        url, options.model, side, options.wire or "openai", key, seconds=options.timeout
    )


def _write(report: Report, options: CheckOptions) -> None:
    for path, form in (
        (options.junit, write_junit),
        (options.html, write_html),
        (options.markdown, write_markdown),
        (options.save, lambda report: report.to_facts().decode() + "\n"),
    ):
        if path is not None:
            with reject(OSError, about=f"{path} cannot be written: "):
                path.write_text(form(report), "utf-8")


def _show(report: Report) -> str:
    """Return the report in colour; escape control characters that the server sent."""
    marks = {status: chr(0xE000 + at) for at, status in enumerate(_COLOURS)}
    text = legible(write_text(report, paint=lambda text, status: f"{marks[status]}{text}\ue0ff"))
    for status, mark in marks.items():
        text = text.replace(mark, click.style("", fg=_COLOURS[status], reset=False))
    return text.replace("\ue0ff", click.style(""))
