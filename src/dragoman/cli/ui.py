"""Implement the command ``dragoman ui``."""

from __future__ import annotations

import asyncio
import importlib
import json
import webbrowser
from functools import partial
from typing import Annotated, Any

import click

from ..errors import advise_import
from ..gateway.keys import Key, KeyRing, new_key
from ..gateway.models import open_configured
from ..local import is_installed
from ..log import find_place
from ..provider import Provider
from ..registry import Registry
from ..transport.serving import serving
from .completion import ModelName
from .errors import reject, report_errors
from .log_place import LogPlace, open_log_at, open_patiently
from .options import default_model, load_registry
from .parameters import Json, add_options, option
from .progress import fetch_default_model
from .transcript import is_logging

_LOCAL = "local"


@click.command("ui")
@click.argument("models", nargs=-1, type=ModelName())
@add_options
def command(
    models: tuple[str, ...],
    *,
    where: LogPlace = None,
    port: Annotated[
        int, "Listen on this port; 0 is any free port.", option(ge=0, le=65535, show_default=False)
    ] = 0,
    browser: Annotated[bool, "Open the page in a browser."] = True,
    no_log: Annotated[bool, "Do not record conversations in the log."] = False,
    as_json: Annotated[Json, "Print the address as JSON."] = False,
) -> None:
    """Talk with models in a browser, compare two, and see what is sent to each.

    Without MODELS, all models that are configured can be chosen; if there are none, "local", the
    embedded model, which needs no key. Conversations are recorded in the log, unless you use
    --no-log or dragoman log off, and open in the trace viewer. Ctrl-C stops the server. The page
    is served on the loopback address only, with a key that is new each time; the URL contains it.
    """
    with report_errors(), reject(ImportError), reject(OSError, about=f"--port {port}: "):
        with advise_import("the pages need the extra: pip install 'dragoman[gateway]'"):
            importlib.import_module("starlette")
        registry = load_registry()
        opened = _open_models(registry, models)
        serve = partial(_serve, opened, registry, port, browser=browser, as_json=as_json)
        if no_log or not is_logging():
            asyncio.run(serve(None))
            return
        place = find_place(where)
        open_patiently(place).close()  # create the log if there is none
        with open_log_at(where) as log:
            open_calls = importlib.import_module("dragoman.gateway.call_log").CallLog
            write = partial(open_patiently, place)
            asyncio.run(serve(open_calls(log, include_content=True, open_writer=write)))


def _open_models(registry: Registry, names: tuple[str, ...]) -> dict[str, Provider]:
    """Open the named models or, without names, all that are configured."""
    if names:
        for name in names:
            fetch_default_model(name)
        return {name: registry.provider(name, keep_raw=False) for name in names}
    listed = [default_model(), *registry.aliases(), *registry.names()]
    found = open_configured(registry, [name for name in listed if name and name != _LOCAL])
    if is_installed() or not found:
        if not found:
            fetch_default_model(_LOCAL)
        found[_LOCAL] = registry.provider(_LOCAL, keep_raw=False)
    return found


async def _serve(
    models: dict[str, Provider],
    registry: Registry,
    port: int,
    calls: Any,
    *,
    browser: bool,
    as_json: bool,
) -> None:
    gateway = importlib.import_module("dragoman.gateway.app")
    key, digest = new_key()
    ring = KeyRing([Key("you", digest)])
    app = gateway.create_app(models, keys=ring, admin=digest, ui="dragoman.gateway.web")
    app.state.service.calls = calls
    app.state.service.registry = registry
    async with app.router.lifespan_context(app), serving(app, port=port) as address:
        # the key is in the fragment, which browsers do not send to servers
        url = f"{address}/#key={key}"
        click.echo(json.dumps({"url": url}) if as_json else url)
        if browser:
            # A text browser blocks until the user closes it, so the browser is opened in a thread.
            await asyncio.to_thread(webbrowser.open, url)
        await asyncio.Event().wait()
