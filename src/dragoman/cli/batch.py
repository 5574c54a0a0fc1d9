"""Implement the command ``dragoman batch``."""

from __future__ import annotations

import asyncio
import os
import time
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import click
from msgspec.structs import asdict

from ..batches import BatchError, BatchProgress, BatchReport, OutputError, StrictError
from ..batches import batch as run_batch
from ..messages import NO_CONFIG, RuntimeConfig
from .ask import read_config, read_tools
from .completion import ModelName
from .console import console, legible, show_json
from .errors import EXIT_CODES, WrongFile, report_errors
from .options import json_option, load_registry, model_options, read_json
from .progress import fetch_default_model

_INTERVAL = 10.0  # seconds between two progress lines without a terminal


@click.command("batch")
@click.argument("source", metavar="IN", type=click.Path(exists=True, dir_okay=False))
@click.argument("out", metavar="OUT", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", required=True, type=ModelName(), help="The model, an alias or a group.")
@model_options
@click.option(
    "--priced-as",
    metavar="VENDOR:MODEL|free",
    help="The price of the calls, if --base-url does not determine it.",
)
@click.option(
    "--template", metavar="TEXT", help="The prompt, with {column} for the columns of a row."
)
@click.option(
    "--template-file",
    type=click.Path(exists=True, dir_okay=False),
    help="The prompt, from a file.",
)
@click.option("--id-column", metavar="NAME", help="The column that names a row; by default id.")
@click.option("--system", metavar="TEXT", help="The system prompt of rows that have none.")
@click.option(
    "--tool-schema", type=click.Path(exists=True, dir_okay=False),
    help="A JSON file with one tool or a list. Calls are written to OUT and never executed.",
)  # fmt: skip
@click.option(
    "--schema",
    type=click.Path(exists=True, dir_okay=False),
    help="A JSON Schema the answers must satisfy.",
)
@click.option(
    "--embed/--chat", default=None,
    help="Embed the rows, or ask about them; by default what the model or the first row is for.",
)  # fmt: skip
@click.option(
    "--input-type",
    metavar="TYPE",
    help="With rows to embed: what they are for, query or document.",
)
@click.option(
    "--dimensions",
    type=click.IntRange(1),
    metavar="N",
    help="With rows to embed: the length of the vectors.",
)
@click.option(
    "--encoding-format", type=click.Choice(["float", "base64"]),
    help="With rows to embed: vectors in OUT as numbers, or as base64, which is a quarter of it.",
)  # fmt: skip
@click.option("--max-tokens", type=int, help="The most tokens an answer may have.")
@click.option("--temperature", type=float, help="Sampling temperature.")
@click.option(
    "--reasoning",
    metavar="EFFORT|TOKENS",
    help="Reasoning effort (low, medium, high) or a token budget.",
)
@click.option(
    "-o", "--option", "options", nargs=2, multiple=True, metavar="KEY VALUE",
    help="Any other setting, such as top_p 0.9, or a field of the provider's own.",
)  # fmt: skip
@click.option(
    "--concurrency", type=click.IntRange(1), default=16, show_default=True, help="Calls at a time."
)
@click.option("--rpm", type=float, metavar="N", help="At most N requests a minute.")
@click.option("--tpm", type=float, metavar="N", help="At most N tokens a minute.")
@click.option(
    "--limits-redis", metavar="URL", help="Share --rpm and --tpm with other processes, in Redis."
)
@click.option(
    "--retries",
    type=click.IntRange(0, 100),
    default=4,
    show_default=True,
    help="Retry transient errors.",
)
@click.option(
    "--budget", metavar="KIND=N", help="Stop cleanly at usd=N, tokens=N or rows=N, over all runs."
)
@click.option(
    "--cache",
    metavar="FILE|URL",
    help="Ask identical rows once: a SQLite file, or a redis:// URL.",
)
@click.option(
    "--order", type=click.Choice(["input", "completed"]), default="input", show_default=True,
    help="Write results in the order of IN, or as they come.",
)  # fmt: skip
@click.option(
    "--strict", is_flag=True, help="Check all of IN first, and send nothing if a row is bad."
)
@click.option(
    "--retry-failed", is_flag=True, help="Ask again for rows that failed in an earlier run."
)
@click.option("--fresh", is_flag=True, help="Delete OUT and its state, and begin again.")
@click.option(
    "--max-row-bytes",
    type=click.IntRange(1),
    default=8_000_000,
    show_default=True,
    help="Of a row of IN.",
)
@click.option(
    "--on", type=click.Choice(["local", "ray"]), default="local", show_default=True,
    help="Work in this process, or on Ray.",
)  # fmt: skip
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="With --on ray: processes, at most.",
)
@click.option(
    "--ray-address",
    metavar="ADDRESS",
    help="With --on ray: the cluster; by default one on this machine.",
)
@click.option(
    "--via", type=click.Choice(["model", "provider"]), default="model", show_default=True,
    help="Call the model, or use its provider's batch API: half the price, within a day.",
)  # fmt: skip
@click.option(
    "--poll-seconds",
    type=float,
    default=10.0,
    show_default=True,
    help="With --via provider, the first pause.",
)
@click.option(
    "--cancel", is_flag=True, help="With --via provider: stop its batches and fetch what is done."
)
@json_option("the report")
def command(
    source: str,
    out: Path,
    model: str,
    base_url: str | None,
    wire: str,
    api_key_env: str,
    timeout: float | None,
    **options: Any,
) -> None:
    """Ask a model for every row of IN and write a row with the result, or the error, to OUT.

    \b
    dragoman batch questions.jsonl answers.jsonl --model openai:gpt-5-mini
    dragoman batch words.csv out.jsonl --model local --template "Translate: {word}"
    dragoman batch big.jsonl out.jsonl --model openai:gpt-5-mini --budget usd=5 --rpm 500
    dragoman batch texts.jsonl vectors.jsonl --model openai:text-embedding-3-small

    IN is JSONL, CSV, TSV or Parquet. A row has "prompt" or "messages", and optionally "id" and
    settings; or it is a row of a batch file of OpenAI, Anthropic or Gemini, and OUT has the same
    format; or it has arbitrary columns, for --template. A row for an embedding model has "input"
    or "text", a string or a list, and its result has "embedding" or "embeddings".

    You can stop the command in any way and run it again: rows that are in OUT are not sent again.
    Rows that fail or cannot be read get an "error" in OUT. Exit codes: 0 every row has a result,
    23 the budget is used up.
    """  # noqa: D301 - Click keeps the lines of a paragraph after a backspace
    connection: dict[str, Any] = {} if timeout is None else {"timeouts": timeout}
    if base_url is not None:
        connection |= {"base_url": base_url, "wire": wire, "api_key": os.environ.get(api_key_env)}
    if options["priced_as"] is not None:
        connection["priced_as"] = options["priced_as"]
    if base_url is None:
        load_registry()  # report a mistake in models.yaml as a usage error with its line
        fetch_default_model(model)
    with (
        report_errors(as_json=options["as_json"]),
        _Progress(out.name, quiet=options["as_json"]) as progress,
    ):
        try:
            report = asyncio.run(
                run_batch(source, out, model, **_read_options(options, connection, progress))
            )
        except (OutputError, StrictError) as error:
            raise WrongFile(str(error)) from error
        except (BatchError, OSError, ImportError) as error:
            raise click.ClickException(str(error)) from error
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    show_json(_to_record(report)) if options["as_json"] else _show(report)
    if report.stopped is not None:
        raise SystemExit(
            EXIT_CODES["session_exhausted" if report.stopped == "budget" else report.stopped]
        )


