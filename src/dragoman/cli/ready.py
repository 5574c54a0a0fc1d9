"""Implement the command ``dragoman ready``."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Annotated

import click

from ..errors import ProviderError
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
    """Check that MODEL is reachable and loaded. This is never billed."""
    with report_errors():
        try:
            with open_model(model, target) as provider:
                with nullcontext() if as_json else working(f"asking {provider.model}"):
                    provider.ready()
                found = json.dumps({"ready": True, "model": provider.model})
                click.echo(found if as_json else f"{provider.model} is ready")
        except ProviderError as error:
            if not as_json:
                raise
            facts = {"category": error.category, "message": str(error), "status": error.status}
            click.echo(json.dumps({"ready": False, **facts}))
            raise SystemExit(EXIT_CODES.get(error.category, 1)) from None
