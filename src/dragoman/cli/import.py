"""Implement the command ``dragoman import``."""
# ruff: noqa: N999 - a module has the name of its command

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    as_json: Annotated[Json, "Print the paths of the files and the remarks as JSON."] = False,
) -> None:
    """Convert FILE, the config.yaml of LiteLLM's proxy, and list what has no equal.

    API keys are not copied: models.yaml names the environment variables that hold them, and
    keys.yaml has only the hash of the master key.
    """
    with report_mistakes():
        found = Conversion(file)
        contents = {"models.yaml": found.models, "keys.yaml": found.keys}
        paths = {output / name: data for name, data in contents.items() if data}
        for path in [each for each in paths if each.exists() and not force]:
            raise click.UsageError(f"{path} exists; use --force, or another --output FOLDER")
        for path, data in paths.items():
            with reject(OSError, about=f"{path} cannot be written: "):
                kept = {name: value for name, value in data.items() if value}
                write_private(path, msgspec.yaml.encode(kept))
        for problem in read_file(output / "models.yaml").problems:
            raise problem
        if found.keys:
            read_key_file(output / "keys.yaml")
    if as_json:
        remarks = [{"line": each.line, "problem": each.problem} for each in found.remarks]
        show_json({"files": [str(path) for path in paths], "remarks": remarks})
        return
    for each in found.remarks:
        click.echo(f"{click.style('remark', fg='yellow')}: {each}", err=True)
    click.echo("\n".join([str(path) for path in paths]))