# Options that are passed on to ``dragoman.batch`` under the same name.
_SAME = (
    "budget", "cache", "cancel", "concurrency", "dimensions", "embed", "encoding_format", "fresh",
    "id_column", "input_type", "limits_redis", "max_row_bytes", "on",
    "poll_seconds", "ray_address", "retries", "retry_failed", "strict", "system", "via", "workers",
)  # fmt: skip


def _read_options(
    options: dict[str, Any], connection: dict[str, Any], progress: Any
) -> dict[str, Any]:
    template = options["template"]
    if options["template_file"] is not None:
        if template is not None:
            raise click.UsageError("give --template or --template-file, not both")
        template = Path(options["template_file"]).read_text("utf-8")
    order: Literal["input", "completed"] = options["order"]
    given: dict[str, Any] = {name: options[name] for name in _SAME}
    return {
        **given,
        **_settings(read_config(options)),
        "template": template,
        "order": order,
        "tools": read_tools(options["tool_schema"]) if options["tool_schema"] else None,
        "response_schema": read_json(options["schema"]) if options["schema"] else None,
        "requests_per_minute": options["rpm"],
        "tokens_per_minute": options["tpm"],
        "connection": connection,
        "on_progress": progress,
    }


def _settings(config: RuntimeConfig) -> dict[str, Any]:
    """Return the settings that differ from their default values."""
    return {
        name: value for name, value in asdict(config).items() if value != getattr(NO_CONFIG, name)
    }


# --- showing progress --------------------------------------------------------------------------


class _Progress:
    """Show a batch's progress on standard error: a bar at a terminal, plain lines elsewhere."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        self._name = name
        self._screen = None if quiet else console(err=True)
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None
        self._next = time.monotonic() + _INTERVAL

    def __call__(self, progress: BatchProgress) -> None:
        if self._quiet:
            return
        facts = _describe(progress)
        if self._screen is None:
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + _INTERVAL
                share = (
                    f"{progress.rows:,} of {progress.total:,}"
                    if progress.total
                    else f"{progress.rows:,}"
                )
                click.echo(f"{self._name}: {share} rows, {facts}", err=True)
            return
        if self._bar is None:
            self._bar = _make_bar(self._screen)
            self._bar.start()
            self._task = self._bar.add_task(self._name, total=progress.total, facts="")
        self._bar.update(self._task, completed=progress.rows, facts=facts)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _make_bar(screen: Any) -> Any:
    # lazy import: rich is slow to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
    )
    return Progress(*columns, console=screen, transient=True)


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


def _show(report: BatchReport) -> None:
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
        click.echo(legible(problem, err=True), err=True)
    if report.unpriced_reason:
        click.echo(f"not priced, {report.unpriced:,} rows: {report.unpriced_reason}", err=True)
    if report.stopped == "budget":
        click.echo(
            "the budget is used up; give the same command with a larger one to go on", err=True
        )


def _to_record(report: BatchReport) -> dict[str, Any]:
    return {**asdict(report), "cost_usd": str(report.cost_usd)}
