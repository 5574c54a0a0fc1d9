"""Implement the command ``dragoman sim``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import click

from ..sim import ConfigError, read_script, serve
from .errors import reject, report_errors
from .parameters import Json, Port, add_options


@click.command("sim")
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@add_options
def command(
    script: Path,
    *,
    host: Annotated[str, "Listen on this address."] = "127.0.0.1",
    port: Port = 8080,
    seed: Annotated[int | None, "Use this seed instead of the script's."] = None,
    check: Annotated[bool, "Check the script and exit."] = False,
    as_json: Annotated[Json, "Print the addresses as JSON."] = False,
) -> None:
    """Run a simulated model server whose replies and faults SCRIPT defines, on every wire.

    SCRIPT is a YAML file. Ctrl-C stops the server.
    """
    with reject(ConfigError):
        read = read_script(script)
    if check:
        facts = {"rules": len(read.rules), "model": read.model, "seed": read.seed}
        text = f"{script}: {len(read.rules)} rules for {read.model}"
        click.echo(json.dumps(facts) if as_json else text)
        return
    settings: dict[str, Any] = {} if seed is None else {"seed": seed}
    server = serve(read, host=host, port=port, **settings)
    with report_errors():
        with reject(ImportError), reject(OSError, about="cannot listen there: "):
            server.start()
        try:
            if as_json:
                served = {"url": server.url, "base_urls": server.base_urls}
                click.echo(json.dumps(served | {"model": server.provider.model}))
            else:
                click.echo(f"{server.provider.model} is served; Ctrl-C stops it.")
                for wire, url in server.base_urls.items():
                    click.echo(f"  {wire:<10} {url}")
            server.wait()
        finally:
            server.stop()
