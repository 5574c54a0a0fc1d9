"""The MCP servers of ``dragoman agent``: options, HTTP headers, and approval of changed tools."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Annotated, Any
from urllib.parse import urlsplit

import click
import platformdirs
from msgspec import Struct

from ..replay import make_printable
from ..tools import AcceptChange, ExecutableTool, McpServer, ToolChange, ToolPins
from .agent_view import AgentView
from .approval import InputLines
from .errors import reject
from .parameters import option

_PINS = "mcp-tools.json"


class McpOptions(Struct):
    """The options that configure MCP servers."""

    servers: Annotated[
        tuple[str, ...], "Offer the tools of an MCP server or URL.", option("COMMAND", "--mcp")
    ] = ()
    bearers: Annotated[
        tuple[str, ...],
        "Send an environment variable as bearer token to an MCP server; ORIGIN, such as "
        "https://mcp.example.com, chooses one of several.",
        option("[ORIGIN=]VARIABLE", "--mcp-bearer"),
    ] = ()
    headers: Annotated[
        tuple[str, ...],
        "Send an environment variable in the header NAME to an MCP server.",
        option("[ORIGIN=]NAME:VARIABLE", "--mcp-header"),
    ] = ()
    mcp_accept: Annotated[bool, "Accept new and changed tools of MCP servers without asking."] = (
        False
    )


async def open_servers(
    stack: AsyncExitStack,
    options: McpOptions,
    view: AgentView,
    lines: InputLines | None,
    given: Sequence[dict[str, Any]] = (),
) -> list[ExecutableTool]:
    """Open the MCP servers that the options name, and return their tools.

    ``lines`` reads the user's decisions about changed tools. ``given`` has the settings of more
    servers, for ``McpServer``.
    """
    targets = [
        line if line.startswith(("http://", "https://")) else shlex.split(line)
        for line in options.servers
    ]
    headers = read_headers(
        [each for each in targets if isinstance(each, str)], options.bearers, options.headers
    )
    pins = ToolPins(platformdirs.user_data_path("dragoman") / _PINS)
    tools: list[ExecutableTool] = []
    for settings in [*[{"target": target} for target in targets], *given]:
        if isinstance(url := settings["target"], str):
            settings = {"headers": headers.get(find_origin(url)), **settings}
        accept = _make_accept(lines, always=options.mcp_accept)
        with reject(ValueError, about="--mcp: " if url in targets else "MCP server: "):
            server = McpServer(**settings, pins=pins, accept=accept)
        await stack.enter_async_context(server)
        tools += server.tools
        for reason in server.refused:
            view.note(
                f"{reason}; --mcp-accept accepts it" if reason.endswith("pinned") else reason
            )
    return tools


def find_origin(url: str) -> str:
    """Return the scheme, host and port of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


def read_headers(
    urls: list[str], bearers: tuple[str, ...], headers: tuple[str, ...]
) -> dict[str, dict[str, str]]:
    """Return the HTTP headers for each origin, with values read from environment variables."""
    origins = list(dict.fromkeys(map(find_origin, urls)))
    found: dict[str, dict[str, str]] = {}
    flags = dict.fromkeys(bearers, "--mcp-bearer") | dict.fromkeys(headers, "--mcp-header")
    for text, flag in flags.items():
        origin, rest = origins[0] if origins else "", text
        if text.startswith(("http://", "https://")):
            origin, _, rest = text.partition("=")
            origin = find_origin(origin)
        elif len(origins) != 1:
            raise click.UsageError(
                f"{flag} {text}: name the origin it is for; there are {len(origins)} --mcp URLs"
            )
        if origin not in origins:
            raise click.UsageError(f"{flag}: no --mcp URL has the origin {origin}")
        name, _, variable = (
            rest.rpartition(":") if flag == "--mcp-header" else ("Authorization", "", rest)
        )
        if not name or not variable:
            raise click.UsageError(f"{flag} {text}: must be [ORIGIN=]NAME:VARIABLE")
        value = os.environ.get(variable)
        if not value:
            raise click.UsageError(f"{flag}: the environment variable {variable} is not set")
        found.setdefault(origin, {})[name] = f"Bearer {value}" if flag == "--mcp-bearer" else value
    return found


def _make_accept(lines: InputLines | None, *, always: bool) -> AcceptChange | None:
    """Return the callback that decides about a changed tool.

    The callback accepts every change or asks the user. Without a terminal to ask at, return
    ``None``.
    """
    if always:
        return lambda change: True
    if lines is None:
        return None

    async def ask(change: ToolChange) -> bool:
        what = "has another definition than when you first used it" if change.pinned else "is new"
        click.echo(
            f"{change.server}: the tool {change.tool.name} {what}. It describes itself as:",
            err=True,
        )
        click.echo(f"  {make_printable(change.tool.description)}", err=True)
        click.echo("offer it to the model? [y]es, [n]o: ", nl=False, err=True)
        line = await lines.read()
        return (line or "").strip().casefold() in ("y", "yes")

    return ask
