"""The command line: ``dragoman ask``, ``chat``, ``models``, ``plan`` and more.

Exit codes: 0 success; 1 a bug; 2 invalid usage or an invalid file; 10 to 18 an error, with one
code per error category (see ``errors``); 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import click

__all__ = ["main"]

_COMMANDS = {
    "agent": (
        "Have a model pursue a goal with tools in a folder; every step is asked about and "
        "recorded."
    ),
    "ask": "Ask a model once and print its answer.",
    "batch": "Ask a model for every row of a file; restartable at any point.",
    "chat": "Talk with a model, by default the embedded one.",
    "check": "Check whether a server keeps the contract, and what its model can do.",
    "config": "Check your models.yaml and say where it is.",
    "cost": "Price a usage, a reply, or a log of calls.",
    "embed": "Turn texts into vectors.",
    "keys": (
        "Keep API keys in the system's keyring or a private file; manage the keys of a gateway."
    ),
    "local": "Manage the embedded model.",
    "log": (
        "Look into the event log: list, search, show, verify, export, prune, cost; turn it on and "
        "off."
    ),
    "models": "List models: what they can do, how we know, and what they cost.",
    "plan": "Show what would become of a conversation on another model.",
    "ready": "Tell whether a model can be expected to answer.",
    "replay": "Show a recorded run again, step by step; nothing is executed.",
    "rerank": "Order documents by their relevance to a query.",
    "serve": "Serve models to existing clients, over the wires they speak.",
    "sim": "Serve a simulated model that does what a script says.",
    "templates": "Manage saved prompts with variables for dragoman ask -t.",
}


class _LazyGroup(click.Group):
    """Load a command's module when the command is used, so that ``--help`` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: Any = importlib.import_module(f"{__name__}.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            # lazy import: it takes a millisecond, and only this error needs it
            import difflib

            near = difflib.get_close_matches(args[0], _COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete the command names without loading the commands."""
        # lazy import: only needed for shell completion
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=text)
            for name, text in _COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dragoman")
@click.pass_context
def main(context: click.Context) -> None:
    """Call language models, serve them to existing clients, and inspect what happened."""
    if os.environ.get("NO_COLOR"):  # Click ignores this variable; see https://no-color.org
        context.color = False


if "_DRAGOMAN_COMPLETE" in os.environ:  # only a shell's completion script sets this variable
    importlib.import_module(f"{__name__}.completion")
