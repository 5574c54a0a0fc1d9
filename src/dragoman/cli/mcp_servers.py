"""The MCP servers of ``dragoman agent``: names, options, and approval of changed tools.

``mcp.yaml`` in the settings folder gives names to servers::

    servers:
      tracker:
        url: https://mcp.example.com/mcp
        oauth: {client_id: dragoman, issuer: "https://login.example.com"}
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import click
from msgspec import Struct

from ..registry.folders import user_folder
from ..replay import make_printable
from ..tools import (
    AcceptChange,
    ExecutableTool,
    KeyringTokens,
    McpOAuth,
    McpServer,
    ToolChange,
    ToolPins,
)
from ..validate.yaml import Section, read_yaml
from .agent_view import AgentView
from .approval import InputLines
from .console import notify
from .errors import reject, report_mistakes
from .parameters import option

_PINS = "mcp-tools.json"
Target: TypeAlias = str | list[str]


class McpOptions(Struct):
    """The options that configure MCP servers."""

    servers: Annotated[
        tuple[str, ...],
        "Offer the tools of an MCP server: a URL, a name in mcp.yaml, or a command.",
        option("SERVER", "--mcp"),
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
    mcp_deferred: Annotated[
        bool, "Let the model search the tools of MCP servers instead of offering every tool."
    ] = False
    mcp_context: Annotated[
        bool, "Offer tools that read the resources and prompts of MCP servers."
    ] = False
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
    targets = [find_server(line) for line in options.servers]
    urls = [target for target, _ in targets if isinstance(target, str)]
    headers = read_headers(urls, options.bearers, options.headers)
    named = [{"target": target, "oauth": oauth} for target, oauth in targets]
    shared: dict[str, Any] = {
        "pins": ToolPins(user_folder("data") / _PINS),
        "accept": _make_accept(lines, always=options.mcp_accept),
        "deferred": options.mcp_deferred,
        "context": options.mcp_context,
    }
    tools: list[ExecutableTool] = []
    for at, settings in enumerate([*named, *given]):
        if isinstance(url := settings["target"], str):
            settings = {"headers": headers.get(find_origin(url)), **settings}
            is_open = "Authorization" not in (settings["headers"] or {})
            if settings.get("oauth") is None and is_open and KeyringTokens().get(url):
                settings["oauth"] = McpOAuth()
        with reject(ValueError, about="--mcp: " if at < len(named) else "MCP server: "):
            server = McpServer(**settings, **shared)
        await stack.enter_async_context(server)
        tools += server.tools
        for reason in server.refused:
            hint = "; --mcp-accept accepts it" if reason.endswith("pinned") else ""
            view.note(f"{reason}{hint}")
    return tools


def find_server(text: str) -> tuple[Target, McpOAuth | None]:
    """Return the target and the login of a server: a URL, a name in ``mcp.yaml``, or a command."""
    if text.startswith(("http://", "https://")):
        return text, None
    path = Path(os.environ.get("DRAGOMAN_MCP") or user_folder("config") / "mcp.yaml")
    with report_mistakes():
        servers = read_yaml(path).section("servers") if path.exists() else None
        if servers is None or text not in servers.data:
            return shlex.split(text), None
        server = servers.section(text)
        server.allow("url", "command", "oauth")
        url = server.get("url", str)
        command = server.texts("command")
        if (url is None) == (command is None):
            raise server.fail("must have either a url, or a command as a list")
        return url or list(command or ()), _read_oauth(server) if "oauth" in server.data else None


def _read_oauth(server: Section) -> McpOAuth:
    section = server.section("oauth")
    hidden = ["authorize", "tokens", "client_secret"]
    given: dict[str, Any] = section.values(McpOAuth, without=hidden, more=["client_secret_env"])
    variable = section.get("client_secret_env", str)
    if variable and not os.environ.get(variable):
        raise section.fail(f"the environment variable {variable} is not set", "client_secret_env")
    try:
        return McpOAuth(client_secret=os.environ[variable] if variable else None, **given)
    except ValueError as error:
        raise section.fail(str(error)) from None


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
        origin = origins[0] if origins else ""
        rest = text
        if text.startswith(("http://", "https://")):
            origin, _, rest = text.partition("=")
            origin = find_origin(origin)
        elif len(origins) != 1:
            problem = f"name the origin it is for; there are {len(origins)} --mcp URLs"
            raise click.UsageError(f"{flag} {text}: {problem}")
        if origin not in origins:
            raise click.UsageError(f"{flag}: no --mcp URL has the origin {origin}")
        is_bearer = flag == "--mcp-bearer"
        name, _, variable = ("Authorization", "", rest) if is_bearer else rest.rpartition(":")
        if not name or not variable:
            raise click.UsageError(f"{flag} {text}: must be [ORIGIN=]NAME:VARIABLE")
        value = os.environ.get(variable)
        if not value:
            raise click.UsageError(f"{flag}: the environment variable {variable} is not set")
        found.setdefault(origin, {})[name] = f"Bearer {value}" if is_bearer else value
    return found


def _make_accept(lines: InputLines | None, *, always: bool) -> AcceptChange | None:
    """Return the callback that decides about a changed tool; ``None`` without a terminal."""
    if always:
        return lambda change: True
    if lines is None:
        return None

    async def ask(change: ToolChange) -> bool:
        what = "has another definition than when you first used it" if change.pinned else "is new"
        notify(f"{change.server}: the tool {change.tool.name} {what}. It describes itself as:")
        notify(f"  {make_printable(change.tool.description)}")
        click.echo("offer it to the model? [y]es, [n]o: ", nl=False, err=True)
        line = await lines.read()
        return (line or "").strip().casefold() in ("y", "yes")

    return ask
