"""Exit codes, and the display of errors in a few clear lines."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import click

from ..errors import ProviderError, scrub
from ..local import LocalServerError, WeightsError
from ..validate.yaml import ConfigError
from .console import echo_json, notify

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
    "log_unreadable": 25,
    "check_failed": 30,
    "plan_loses": 31,
    "plan_refused": 32,
    "cancelled": 130,
}


class WrongFile(click.ClickException):
    """An input file is invalid. Unlike ``UsageError``, this prints one line and no usage text."""

    exit_code = click.UsageError.exit_code


@contextlib.contextmanager
def report_mistakes() -> Iterator[None]:
    """Report an invalid file in one line, and another invalid value with the usage text."""
    try:
        yield
    except ConfigError as error:
        raise WrongFile(str(error)) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@contextlib.contextmanager
def reject(*kinds: type[Exception], about: str = "") -> Iterator[None]:
    """Report exceptions of these kinds as usage errors; ``about`` names the option or the file."""
    try:
        yield
    except kinds as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise click.UsageError(f"{about}{reason or scrub(str(error))}") from error


@contextlib.contextmanager
def report_errors(*, as_json: bool = False) -> Iterator[None]:
    """Report Dragoman's errors in a few clear lines or as a JSON object, and set the exit code."""
    try:
        yield
        return
    except ProviderError as error:
        record = to_record(error)
        if not as_json:
            show_error(error)
    except (WeightsError, LocalServerError) as error:
        record = {"category": "provider_model_not_loaded", "message": str(error)}
        if not as_json:
            notify(f"error: {error}")
    except KeyboardInterrupt:
        record = {"category": "cancelled", "message": "interrupted"}
        if not as_json:
            notify("interrupted")
    if as_json:
        echo_json(json.dumps({"error": record}, ensure_ascii=False))
    sys.exit(EXIT_CODES.get(record["category"], 1))


def name_options(error: ProviderError) -> ProviderError:
    """Replace the parameter names in an error's text with the names of command-line options."""
    error.message = _name_options(error.message)
    clauses = [clause for clause in error.advice.rstrip(".").split("; ") if "error." not in clause]
    advice = _name_options("; ".join(clauses))
    stop = "." if error.advice.endswith(".") else ""
    error.advice = f"{advice[0].upper()}{advice[1:]}{stop}" if advice else ""
    return error


_OPTIONS = {
    "max_tokens": "--max-tokens",
    "temperature": "--temperature",
    "reasoning": "--reasoning",
}
_WORDS = {
    "timeouts=": "--timeout",
    "on_loss='reject': ": "",
    "response_schema": "--schema",
    "the base URL": "the address (--base-url)",
    "give one with api_key=": "name the variable of its key with --api-key-env",
}


def _name_options(text: str) -> str:
    name = lambda found: _OPTIONS.get(found[1]) or f"-o {found[1]}"
    text = re.sub(r"\bconfig\.([a-z_]+)", name, text)
    for word, option in _WORDS.items():
        text = text.replace(word, option)
    return text


def to_record(error: ProviderError) -> dict[str, Any]:
    """Return an error as a JSON object, without the fields whose values are unknown."""
    name_options(error)
    facts = (
        "category", "error_class", "kind", "status", "provider", "model", "request_id",
        "provider_code", "message", "transient", "retry_after",
    )  # fmt: skip
    record = {name: getattr(error, name) for name in facts} | {"message": str(error)}
    return {name: value for name, value in record.items() if value is not None}


def show_error(error: ProviderError) -> None:
    """Print the category, the message and the advice of an error."""
    name_options(error)
    click.echo(f"{click.style('error', fg='red')}: {error.category}", err=True)
    text, _, advice = str(error).rpartition(error.advice) if error.advice else (str(error), "", "")
    notify(f"  {text.strip() or error}")
    if error.advice:
        notify(f"  {error.advice}{advice}")
    if error.retry_after is not None:
        notify(f"  The provider asks to wait {error.retry_after:g} s.")
