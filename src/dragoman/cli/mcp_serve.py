"""The tools of ``dragoman mcp``: read-only commands with ``--json``, for other agents over MCP."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Literal, cast

import click
import msgspec

from ..errors import ProviderError, advise_import, scrub
from . import main
from .console import show_json
from .options import ModelOptions, open_model

_MAX_RESULT = 200_000  # characters


def make_server(place: str | None) -> Any:
    """Return an MCP server whose tools read the log at a place, plans, costs and models."""
    with advise_import("MCP needs the extra: pip install 'dragoman[mcp]'"):
        from mcp.server import MCPServer
        from mcp.types import ToolAnnotations

    about = "Read-only: the log of model calls, and models."
    server = MCPServer("dragoman", instructions=about, version=version("dragoman"))
    log = [f"--log={place}"] if place else []
    reads = server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)

    # The functions are async, so that one after the other runs: a command prints to sys.stdout.
    @reads
    async def search_log(text: str, limit: int = 20) -> str:
        """Find recorded sessions by what was asked, answered or executed; newest first."""
        return _run("log", "search", "--json", f"--limit={limit}", *log, "--", text)

    @reads
    async def sum_log_cost(
        by: Literal["model", "day", "provider", "session", "key", "project"] = "model",
        session: str = "",
    ) -> str:
        """Sum the cost of the recorded calls, of all sessions or of one."""
        chosen = [session] if session else []
        return _run("log", "cost", "--json", f"--by={by}", *log, "--", *chosen)

    @reads
    async def estimate_cost(model: str, input_tokens: int, output_tokens: int = 0) -> str:
        """Compute what tokens of a model cost in US dollars. An unknown price is null."""
        counts = [f"--input={input_tokens}", f"--output={output_tokens}"]
        return _run("cost", "--json", f"--model={model}", *counts)

    @reads
    async def list_models(pattern: str) -> str:
        """List the models that match a name or pattern, with capabilities and prices."""
        return _run("models", "list", "--json", "--no-live", "--", pattern)

    @reads
    async def plan_conversation(messages: list[dict[str, Any]], model: str) -> str:
        """Show what a model would receive of messages: each part is kept, rewritten or dropped."""
        return _capture(lambda: _plan(messages, model))

    return server


def _plan(messages: list[dict[str, Any]], model: str) -> None:
    provider = open_model(model, ModelOptions(), planning=True)
    planned = provider.plan(cast("Any", messages))
    provider.close()
    show_json({**msgspec.to_builtins(planned), "fits": planned.fits})


def _run(*words: str) -> str:
    """Run a command of ``dragoman`` in this process, and return what it prints."""
    return _capture(lambda: main.main(list(words), "dragoman", standalone_mode=False))


def _capture(work: Callable[[], object]) -> str:
    """Return what a function prints, without secrets; raise the library's error if it fails."""
    from mcp.server.mcpserver.exceptions import ToolError

    output = io.StringIO()
    complaints = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(complaints):
        try:
            work()
            if len(output.getvalue()) <= _MAX_RESULT:
                return scrub(output.getvalue())
            problem = "the result is too long; ask for less"
        except click.ClickException as error:
            problem = error.format_message()
        except (ProviderError, ValueError) as error:
            problem = str(error)
        except SystemExit:
            problem = complaints.getvalue().strip()
    raise ToolError(scrub(problem))
