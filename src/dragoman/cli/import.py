"""Implement the command ``dragoman import``."""
# ruff: noqa: N999 - a module has the name of its command

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from ..compat.litellm.proxy import Conversion
from ..gateway.keys import read_key_file
from ..registry import read_file
from ..registry.folders import write_private
from .console import show_json
from .errors import reject, report_mistakes
from .parameters import Json, add_options, option


@click.group("import")
def command() -> None:
    """Convert the configuration of another program to models.yaml and keys.yaml."""


@command.command("litellm")
@click.argument("file", type=click.Path(path_type=Path))
@add_options
def convert(
    file: Path,
    *,
    output: Annotated[
        Path,
        "Write the files to this folder.",
        option("FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path)),
    ] = Path(),
    force: Annotated[bool, "Replace existing files."] = False,
    strict: Annotated[bool, "Write nothing and exit with 2 if a setting has no equal."] = False,
    as_json: Annotated[Json, "Print the paths of the files and the remarks as JSON."] = False,
) -> None:
    """Convert FILE, the config.yaml of LiteLLM's proxy, and list what has no equal.

    API keys are not copied: models.yaml names the environment variables that hold them, and
    keys.yaml has only the hash of the master key.
    """
    with report_mistakes():
        found = Conversion(file)
        contents = {"models.yaml": found.models, "keys.yaml": found.keys}
        refused = strict and bool(found.remarks)
        paths = {output / name: data for name, data in contents.items() if data and not refused}
        for path in [each for each in paths if each.exists() and not force]:
            raise click.UsageError(f"{path} exists; use --force, or another --output FOLDER")
        _write_files(paths)
    if as_json:
        remarks = [{"line": each.line, "problem": each.problem} for each in found.remarks]
        show_json({"files": [str(path) for path in paths], "remarks": remarks})
    else:
        for each in found.remarks:
            click.echo(f"{click.style('remark', fg='yellow')}: {each}", err=True)
        for path in paths:
            click.echo(path)
    if refused:
        raise SystemExit(2)


def _write_files(contents: Mapping[Path, dict[str, Any]]) -> None:
    """Write the files, and read each again as the gateway will."""
    for path, data in contents.items():
        with reject(OSError, about=f"{path} cannot be written: "):
            kept = {name: value for name, value in data.items() if value}
            write_private(path, msgspec.yaml.encode(kept))
    for path in contents:
        if path.name == "keys.yaml":
            read_key_file(path)
            continue
        for problem in read_file(path).problems:
            raise problem
