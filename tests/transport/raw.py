"""Provide a server that sends exactly the given bytes, and a function that calls a transport
directly.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from dragoman.transport import Secret, Timeouts, Transport
from dragoman.wire import HttpRequest

from ..waiting import PATIENCE

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PATIENT = Timeouts(PATIENCE, PATIENCE, PATIENCE, PATIENCE)


class RawServer:
    """Hold a running server's URL, and the requests and connections it received."""

    def __init__(self) -> None:
        self.url = ""
        self.heads: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.closed = asyncio.Event()


@contextlib.asynccontextmanager
async def listen(
    handler: Handler, *, host: str = "127.0.0.1", **settings: Any
) -> AsyncIterator[RawServer]:
    """Serve until the context exits; ``settings`` are passed to ``asyncio.start_server``."""
    server = RawServer()
    tasks = set[asyncio.Task[Any]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        server.open += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except (
            asyncio.CancelledError,
            asyncio.IncompleteReadError,
            ConnectionError,
            ssl.SSLError,
        ):
            pass
        finally:
            server.open -= 1
            server.closed.set()
            tasks.discard(task)
            writer.close()

    if "path" in settings:
        listener = await asyncio.start_unix_server(connected, **settings)
    else:
        listener = await asyncio.start_server(connected, host, 0, **settings)
        name = f"[{host}]" if ":" in host else host
        scheme = "https" if settings.get("ssl") else "http"
        server.url = f"{scheme}://{name}:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.wait_closed()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the head and the body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0].strip()
    return head, await reader.readexactly(int(length or 0))


def replying(*replies: bytes, close: bool = False) -> Handler:
    """Return a handler that sends these replies one after the other, and then repeats the last
    one.
    """

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        turn = 0
        while True:
            await read_request(reader)
            writer.write(replies[min(turn, len(replies) - 1)])
            await writer.drain()
            turn += 1
            if close:
                return

    return handler


async def call(
    transport: Transport,
    url: str,
    *,
    stream: bool = False,
    body: bytes = b"{}",
    headers: Mapping[str, str] | None = None,
    timeouts: Timeouts = PATIENT,
    credentials: Mapping[str, Secret] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """Send a request; return status, headers and body."""
    request = HttpRequest(
        "POST", f"{url}/v1/chat", dict(headers or {"content-type": "application/json"}), body
    )
    async with transport.send(request, credentials or {}, timeouts, stream=stream) as reply:
        pieces: list[bytes] = []
        while piece := await reply.receive():
            pieces.append(piece)
        return reply.status, dict(reply.headers), b"".join(pieces)
