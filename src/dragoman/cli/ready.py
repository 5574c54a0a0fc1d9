"""Implement the command ``dragoman ready``."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from typing import Annotated, Any

import click

from ..errors import ProviderError
from ..middleware import walk
from .console import working
from .errors import EXIT_CODES, report_errors
from .options import ModelOptions, model_argument, open_model
from .parameters import Json, add_options


@click.command("ready")
@model_argument()
@add_options
def command(
    model: str,
    *,
    target: ModelOptions,
    as_json: Annotated[Json, "Print the outcome as JSON."] = False,
) -> None:
    """Check that MODEL is reachable and loaded. This is never billed.

    If the vendor has switched the model off, or does so within 60 days, a note has the day and the
    model that it recommends instead; with --json, the fields are ends and successor.
    """
    # Opening the model prints this note, so the logging module must not print it again.
    logging.getLogger("dragoman").addHandler(logging.NullHandler())
    with report_errors():
        try:
            with open_model(model, target) as provider:
                with nullcontext() if as_json else working(f"asking {provider.model}"):
                    provider.ready()
                known = provider.provider.capabilities
                found: dict[str, Any] = {"ready": True, "model": provider.model}
                source = ""
                for each in walk(provider.provider):
                    if each.address_env is not None:
                        found["address_env"] = each.address_env
                        source = f" at {each.server}, the address in {each.address_env}"
                if known.end_date.value is not None:
                    found |= {"ends": known.end_date.value, "successor": known.successor.value}
                click.echo(json.dumps(found) if as_json else f"{provider.model} is ready{source}")
        except ProviderError as error:
            if not as_json:
                raise
            facts = {"category": error.category, "message": str(error), "status": error.status}
            click.echo(json.dumps({"ready": False, **facts}))
            raise SystemExit(EXIT_CODES.get(error.category, 1)) from None
