"""Implement the command ``dragoman config``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import click
from msgspec import to_builtins

from ..middleware import Availability, Fallback, describe
from ..provider import SCHEMES
from ..registry import (
    Adapter,
    Candidate,
    ConfigError,
    File,
    Registry,
    config_path,
    expand_group,
    read_file,
)
from .completion import ModelName
from .console import show_json, show_table
from .errors import report_errors
from .options import load_registry
from .parameters import Json, add_options


@click.group("config")
def command() -> None:
    """Find and check your models.yaml, and explain which models a name in it opens."""


@command.command("path")
@add_options
def path(*, as_json: Annotated[Json, "Print the result as JSON."] = False) -> None:
    """Print the path of models.yaml: $DRAGOMAN_CONFIG if set, or the platform's default.

    If the file does not exist, only the bundled catalogue is used.
    """
    found = config_path()
    if as_json:
        show_json({"path": str(found), "exists": found.exists()})
    else:
        click.echo(found)


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@add_options
def check(
    file: Path | None,
    *,
    as_json: Annotated[Json, "Print mistakes, remarks and models as JSON."] = False,
) -> None:
    """Check FILE, by default your models.yaml, and print every mistake with its line.

    Exit code 2 means that there is a mistake. Remarks point to settings that are valid but look
    unintended.
    """
    where = file or config_path()
    is_chosen = file is not None or bool(os.environ.get("DRAGOMAN_CONFIG"))
    is_absent = not is_chosen and not where.exists() and not where.is_symlink()
    try:
        read = File() if is_absent else read_file(where)
    except ConfigError as error:
        read = File(problems=(error,))
    if as_json:
        show_json(_as_data(where, read))
    elif is_absent:
        about = "there is no such file, and none is needed; the bundled catalogue answers"
        click.echo(f"{where}: {about}")
    else:
        _show(where, read)
    if read.problems:
        raise SystemExit(2)


@command.command("explain")
@click.argument("name", type=ModelName())
@add_options
def explain(name: str, *, as_json: Annotated[Json, "Print the result as JSON."] = False) -> None:
    """Print the middleware stack that NAME opens, outermost layer first, and each model's address.

    NAME is a group, a model or an alias. Nothing is sent, and no key is needed or printed.
    """
    with report_errors():
        found = _explain(load_registry(), name)
        if as_json:
            show_json(found)
            return
        click.echo(found["stack"])
        if "availability" in found:
            click.echo(f"\navailability: {_write(found['availability'])}")
        for model in found["models"]:
            click.echo(f"\n{model['id']}")
            for label, value in model.items():
                if label != "id" and value is not None:
                    click.echo(f"  {label.replace('_', ' ')}: {_write(value)}")


def _write(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join([f"{name} {_write(each)}" for name, each in value.items()])
    if isinstance(value, list):
        return ", ".join([_write(each) for each in value])
    return "none" if value is None else str(value)


def _as_data(where: Path, read: File) -> dict[str, Any]:
    def plain(error: ConfigError) -> dict[str, Any]:
        return {"file": error.path, "line": error.line, "problem": error.problem}

    return {
        "file": str(where),
        "ok": not read.problems,
        "errors": [plain(error) for error in read.problems],
        "remarks": [plain(remark) for remark in [*read.remarks, *read.advice]],
        "adapters": [
            {"name": each.name, "type": each.type, "wire": each.wire, "status": _status(each)}
            for each in read.adapters
        ],
        "models": [model.id for model in read.models],
        "groups": [group.name for group in read.groups],
    }


def _status(adapter: Adapter) -> str:
    return "configured" if adapter.is_configured else "not_configured"


def _show(where: Path, read: File) -> None:
    for remark in [*read.remarks, *read.advice]:
        click.echo(f"{click.style('remark', fg='yellow')}: {remark}", err=True)
    for error in read.problems:
        click.echo(f"{click.style('error', fg='red')}: {error}", err=True)
    if read.problems:
        return
    rows = [
        [each.name, each.type, each.wire, _status(each), "" if each.is_configured else missing]
        for each in read.adapters
        for missing in [f"set {each.api_key_env}" if each.base_url else "set base_url"]
    ]
    if rows:
        show_table(["ADAPTER", "TYPE", "WIRE", "STATUS", ""], rows)
    models = len(read.models)
    aliases = sum(len(model.aliases) for model in read.models)
    groups = f", {len(read.groups)} groups" if read.groups else ""
    click.echo(f"{where}: fine; {len(rows)} adapters, {models} models, {aliases} aliases{groups}")


# --- the middleware stack of a name ------------------------------------------------------------


def _explain(registry: Registry, name: str) -> dict[str, Any]:
    """Return the stack of providers that a name opens, as text, and the models in that stack.

    Raise ``InvalidModelError`` if the name is unknown.
    """
    provider = registry.open(name, planning=True)
    found: dict[str, Any] = {"name": name, "stack": describe(provider), "models": []}
    if isinstance(provider, Fallback):
        availability = provider.availability
        found["availability"] = {
            **to_builtins(availability.thresholds),
            "shared": "this process" if type(availability) is Availability else "Redis",
        }
    if name.partition(":")[0] in SCHEMES and name not in registry.aliases():
        return found
    for candidate in expand_group(name, registry.groups(), registry.aliases()):
        if candidate.model.partition(":")[0] not in SCHEMES:
            found["models"].append(_explain_model(registry, candidate))
    return found


def _explain_model(registry: Registry, candidate: Candidate) -> dict[str, Any]:
    entry = registry.find(candidate.model)
    adapter = registry.adapter(entry.adapter).for_model(entry.wire_name)
    timeouts = adapter.deadlines(candidate.timeouts)
    words = {True: "set", False: "not set"}
    keys = [f"{each} ({words[bool(adapter.find_key(each))]})" for each in adapter.key_envs]
    proxy = adapter.connection.proxy
    return {
        "id": entry.id,
        "status": entry.status,
        "adapter": f"{adapter.name} (type {adapter.type})",
        "wire": adapter.wire,
        "sent_as": entry.wire_name,
        "address": _show_address(adapter.base_url),
        "keys": keys or None,
        "timeouts": to_builtins(timeouts),
        "rate_limit": adapter.rate_limit.given() if adapter.rate_limit else None,
        "proxy": _show_address(proxy) if "://" in proxy else proxy,
        "ca": adapter.connection.ca,
        "client_cert": adapter.connection.client_cert,
        "priced_as": entry.priced_as.model,
        "tokens": entry.tokens,
    }


def _show_address(url: str | None) -> str | None:
    """Return an address without credentials."""
    if url is None:
        return None
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
