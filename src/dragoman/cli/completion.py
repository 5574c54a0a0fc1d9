"""Shell completion of model names."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from ..local import list_models
from ..registry import ConfigError, Registry
from ..wire import CODECS


class ModelName(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions
    """The Click parameter type for a model name: an alias, ``vendor:model``, or ``local``."""

    name = "model"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            registry = Registry.load()
        except ConfigError:  # ignore an invalid models.yaml: the command itself will report it
            registry = Registry()
        aliases = registry.aliases()
        local = [f"local:{model.name}" for model in list_models()]
        names = ["local", *local, *aliases, *registry.names()]
        # complete vendors first, since seven hundred model names are too many
        if ":" not in incomplete:
            vendors = sorted({f"{name.partition(':')[0]}:" for name in names if ":" in name})
            names = [*[name for name in names if ":" not in name], *vendors]
        fitting = [name for name in names if name.startswith(incomplete)]
        return [CompletionItem(name, help=aliases.get(name)) for name in fitting]


def complete_wire(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of wires that begin with the typed text."""
    return [wire for wire in sorted(CODECS) if wire.startswith(incomplete)]


@add_completion_class
class Bash(BashComplete):
    """Complete arguments that contain colons in Bash, which splits words at colons."""

    name = "bash"
    _before = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        if incomplete != ":" and args[-1:] != [":"]:
            return args, incomplete
        if incomplete == ":":
            incomplete = ""
        else:
            args.pop()
        self._before = f"{args.pop()}:" if args else ""
        return args, f"{self._before}{incomplete}"

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value.removeprefix(self._before)}"
