"""A real HTTP server on a real socket, for tests; a handler controls each reply."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Seen:
    """An HTTP request that the server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Connection:
    """A connection from a client, to which a handler writes the reply."""

    writer: asyncio.StreamWriter
    seen: Seen

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def head(self, status: int = 200, headers: dict[str, str] | None = None) -> None:
        lines = [f"HTTP/1.1 {status} X"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode())

    def reply(
        self, status: int, body: bytes, content_type: str = "application/json", **headers: str
    ) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.head(
            status, {"content-type": content_type, "content-length": str(len(body)), **named}
        )
        self.send(body)

    def begin_stream(self) -> None:
        self.head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})

    def chunk(self, data: bytes) -> None:
        self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def end_stream(self) -> None:
        self.send(b"0\r\n\r\n")


Handler = Callable[[Connection], Awaitable[None]]


@dataclass
class Server:
    """A running server and the requests it has received."""

    url: str = ""
    requests: list[Seen] = field(default_factory=list)
    open: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: bool = False

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


@contextlib.asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[Server]:
    """Serve until the context exits, then close every connection."""
    server = Server()
    tasks: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.open += 1
        try:
            while (seen := await _read(reader)) is not None:
                server.requests.append(seen)
                server.in_flight += 1
                server.most_in_flight = max(server.most_in_flight, server.in_flight)
                handling = asyncio.ensure_future(handler(Connection(writer, seen)))
                gone = asyncio.ensure_future(_eof(reader))
                try:
                    await asyncio.wait({handling, gone}, return_when=asyncio.FIRST_COMPLETED)
                    if not handling.done():
                        return
                    await handling
                    await writer.drain()
                finally:
                    server.in_flight -= 1
                    for each in (handling, gone):
                        each.cancel()
                    # If this task itself is cancelled, the cancellation propagates.
                    await asyncio.gather(handling, gone, return_exceptions=True)
                if seen.headers.get("connection") == "close":
                    return
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            server.open -= 1
            server.closed.set()
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if server.stopped:  # the system accepted this connection before the listener was closed
            writer.close()
            return
        task = asyncio.ensure_future(connected(reader, writer))
        tasks.add(task)
        # A task that is cancelled before its first step does not close its connection itself.
        task.add_done_callback(lambda _: (tasks.discard(task), writer.close()))

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        server.stopped = True
        # Stop accepting before closing the listener: Python 3.11 leaks the socket of a connection
        # that was accepted and has no transport yet when the listener is closed.
        for accepting in listener.sockets:
            asyncio.get_running_loop().remove_reader(accepting.fileno())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.wait_closed()


async def _eof(reader: asyncio.StreamReader) -> None:
    """Wait until the client disconnects; leave another request in the buffer."""
    # Asyncio cannot wait for data without reading it.
    while not reader.at_eof() and not reader._buffer:  # type: ignore[attr-defined]  # noqa: SLF001
        # Asyncio cannot wait for data without reading it.
        await reader._wait_for_data("eof")  # type: ignore[attr-defined]  # noqa: SLF001
    if reader._buffer:  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio cannot wait for data without reading it
        await asyncio.Event().wait()


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, path, headers, body)


def replying(status: int, body: bytes, *content_type: str, **headers: str) -> Handler:
    """Return a handler that gives every request the same reply."""

    async def handler(connection: Connection) -> None:
        connection.reply(status, body, *content_type, **headers)

    return handler


def completion(text: str = "Hello", **more: Any) -> bytes:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps(
        {"id": "x", "model": "m", "choices": [choice], "usage": usage, **more}
    ).encode()


def chunk(text: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    data = {
        "id": "x", "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more,
    }  # fmt: skip
    return b"data: " + json.dumps(data).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def stream_of(*texts: str) -> bytes:
    usage = {
        "choices": [],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
    last = b"data: " + json.dumps(usage).encode() + b"\n\n"
    return b"".join(chunk(text) for text in texts) + chunk(None, "stop") + last + DONE


def answering(text: str = "Hello") -> Handler:
    """Return a handler that answers every request, streamed or not."""

    async def handler(connection: Connection) -> None:
        if connection.seen.method == "GET":
            connection.reply(200, b'{"data": [{"id": "m"}]}')
        elif connection.seen.json.get("stream"):
            connection.begin_stream()
            connection.chunk(stream_of(*text))
            connection.end_stream()
        else:
            connection.reply(200, completion(text))

    return handler
