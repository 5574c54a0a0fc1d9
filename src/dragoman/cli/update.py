"""Implement the command ``dragoman models update``."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import click

from .. import registry
from ..prices import PriceTable
from ..registry.lists import MAX_BYTES
from ..registry.vendors import FACTS
from ..transport import HttpTransport, Timeouts
from ..wire import HttpRequest
from .console import show_json
from .errors import reject, report_errors
from .parameters import Json, add_options

_SHOWN = 40


@click.command("update")
@click.argument("source", metavar="FILE|URL")
@add_options
def update_command(
    source: str,
    *,
    dry_run: Annotated[bool, "Print the changes, and change nothing."] = False,
    force: Annotated[bool, "Accept changes that look wrong, such as a 20-fold price."] = False,
    as_json: Annotated[Json, "Print the changes as JSON."] = False,
) -> None:
    """Update the catalogue from a public list of models, without a new release.

    FILE or URL is LiteLLM's model_prices_and_context_window.json, the api.json of models.dev, or
    OpenRouter's /api/v1/models. The capabilities in the list override the bundled catalogue
    and are overridden by what you declare; its prices are added for models without a price. Exit
    code 2 means that the list was rejected and nothing was changed.
    """
    with report_errors():
        with reject(registry.ListError, OSError, about=f"{source}: "):
            kind, listed = registry.read_list(_read(source))
        found = registry.compare(_read_known(), PriceTable.bundled(), listed)
        if as_json:
            changes = {"added": found.added, "changed": found.changed, "odd": found.odd}
            show_json({"format": kind, **changes})
        else:
            _show(kind, found)
        if found.odd and not force:
            problem = "changes look wrong; nothing was changed. --force takes them"
            raise click.UsageError(f"{len(found.odd)} {problem}")
        if not dry_run:
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            url = urlsplit(source)
            origin = f"{url.scheme}://{url.hostname}" if "://" in source else Path(source).name
            path = registry.write_update(registry.CatalogUpdate(origin, today, listed))
            click.echo(f"written to {path}", err=True)


def _show(kind: str, found: Any) -> None:
    lines = [*found.added, *found.changed]
    for line in lines[:_SHOWN]:
        click.echo(line)
    if len(lines) > _SHOWN:
        click.echo(f"... and {len(lines) - _SHOWN} more; --json has them all")
    for line in found.odd:
        click.echo(f"! {line}", err=True)
    name = registry.read_sources()[kind].format
    added = found.added
    changed = found.changed
    click.echo(f"{name}: {len(added)} new models, {len(changed)} changes")


def _read_known() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the capabilities in the bundled catalogue, by vendor and model."""
    known: dict[str, dict[str, dict[str, Any]]] = {}
    for vendor in registry.vendor_names():
        known[vendor] = models = {}
        for name, facts in registry.load_vendor(vendor).models.items():
            models[name] = {key: facts.known(fact) for key, fact in FACTS.items()}
    return known


def _read(source: str) -> bytes:
    if "://" not in source:
        return Path(source).read_bytes()
    is_secure = source.startswith("https://")
    if not is_secure and urlsplit(source).hostname not in ("127.0.0.1", "localhost"):
        raise registry.ListError("only https URLs are read; give one that begins with https://")
    return asyncio.run(_fetch(source))


async def _fetch(url: str) -> bytes:
    transport = HttpTransport()
    try:
        request = HttpRequest("GET", url, {"accept": "application/json"})
        async with transport.send(request, {}, Timeouts(total=120)) as reply:
            if reply.status != 200:
                raise registry.ListError(f"HTTP {reply.status}")
            return await reply.read(MAX_BYTES + 1)
    finally:
        await transport.close()
