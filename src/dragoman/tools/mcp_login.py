"""Log in to an MCP server in a browser, with a redirect to a port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import webbrowser
from collections.abc import Callable
from urllib.parse import parse_qs, urljoin, urlsplit

from .mcp_http import is_loopback

_HEAD = "Content-Type: text/plain\r\nConnection: close\r\nContent-Length: "
_PAGE = "You can close this page and return to the program.\n"
_MAX_LINE = 16 * 1024


async def log_in_by_browser(
    url: str, *, show: Callable[[str], object] | None = None, browser: bool = True
) -> str:
    """Open the page to log in at; return the URL that the browser is sent to afterwards.

    The redirect URI in ``url`` must have the address of this machine and a port. ``show`` is
    called with the URL of the page; without ``browser`` the page is not opened.
    """
    redirect = parse_qs(urlsplit(url).query).get("redirect_uri", [""])[0]
    parts = urlsplit(redirect)
    if parts.scheme != "http" or not parts.port or not is_loopback(parts.hostname or ""):
        raise ValueError("redirect_uri: must be http://127.0.0.1:PORT/... to log in by a browser")
    landed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            words = (await reader.readuntil(b"\r\n")).decode("latin-1").split(" ")
            path = words[1] if words[0] == "GET" and len(words) == 3 else ""
            is_ours = path.partition("?")[0] == parts.path
            status, page = ("200 OK", _PAGE) if is_ours else ("404 Not Found", "Not found.\n")
            writer.write(f"HTTP/1.1 {status}\r\n{_HEAD}{len(page)}\r\n\r\n{page}".encode())
            await writer.drain()
            if is_ours and not landed.done():
                landed.set_result(urljoin(redirect, path))
        writer.close()

    try:
        server = await asyncio.start_server(answer, parts.hostname, parts.port, limit=_MAX_LINE)
    except OSError as error:
        problem = error.strerror or error
        raise ValueError(f"redirect_uri: cannot listen on port {parts.port}: {problem}") from None
    try:
        if show is not None:
            show(url)
        if browser:
            # A text browser blocks until the user closes it, so it is opened in a thread.
            await asyncio.to_thread(webbrowser.open, url)
        return await landed
    finally:
        server.close()  # without waiting: a browser keeps connections open that it does not use
