"""Implement the command ``dragoman mcp``."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Annotated

import click
from msgspec.structs import replace

from ..registry.keys import open_keyring
from ..tools import (
    KeyringTokens,
    McpOAuth,
    McpServer,
    ToolFailure,
    describe_client,
    log_in_by_browser,
)
from ..tools.mcp_oauth import REDIRECT
from .console import notify, show_json
from .errors import EXIT_CODES, reject, report_mistakes
from .log_place import LogPlace
from .mcp_serve import make_server
from .mcp_servers import find_server
from .parameters import add_options

_PATIENCE = 600.0  # seconds that a person has to log in


@click.group("mcp", invoke_without_command=True)
@add_options
def command(*, where: LogPlace = None) -> None:
    """Let another agent search the log, plan conversations and look up costs and models over MCP.

    The agent starts "dragoman mcp", and uses its standard input and output. The tools only read:
    no model is called and nothing is executed. The subcommands log in to MCP servers.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    with reject(ImportError):
        server = make_server(where)
    if sys.stdin.isatty():
        notify("waiting for an MCP client on standard input; Ctrl-C ends")
    server.run("stdio")


@command.command("login")
@click.argument("server")
@add_options
def log_in(
    server: str, *, browser: Annotated[bool, "Open the login page in a browser."] = True
) -> None:
    """Log in to SERVER in a browser, and store the login in the system's keyring.

    SERVER is the URL of a server, or its name in mcp.yaml. The agent uses the login: dragoman
    agent --mcp SERVER. The URL of the login page is also printed, for a machine without a browser;
    the page redirects to a port of this machine.
    """
    url, oauth = _find_url(server)
    if oauth.grant == "client_credentials":
        raise click.UsageError(f"{server} uses client_credentials, which need no login")
    if open_keyring() is None:
        advice = "pip install 'dragoman[keys]'"
        raise click.UsageError(f"there is no keyring to store the login in; {advice}")
    show = lambda page: notify(f"log in at {page}")
    authorize = partial(log_in_by_browser, show=show, browser=browser)
    fresh: dict[str, str] = {}  # the stored login stays until this one has succeeded
    with reject(ValueError):
        oauth = replace(oauth, authorize=authorize, tokens=fresh)
        opened = McpServer(url, oauth=oauth, start_timeout=_PATIENCE)
    try:
        asyncio.run(_try(opened))
    except ToolFailure as error:
        notify(f"error: {error}")
        raise SystemExit(EXIT_CODES["session_failed"]) from None
    stored = "the server needs no login"
    if url in fresh:
        with report_mistakes():
            KeyringTokens()[url] = fresh[url]
        stored = "logged in"
    click.echo(f"{opened.label}: {stored}; it has {len(opened.tools)} tools")


@command.command("document")
@click.argument("url")
@add_options
def document(
    url: str,
    *,
    redirect_uri: Annotated[str, "Send the browser to this address after a login."] = REDIRECT,
) -> None:
    """Print the document that describes this client to servers without registration, as JSON.

    Publish it at URL, an https:// address, and name it in mcp.yaml: oauth: {client_metadata_url:
    URL}. A server that supports Client ID Metadata Documents reads it there, once for all servers.
    """
    with reject(ValueError):
        show_json(describe_client(url, redirect_uri))


async def _try(server: McpServer) -> None:
    async with server:
        pass


@command.command("logout")
@click.argument("server")
def log_out(server: str) -> None:
    """Delete the stored login of SERVER."""
    url, _ = _find_url(server)
    with report_mistakes():
        removed = KeyringTokens().pop(url)
    click.echo(f"{server}: {'logged out' if removed else 'was not logged in'}", err=not removed)
    if not removed:
        sys.exit(1)


def _find_url(server: str) -> tuple[str, McpOAuth]:
    target, oauth = find_server(server)
    if not isinstance(target, str):
        raise click.UsageError(f"{server}: must be a URL, or the name of a URL in mcp.yaml")
    return target, oauth or McpOAuth()
