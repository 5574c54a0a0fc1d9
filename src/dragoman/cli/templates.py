"""Implement the command ``dragoman templates``, and fill the templates that ``-t`` names.

A template is a file ``NAME.yaml`` in the folder ``templates`` next to ``models.yaml``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
from msgspec import Struct

from ..batches.template import Template
from ..registry import config_path
from ..registry.folders import write_private
from ..validate.fields import suggest
from ..validate.yaml import ConfigError, parse_yaml
from .console import legible, show_json, show_table
from .errors import reject, report_mistakes
from .options import ModelOption, SystemOption
from .parameters import Json, add_options, option
from .schemas import SchemaOption, read_schema

_NAME = re.compile(r"\w[\w.-]*")
_NEW = """\
# Variables are in braces: {language}. {input} is the text of the command line and of a pipe.
system: Translate into {language}.
prompt: "{input}"
defaults: {language: English}
# model: openai:gpt-6-sol
# schema: title, tags [str]
"""


class SavedPrompt(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of a template; ``defaults`` are values of variables that ``-p`` may replace."""

    model: str | None = None
    system: str | None = None
    prompt: str | None = None
    schema: str | dict[str, Any] | None = None
    defaults: dict[str, Any] = {}

    def parts(self) -> tuple[Template, Template]:
        """Return the system prompt and the prompt; raise ``ValueError`` for misplaced braces."""
        prompt = "{input}" if self.prompt is None else self.prompt
        return Template(self.system or ""), Template(prompt)

    def variables(self) -> list[str]:
        """Return the names in braces, except ``input``."""
        names = [name for part in self.parts() for name in part.names]
        return [name for name in dict.fromkeys(names) if name != "input"]


