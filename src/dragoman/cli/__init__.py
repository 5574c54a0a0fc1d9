"""The command: ``dragoman ask``, ``chat``, ``plan``, ``ready`` and more.

Exit codes: 0 fine; 1 a bug; 2 wrong usage; 10 to 18 one per category of error (see ``output``);
130 interrupted.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

__all__ = ["main"]

_COMMANDS = {
    "ask": "Ask a model once and print its answer.",
    "chat": "Talk with a model, by default the embedded one.",
    "local": "Manage the embedded model.",
    "log": "Look into the event log: list, show, verify, export, prune, cost.",
    "plan": "Show what would become of a conversation on another model.",
    "ready": "Tell whether a model can be expected to answer.",
}


class _LazyGroup(click.Group):
    """Loads a command's module when the command is used, so that ``--help`` costs next to nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: Any = importlib.import_module(f"{__name__}.{name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dragoman")
def main() -> None:
    """The model's translator, never the tool's executor."""
