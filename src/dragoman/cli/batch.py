"""Implement the command ``dragoman batch``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from msgspec import Struct
from msgspec.structs import asdict

from ..batches import BatchError, BatchProgress, BatchReport, OutputError, StrictError
from ..batches import batch as run_batch
from ..messages import NO_CONFIG
from .ask import ConfigOptions, read_config, read_tools
from .completion import ModelName
from .console import Bar, notify, show_json
from .errors import EXIT_CODES, WrongFile, report_errors
from .options import BudgetOption, ConcurrencyOption, ModelOptions, PollOption, load_registry
from .parameters import ExistingFile, Json, add_options, option
from .progress import fetch_default_model
from .schemas import SchemaOption, read_schema

_INTERVAL = 10.0  # seconds between two progress lines without a terminal


class RowConfig(ConfigOptions):
    """The options for the settings of each call."""

    max_tokens: Annotated[int | None, "Limit each answer to this many tokens."] = None
    reasoning: Annotated[
        str | None, "Set the reasoning: low, medium, high, or N tokens.", option("EFFORT|TOKENS")
    ] = None


class BatchCommand(Struct, kw_only=True):
    """The options of ``dragoman batch``."""

    model: Annotated[str, "Call this model, alias or group of models.", option(type=ModelName())]
    target: ModelOptions
    priced_as: Annotated[
        str | None, "Price the calls of --base-url like this model.", option("VENDOR:MODEL|free")
    ] = None
    template: Annotated[
        str | None, "Make prompts of this text and the {column} of each row.", option("TEXT")
    ] = None
    template_file: Annotated[ExistingFile, "Read the text of --template from a file."] = None
    id_column: Annotated[
        str | None, "Read the id of a row from this column, in place of id.", option("NAME")
    ] = None
    system: Annotated[str | None, "Set the system prompt of rows without one.", option("TEXT")] = (
        None
    )
    tool_schema: Annotated[
        ExistingFile, "Offer the tools in a JSON file; calls are written to OUT, not executed."
    ] = None
    schema: SchemaOption = None
    embed: Annotated[
        bool | None,
        "Embed the rows or send chats; the kind of model decides by default.",
        option(flags="--embed/--chat"),
    ] = None
    input_type: Annotated[str | None, "Embed rows as query or as document.", option("TYPE")] = None
    dimensions: Annotated[int | None, "Request vectors of this length.", option("N", ge=1)] = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        "Write vectors as numbers, or as base64, which is a quarter as long.",
    ] = None
    config: RowConfig
    concurrency: ConcurrencyOption = 16
    requests_per_minute: Annotated[
        float | None, "Send at most N requests a minute.", option("N", "--rpm")
    ] = None
    tokens_per_minute: Annotated[
        float | None, "Send at most N tokens a minute.", option("N", "--tpm")
    ] = None
    limits_redis: Annotated[
        str | None, "Share --rpm and --tpm with other processes through Redis.", option("URL")
    ] = None
    retries: Annotated[int, "Retry a failed call up to this many times.", option(ge=0, le=100)] = 4
    budget: BudgetOption = None
    cache: Annotated[
        str | None,
        "Store replies for identical rows in a SQLite file or at a redis:// URL.",
        option("FILE|URL"),
    ] = None
    order: Annotated[
        Literal["input", "completed"], "Write results in the order of the input or of completion."
    ] = "input"
    strict: Annotated[bool, "Check every row first, and send nothing if one is invalid."] = False
    retry_failed: Annotated[bool, "Repeat rows that failed in an earlier run."] = False
    fresh: Annotated[bool, "Delete OUT and its state, and begin again."] = False
    max_row_bytes: Annotated[int, "Reject input rows with more bytes than this.", option(ge=1)] = (
        8_000_000
    )
    on: Annotated[Literal["local", "ray"], "Run in this process, or on a Ray cluster."] = "local"
    workers: Annotated[int, "Use at most this many processes on Ray.", option(ge=1)] = 2
    ray_address: Annotated[
        str | None, "Connect to this Ray cluster, not one on this machine.", option("ADDRESS")
    ] = None
    via: Annotated[
        Literal["model", "provider"],
        "Call the model, or use the provider's batch API: half the price, within a day.",
    ] = "model"
    poll_seconds: PollOption = 10.0
    cancel: Annotated[bool, "Stop the batches of --via provider and fetch finished rows."] = False
    as_json: Annotated[Json, "Print the report as JSON."] = False


@click.command("batch")
@click.argument("source", metavar="IN", type=click.Path(exists=True, dir_okay=False))
@click.argument("out", metavar="OUT", type=click.Path(dir_okay=False, path_type=Path))
@add_options
def command(source: str, out: Path, options: BatchCommand) -> None:
    """Ask a model for every row of IN and write a row with the result, or the error, to OUT.

    \b
    dragoman batch questions.jsonl answers.jsonl --model openai:gpt-6-luna
    dragoman batch words.csv out.jsonl --model local --template "Translate: {word}"
    dragoman batch big.jsonl out.jsonl --model openai:gpt-6-luna --budget usd=5 --rpm 500
    dragoman batch texts.jsonl vectors.jsonl --model openai:text-embedding-3-small

    IN is JSONL, CSV, TSV or Parquet. A row has "prompt" or "messages", and optionally "id" and
    settings; or it is a row of a batch file of OpenAI, Anthropic or Gemini, and OUT has the same
    format; or it has arbitrary columns, for --template. A row for an embedding model has "input"
    or "text", a string or a list, and its result has "embedding" or "embeddings".

    You can stop the command in any way and run it again: rows that are in OUT are not sent again.
    Rows that fail or cannot be read get an "error" in OUT. Exit codes: 0 every row has a result,
    23 the budget is used up.
    """  # noqa: D301 - Click keeps the lines of a paragraph after a backspace
    if options.target.base_url is None:
        load_registry()  # report a mistake in models.yaml as a usage error with its line
        fetch_default_model(options.model)
    as_json = options.as_json
    with report_errors(as_json=as_json), show_progress(out.name, quiet=as_json) as progress:
        try:
            settings = _read_options(options)
            work = run_batch(source, out, options.model, **settings, on_progress=progress)
            report = asyncio.run(work)
        except (OutputError, StrictError) as error:
            raise WrongFile(str(error)) from error
        except (BatchError, OSError, ImportError) as error:
            raise click.ClickException(str(error)) from error
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    if as_json:
        show_json({**asdict(report), "cost_usd": str(report.cost_usd)})
    else:
        show_report(report)
    if report.stopped is not None:
        reason = "session_exhausted" if report.stopped == "budget" else report.stopped
        raise SystemExit(EXIT_CODES[reason])


# The other options are passed on to ``dragoman.batch`` under the same name.
_CONVERTED = (
    "model", "target", "priced_as", "template", "template_file", "tool_schema", "schema", "config",
    "as_json",
)  # fmt: skip


def _read_options(options: BatchCommand) -> dict[str, Any]:
    template = options.template
    if options.template_file is not None:
        if template is not None:
            raise click.UsageError("give --template or --template-file, not both")
        template = Path(options.template_file).read_text("utf-8")
    config = asdict(read_config(options.config))
    return {
        **{name: each for name, each in asdict(options).items() if name not in _CONVERTED},
        **{name: value for name, value in config.items() if value != getattr(NO_CONFIG, name)},
        "template": template,
        "tools": read_tools(options.tool_schema) if options.tool_schema else None,
        "response_schema": read_schema(options.schema) if options.schema else None,
        "connection": options.target.connect_settings()
        | ({} if options.priced_as is None else {"priced_as": options.priced_as}),
    }


# --- showing progress --------------------------------------------------------------------------


@contextlib.contextmanager
def show_progress(name: str, *, quiet: bool) -> Iterator[Callable[[BatchProgress], None] | None]:
    """Show the progress of a batch; the ``with`` block receives the function to call."""
    columns = ("{task.description}", "BarColumn", "MofNCompleteColumn", "{task.fields[facts]}")
    with Bar(*columns, interval=_INTERVAL) as bar:

        def show(progress: BatchProgress) -> None:
            facts = _describe(progress)
            share = f"{progress.rows:,}"
            if progress.total:
                share += f" of {progress.total:,}"
            line = f"{name}: {share} rows, {facts}"
            bar(name, progress.rows, progress.total, line, facts=facts)

        yield None if quiet else show


def _describe(progress: BatchProgress) -> str:
    parts = [f"{progress.rate:,.1f} rows/s", f"{progress.failed:,} failed"]
    parts.append(_show_cost(progress.cost_usd, is_known=progress.is_cost_known))
    if progress.seconds_left is not None:
        minutes, seconds = divmod(round(progress.seconds_left), 60)
        hours, minutes = divmod(minutes, 60)
        parts.append(f"{hours}:{minutes:02}:{seconds:02} left")
    return ", ".join(parts)


def _show_cost(cost: Decimal, *, is_known: bool) -> str:
    if is_known:
        return f"${cost:.4f}"
    return f"${cost:.4f} and more" if cost else "cost unknown"


def show_report(report: BatchReport) -> None:
    """Print how many rows of a batch have a result, and what they cost."""
    parts = [f"{report.rows:,} rows in {report.out}", f"{report.failed:,} failed"]
    if report.bad:
        parts.append(f"{report.bad:,} of them could not be read")
    if report.resumed:
        parts.append(f"{report.resumed:,} were there before")
    if report.cached:
        parts.append(f"{report.cached:,} from the cache")
    parts.append(_show_cost(report.cost_usd, is_known=not report.unpriced))
    click.echo("; ".join(parts))
    for problem in report.problems:
        notify(problem)
    if report.unpriced_reason:
        notify(f"not priced, {report.unpriced:,} rows: {report.unpriced_reason}")
    if report.stopped == "budget":
        notify("the budget is used up; give the same command with a larger one to go on")
