"""Options and arguments that several commands share, and the model they name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..prices import PriceTable
from ..provider import SCHEMES
from ..registry import ConfigError, Registry
from ..sync import SyncProvider, connect
from .completion import ModelName, complete_wire
from .errors import WrongFile

_Command = TypeVar("_Command", bound=Callable[..., Any])


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
