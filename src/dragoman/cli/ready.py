"""Implement the command ``dragoman ready``."""

from __future__ import annotations

import json

import click

from ..errors import ProviderError
from .console import working
from .errors import EXIT_CODES, report_errors
from .options import json_option, model_argument, model_options, open_model


@click.command("ready")
@model_argument()
@model_options
@json_option("the outcome")
def command(
    model: str,
    base_url: str | None,
    wire: str,
    api_key_env: str,
    timeout: float | None,
    *,
    as_json: bool,
) -> None:
    """Check that MODEL is reachable and loaded. This is never billed."""
    with report_errors():
        try:
            with open_model(model, base_url, wire, api_key_env, timeout) as provider:
                if as_json:
                    provider.ready()
                    click.echo(json.dumps({"ready": True, "model": provider.model}))
                    return
                with working(f"asking {provider.model}"):
                    provider.ready()
                click.echo(f"{provider.model} is ready")
        except ProviderError as error:
            if not as_json:
                raise
            outcome = {
                "ready": False,
                "category": error.category,
                "message": str(error),
                "status": error.status,
            }
            click.echo(json.dumps(outcome))
            raise SystemExit(EXIT_CODES.get(error.category, 1)) from None
