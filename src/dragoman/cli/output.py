"""What every command shares: how a model is named on the command line, and how things and errors are shown.

Tables, bars and colours are for people at a terminal, and drawn by ``rich`` where it is installed.
Everybody else gets plain lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import click

from ..errors import ProviderError
from ..local import LocalServerError, WeightsError
from ..prices import PriceTable
from ..provider import SCHEMES
from ..registry import ConfigError, Registry
from ..sync import SyncProvider, connect
from .completion import ModelName, complete_wire

EXIT_CODES = {
    "provider_authentication": 10,
    "provider_invalid_model": 11,
    "provider_model_not_loaded": 12,
    "provider_rate_limit": 13,
    "provider_unavailable": 14,
    "provider_invalid_request": 15,
    "provider_unsupported_content_block": 16,
    "provider_invalid_response": 17,
    "structured_output_invalid": 18,
    "log_unusable": 20,
    "log_broken": 21,
    "runs_differ": 22,
    "session_exhausted": 23,
    "session_failed": 24,
    "check_failed": 30,
    "cancelled": 130,
}

_Command = TypeVar("_Command", bound=Callable[..., Any])
_PATIENCE = 1.0  # seconds before a wait is worth showing


# --- naming a model ---------------------------------------------------------------------------------


def model_argument(**settings: Any) -> Callable[[_Command], _Command]:
    """The argument that names a model; shells complete it."""
    return click.argument("model", type=ModelName(), **settings)


def json_option(what: str) -> Callable[[_Command], _Command]:
    """The option that asks for data instead of text."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where a model is."""
    options = [
        click.option("--base-url", metavar="URL", help="Where it is served; not needed for a name like vendor:model."),
        click.option(
            "--wire", default="openai", show_default=True, help="The wire it speaks.", shell_complete=complete_wire
        ),
        click.option(
            "--api-key-env",
            metavar="NAME",
            default="DRAGOMAN_API_KEY",
            show_default=True,
            help="The environment variable that holds the key.",
        ),
        click.option("--timeout", type=float, metavar="SECONDS", help="Give up after this long."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def load_registry() -> Registry:
    """The registry, or one line that names the file and the line."""
    try:
        return Registry.load()
    except ConfigError as error:
        raise WrongFile(str(error)) from error


def load_prices(path: str | None, *, only: bool = False) -> PriceTable:
    """The prices that come with the package, with those of a file before them, or with ``only`` those of the file."""
    if path is None:
        return PriceTable.bundled()
    try:
        table = PriceTable.load(path)
        return table if only else PriceTable.bundled().with_overrides(table.rows)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error


class WrongFile(click.ClickException):
    """A file is wrong and the command was used well: how it is used would be no help, so this is one line."""

    exit_code = click.UsageError.exit_code


def open_model(
    model: str, base_url: str | None, wire: str, api_key_env: str, timeout: float | None, *, planning: bool = False
) -> SyncProvider:
    """Connect to the model the options name: at an address, the embedded one, or by a name of the registry."""
    try:
        if base_url is not None or model.partition(":")[0] in SCHEMES:
            key = os.environ.get(api_key_env)
            return connect(model, base_url=base_url, wire=wire, api_key=key, timeouts=timeout)
        settings = {} if timeout is None else {"timeouts": timeout}
        registry = load_registry()
        opened = registry.provider(model, planning=True, **settings) if planning else registry.open(model, **settings)
        return SyncProvider(opened)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def read_json(path: str) -> Any:
    """The content of a JSON file; a usage error names the file that is none."""
    try:
        with click.open_file(path, encoding="utf-8") as file:
            return json.load(file)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{path} is not JSON: {error}") from error
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror}") from error


# --- showing ----------------------------------------------------------------------------------------


def console(*, err: bool = False) -> Any:
    """A ``rich`` console if someone is looking and it is installed, else ``None``."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console  # an extra, and slow to import
    except ImportError:
        return None
    return Console(stderr=err, highlight=False, emoji=False)


def show_json(value: Any) -> None:
    """Print data."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print rows under their heads; ``right`` names the columns of numbers."""
    screen = console()
    if screen is None:
        _show_plain_table(heads, rows, right)
        return
    from rich.table import Table  # as above
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for at, head in enumerate(heads):
        table.add_column(head, justify="right" if at in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    screen.print(table)


def _show_plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> None:
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(len(heads))]
    for row in [heads, *rows]:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def legible(text: str, *, err: bool = False) -> str:
    """Text as a terminal may safely show it: a model could otherwise move the cursor or set the title."""
    if not (sys.stderr if err else sys.stdout).isatty():
        return text
    return "".join(
        character if character in "\n\t" or unicodedata.category(character) != "Cc" else f"\\x{ord(character):02x}"
        for character in text
    )


@contextlib.contextmanager
def working(what: str) -> Iterator[Callable[[], None]]:
    """Show that something is going on, once it has taken a second; the value stops it early."""
    screen = console(err=True)
    if screen is None:
        yield lambda: None
        return
    status = screen.status(what)
    lock, over = threading.Lock(), threading.Event()

    def start() -> None:
        with lock:
            if not over.is_set():
                status.start()

    def stop() -> None:
        timer.cancel()
        with lock:
            if not over.is_set():
                over.set()
                status.stop()

    timer = threading.Timer(_PATIENCE, start)
    timer.daemon = True
    timer.start()
    try:
        yield stop
    finally:
        stop()


class Bar:
    """How far something has come, on standard error, once it has taken a second."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._doing = ""
        self._is_shown = sys.stderr.isatty()

    def __call__(self, doing: str, done: int, total: int) -> None:
        """Say what is being done and how much of it is."""
        if not self._is_shown or time.monotonic() - self._began < _PATIENCE:
            return
        screen = console(err=True)
        if screen is None:
            click.echo(f"\r{doing}: {done * 100 // max(total, 1)} %", nl=done >= total, err=True)
            return
        if self._bar is None:
            from rich.progress import Progress  # an extra, and slow to import

            self._bar = Progress(console=screen, transient=True)
            self._bar.start()
        if doing != self._doing:
            self._doing, self._task = doing, self._bar.add_task(doing, total=total)
        self._bar.update(self._task, completed=done)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


# --- errors -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def report_errors(*, debug: bool = False) -> Iterator[None]:
    """Turn our errors into a few clear lines and an exit code."""
    try:
        yield
    except ProviderError as error:
        if debug:
            raise
        show_error(error)
        _exit(EXIT_CODES.get(error.category, 1))
    except (WeightsError, LocalServerError) as error:
        click.echo(f"error: {error}", err=True)
        _exit(EXIT_CODES["provider_model_not_loaded"])
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        _exit(EXIT_CODES["cancelled"])


def show_error(error: ProviderError) -> None:
    """Category, what happened, and what to do."""
    click.echo(f"{click.style('error', fg='red')}: {error.category}", err=True)
    said, _, advice = str(error).rpartition(error.advice) if error.advice else (str(error), "", "")
    click.echo(legible(f"  {said.strip() or error}", err=True), err=True)
    if error.advice:
        click.echo(legible(f"  {error.advice}{advice}", err=True), err=True)
    if error.retry_after is not None:
        click.echo(f"  The provider asks to wait {error.retry_after:g} s.", err=True)


def _exit(code: int) -> NoReturn:
    sys.exit(code)
