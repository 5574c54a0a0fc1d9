"""What every command shares: how a model is named on the command line, and how errors are shown."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import click

from ..errors import ProviderError
from ..local import LocalServerError, WeightsError
from ..provider import SCHEMES
from ..registry import Registry
from ..sync import SyncProvider, connect

__all__ = ["EXIT_CODES", "model_options", "open_model", "report_errors", "show_error"]

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
    "cancelled": 130,
}


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where a model is."""
    options = [
        click.option("--base-url", metavar="URL", help="Where it is served; not needed for a name like vendor:model."),
        click.option("--wire", default="openai", show_default=True, help="The wire it speaks."),
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


def open_model(
    model: str, base_url: str | None, wire: str, api_key_env: str, timeout: float | None, *, planning: bool = False
) -> SyncProvider:
    """Connect to the model the options name: at an address, the embedded one, or by a name of the registry."""
    try:
        if base_url is not None or model.partition(":")[0] in SCHEMES:
            key = os.environ.get(api_key_env)
            return connect(model, base_url=base_url, wire=wire, api_key=key, timeouts=timeout)
        settings = {} if timeout is None else {"timeouts": timeout}
        return SyncProvider(Registry.load().provider(model, planning=planning, **settings))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


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
    click.echo(f"  {said.strip() or error}", err=True)
    if error.advice:
        click.echo(f"  {error.advice}{advice}", err=True)
    if error.retry_after is not None:
        click.echo(f"  The provider asks to wait {error.retry_after:g} s.", err=True)


def _exit(code: int) -> NoReturn:
    sys.exit(code)
