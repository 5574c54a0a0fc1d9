"""The command line: ``dragoman ask``, ``chat``, ``models``, ``plan`` and more.

Box: cli.

Exit codes: 0 success; 1 a bug; 2 invalid usage or an invalid file; 10 to 18 an error, with one
code per error category (see ``errors``); 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from pathlib import Path
from typing import Any

import click

__all__ = ["main"]

_COMMANDS = {
    "agent": "Let a model pursue a goal with tools in a folder; you approve the steps.",
    "ask": "Ask a model once and print its answer.",
    "batch": "Call a model for every row of a file; continue after an interruption.",
    "chat": "Chat with a model, by default the embedded one.",
    "check": "Check whether a server conforms to its API, and what its model can do.",
    "clients": "Show how coding agents are connected to the gateway.",
    "compare": "Ask other models what the models of a log were asked; compare the answers.",
    "config": "Find and check your models.yaml.",
    "cost": "Compute the cost of tokens, of a reply, or of a log of calls.",
    "doctor": "Examine the installation, and compare its files with their recorded hashes.",
    "embed": "Turn texts into vectors.",
    "guard": "Try the judges of a guard on the recorded calls of a log.",
    "import": "Convert the configuration of another program to models.yaml and keys.yaml.",
    "keys": "Store API keys, and manage the keys of a gateway.",
    "local": "Download, list, remove and serve models that run on this machine.",
    "log": "Inspect the event log: list, search, show, verify, export, prune and price sessions.",
    "mcp": "Log in to MCP servers, or serve the log, plans, costs and models over MCP.",
    "models": "List models with their capabilities and prices.",
    "plan": "Show which parts of a conversation another model would receive.",
    "ready": "Check that a model is reachable and loaded, without a billed call.",
    "replay": "Show a recorded run again, step by step; nothing is executed.",
    "rerank": "Order documents by their relevance to a query.",
    "serve": "Serve models to existing clients over the APIs of the vendors.",
    "sim": "Serve a simulated model whose replies and faults a script defines.",
    "spend": "Show what the calls of a gateway cost, by team, user, tag, model or day.",
    "templates": "Manage saved prompts with variables for dragoman ask -t and chat -t.",
    "ui": "Talk with models in a browser, and see what is sent to each.",
}


@cache
def _list_commands() -> dict[str, str]:
    """Return the commands of the boxes that are installed, with their help texts."""
    present = {path.name.partition(".")[0] for path in Path(__file__).parent.iterdir()}
    return {name: text for name, text in _COMMANDS.items() if name in present}


class _LazyGroup(click.Group):
    """Load a command's module when the command is used, so that ``--help`` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_list_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _list_commands():
            return None
        command: Any = importlib.import_module(f"{__name__}.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in _list_commands() and not args[0].startswith("-"):
            # lazy import: it takes a millisecond, and only this error needs it
            import difflib

            near = difflib.get_close_matches(args[0], _list_commands(), 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an interrupt while it is loaded ends like one while it runs."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_list_commands().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete the command names without loading the commands."""
        # lazy import: only needed for shell completion
        from click.shell_completion import CompletionItem

        known = _list_commands().items()
        found = [
            CompletionItem(name, help=text) for name, text in known if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dragoman")
@click.option(
    "--verbose",
    is_flag=True,
    help="Print each call of a model, with its request and reply, to the standard error output.",
)
@click.pass_context
def main(context: click.Context, *, verbose: bool) -> None:
    """Call language models, serve them to existing clients, and inspect what happened."""
    if verbose:
        importlib.import_module("dragoman.provider.call_log").print_log("debug")
    if os.environ.get("NO_COLOR"):  # Click ignores this variable; see https://no-color.org
        context.color = False


if "_DRAGOMAN_COMPLETE" in os.environ:  # only a shell's completion script sets this variable
    importlib.import_module(f"{__name__}.completion")
