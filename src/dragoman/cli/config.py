"""Implement the command ``dragoman config``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import click

from ..registry import ConfigError, File, config_path, read_file
from .completion import ModelName
from .console import show_json, show_table
from .errors import report_errors
from .explain import explain_name
from .options import load_registry
from .parameters import Json, add_options


@click.group("config")
def command() -> None:
    """Find and check your models.yaml, and explain which models a name in it opens."""


@command.command("path")
@add_options
def path(*, as_json: Annotated[Json, "Print it as JSON."] = False) -> None:
    """Print the path of models.yaml: $DRAGOMAN_CONFIG if set, or the platform's default.

    Exit code 1 means that the file does not exist; then the bundled catalogue is used.
    """
    found = config_path()
    if as_json:
        show_json({"path": str(found), "exists": found.exists()})
    else:
        click.echo(found)
    if not found.exists():
        raise SystemExit(1)


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@add_options
def check(
    file: Path | None, *, as_json: Annotated[Json, "Print what was found as JSON."] = False
) -> None:
    """Check FILE, by default your models.yaml, and print every mistake with its line.

    Exit code 2 means that there is a mistake. Remarks point to settings that are valid but look
    unintended.
    """
    where = file or config_path()
    is_chosen = file is not None or bool(os.environ.get("DRAGOMAN_CONFIG"))
    if not is_chosen and not where.exists() and not where.is_symlink():
        _tell_absence(where, as_json=as_json)
        return
    try:
        read = read_file(where)
    except ConfigError as error:
        read = File(problems=(error,))
    if as_json:
        show_json(_as_data(where, read))
    else:
        _show(where, read)
    if read.problems:
        raise SystemExit(2)


@command.command("explain")
@click.argument("name", type=ModelName())
@add_options
def explain(name: str, *, as_json: Annotated[Json, "Print it as JSON."] = False) -> None:
    """Print the middleware stack that NAME opens, outermost layer first, and each model's address.

    NAME is a group, a model or an alias. Nothing is sent, and no key is needed or printed.
    """
    with report_errors():
        found = explain_name(load_registry(), name)
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


def _tell_absence(where: Path, *, as_json: bool) -> None:
    if as_json:
        show_json(_as_data(where, File()))
    else:
        click.echo(
            f"{where}: there is no such file, and none is needed; the bundled catalogue answers"
        )


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


def _status(adapter: Any) -> str:
    return "configured" if adapter.is_configured else "not_configured"


def _show(where: Path, read: File) -> None:
    for remark in [*read.remarks, *read.advice]:
        click.echo(f"{click.style('remark', fg='yellow')}: {remark}", err=True)
    for error in read.problems:
        click.echo(f"{click.style('error', fg='red')}: {error}", err=True)
    if read.problems:
        return
    rows = [
        [each.name, each.type, each.wire, _status(each), _what_is_missing(each)]
        for each in read.adapters
    ]
    if rows:
        show_table(["ADAPTER", "TYPE", "WIRE", "STATUS", ""], rows)
    models, aliases = len(read.models), sum(len(model.aliases) for model in read.models)
    groups = f", {len(read.groups)} groups" if read.groups else ""
    click.echo(f"{where}: fine; {len(rows)} adapters, {models} models, {aliases} aliases{groups}")


def _what_is_missing(adapter: Any) -> str:
    if adapter.is_configured:
        return ""
    return f"set {adapter.api_key_env}" if adapter.base_url else "set base_url"