def complete_template(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of templates that begin with the typed text."""
    return [name for name in _list_names() if name.startswith(incomplete)]


class TemplateOptions(Struct, frozen=True):
    """The options that name a template, and that set its variables."""

    template: Annotated[
        str | None,
        "Send a saved prompt; see dragoman templates.",
        option("NAME", "-t --template", shell_complete=complete_template),
    ] = None
    values: Annotated[
        tuple[tuple[str, str], ...],
        "Set a variable of the template; may be repeated.",
        option("NAME VALUE", "-p --param", nargs=2),
    ] = ()

    def fill(self, text: str) -> SavedPrompt:
        """Return the template with values for its variables, and the text for ``{input}``.

        If the template has no ``{input}``, the text comes before its prompt. Without a template,
        the text is the prompt.
        """
        if self.template is None:
            if self.values:
                raise click.UsageError("-p sets a variable of a template; use -t, too")
            return SavedPrompt(prompt=text)
        saved = _load(self.template)
        given = {**saved.defaults, **self._check_values(saved), "input": text}
        system, prompt = saved.parts()
        takes_text = "input" in [*system.names, *prompt.names]
        if takes_text and not text:
            what = f"the template {self.template} needs a text"
            raise click.UsageError(f"{what}; give PROMPT, or pipe one")
        parts = [prompt.fill(given)] if takes_text else [text, prompt.fill(given)]
        return msgspec.structs.replace(
            saved,
            system=system.fill(given) or None,
            prompt="\n\n".join([part for part in parts if part]),
        )

    def open_chat(self) -> SavedPrompt:
        """Return the template for a chat; ``{input}`` in its prompt stands for each line."""
        filled = self.fill("{input}")
        for name, is_there in (
            ("a schema", filled.schema is not None),
            ("{input} in its system prompt", "{input}" in (filled.system or "")),
        ):
            if is_there:
                what = f"the template {self.template} has {name}"
                raise click.UsageError(f"{what}, which a chat cannot send; use dragoman ask")
        return filled

    def _check_values(self, saved: SavedPrompt) -> dict[str, str]:
        """Return the values of ``-p``; raise ``UsageError`` for unknown and missing variables."""
        variables = saved.variables()
        values = dict(self.values)
        for key in values:
            if key not in variables:
                hint = suggest(key, variables) or f"it has {', '.join(variables) or 'none'}"
                what = f"-p {key}: the template {self.template} has no such variable"
                raise click.UsageError(f"{what}; {hint}")
        for key in variables:
            if key not in {**saved.defaults, **values}:
                what = f"the template {self.template} needs a value"
                raise click.UsageError(f"{what}; add: -p {key} VALUE")
        return values


@click.group("templates")
def command() -> None:
    """Manage saved prompts, which "dragoman ask -t NAME" fills with values and sends."""


@command.command("list")
@add_options
def list_all(*, as_json: Annotated[Json, "Print the templates as JSON."] = False) -> None:
    """List the templates with their variables."""
    found = {name: _load(name) for name in _list_names()}
    if as_json:
        show_json({name: msgspec.to_builtins(saved) for name, saved in found.items()})
    elif not found:
        advice = "make one: dragoman templates edit NAME"
        click.echo(f"there are no templates in {_folder()}; {advice}")
    else:
        rows = []
        for name, saved in found.items():
            line, *_ = (saved.prompt or saved.system or "").splitlines() or [""]
            rows.append([name, ", ".join(saved.variables()), saved.model or "", line[:60]])
        show_table(["name", "variables", "model", "prompt"], rows)


@command.command("show")
@click.argument("name", shell_complete=complete_template)
@add_options
def show(name: str, *, as_json: Annotated[Json, "Print the template as JSON."] = False) -> None:
    """Print the template NAME."""
    saved = _load(name)
    if as_json:
        show_json(msgspec.to_builtins(saved))
    else:
        click.echo(legible(_path(name).read_text("utf-8").rstrip("\n")))


@command.command("edit")
@click.argument("name", shell_complete=complete_template)
def edit(name: str) -> None:
    """Open the template NAME in your editor ($EDITOR); a new one begins with an example."""
    path = _path(name)
    text = click.edit(path.read_text("utf-8") if path.exists() else _NEW, extension=".yaml")
    click.echo("nothing was saved", err=True) if text is None else _write(path, text)


@command.command("save")
@click.argument("name", shell_complete=complete_template)
@click.argument("prompt", required=False)
@add_options
def save(
    name: str,
    prompt: str | None,
    *,
    model: ModelOption = None,
    system: SystemOption = None,
    schema: SchemaOption = None,
    defaults: Annotated[
        tuple[tuple[str, str], ...],
        "Set the default value of a variable; may be repeated.",
        option("NAME VALUE", "-p --param", nargs=2),
    ] = (),
    replace: Annotated[bool, "Replace an existing template."] = False,
    as_json: Annotated[Json, "Print the path of the template's file as JSON."] = False,
) -> None:
    """Save PROMPT as the template NAME; names in braces become variables.

    \b
    dragoman templates save translate "{input}" -s "Translate into {language}." -p language French
    dragoman ask -t translate -p language German "Good morning"
    """  # noqa: D301 - Click keeps the lines of a paragraph after a backspace
    path = _path(name)
    if path.exists() and not replace:
        advice = "use --replace, or choose another name"
        raise click.UsageError(f"the template {name} exists; {advice}")
    if prompt is None and system is None:
        raise click.UsageError("there is nothing to save; give PROMPT or --system")
    form = None if schema is None else read_schema(schema)  # an invalid one is an error here
    form = form if schema is None or Path(schema).is_file() else schema
    saved = SavedPrompt(model, system, prompt, form, dict(defaults))
    _write(path, msgspec.yaml.encode(saved).decode())
    show_json({"path": str(path)}) if as_json else click.echo(path)


def _folder() -> Path:
    return config_path().parent / "templates"


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise click.UsageError(f"{name!r} is not a name; use letters, digits, dots and dashes")
    return _folder() / f"{name}.yaml"


def _list_names() -> list[str]:
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def _load(name: str) -> SavedPrompt:
    path = _path(name)
    if not path.exists():
        known = _list_names()
        hint = f"make it: dragoman templates edit {name}"
        if known:
            hint = suggest(name, known) or f"known are {', '.join(known)}"
        raise click.UsageError(f"there is no template {name!r} in {_folder()}; {hint}")
    with reject(OSError, about=f"{path} cannot be read: "):
        return _parse(path.read_bytes(), path)


def _parse(data: bytes, path: Path) -> SavedPrompt:
    """Return the template in a file; report a mistake with the file and the line."""
    with report_mistakes():
        saved = parse_yaml(data, str(path)).convert(SavedPrompt)
        try:
            saved.parts()
        except ValueError as error:
            raise ConfigError(str(path), None, str(error)) from None
        return saved


def _write(path: Path, text: str) -> None:
    """Write a template; check it afterwards, so that a mistake does not lose the text."""
    with reject(OSError, about=f"{path} cannot be written: "):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, text.encode())
    _parse(text.encode(), path)
