"""A table of unusual and hostile requests, and what a client and the application must see.

``REQUESTS`` has rows of a name, the bytes that a client sends, and the replies separated by `` | ``:
the status of a rejection, or the request that the application receives (method, path and body).
After a rejection, and after the word ``closed``, the connection must be closed; otherwise it must
still be usable. A request for ``/smuggled`` must never reach the application.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.rows import read_table
from tests.waiting import patience

GET = b"GET /a HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /a HTTP/1.1\r\nhost: x\r\n"
BODY = b"content-length: 3\r\n\r\nabc"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
NEXT = b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n"
EVIL = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"

Row = tuple[str, bytes, str]

REQUESTS: list[Row] = [
    *[(name, text.encode("latin-1"), wanted) for name, text, wanted in read_table("hostile_requests")],
    ("many trailers", CHUNKED + b"0\r\n" + b"t: v\r\n" * 2000 + b"\r\n", "431"),
    ("one endless trailer", CHUNKED + b"0\r\nt: " + b"a" * 400_000, "431"),
    ("an endless extension", CHUNKED + b"5;" + b"a" * 400_000, "431"),
    ("101 headers", GET + b"h: v\r\n" * 100 + b"\r\n", "431"),
    ("100 headers", GET + b"x: " + b"a" * 60_000 + b"\r\n" + b"h: v\r\n" * 98 + b"\r\n", "GET /a"),
    ("one long header", GET + b"x: " + b"a" * 70_000 + b"\r\n\r\n", "431"),
    ("one endless header", GET + b"x: " + b"a" * 400_000, "431"),
    ("a long path", GET.replace(b"/a", b"/" + b"a" * 70_000) + b"\r\n", "431"),
    ("an endless path", b"GET /" + b"a" * 400_000, "431"),
]  # fmt: skip

# rows whose result depends on how many of the requests arrive before the first reply
PIPELINED: list[Row] = [
    ("three requests", GET + b"\r\n" + POST + BODY + NEXT, "GET /a | POST /a abc | GET /next"),
    ("a body of GET", GET + BODY + NEXT, "GET /a abc | GET /next"),
    ("a request after the last one", GET + b"connection: close\r\n\r\n" + EVIL, "GET /a | closed"),
    ("a request after HTTP/1.0", b"GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n" + EVIL, "GET /a | closed"),
    ("ten requests", NEXT * 9 + EVIL, "GET /next | " * 9 + "closed"),
    ("a large head after a request", NEXT + b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n" + EVIL, "GET /next | closed"),
    ("bytes after a request", POST + BODY + b"\0\0\0" + EVIL, "POST /a abc | closed"),
]  # fmt: skip


class Echo:
    """An ASGI application that replies with what it has received, and records it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for name in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{name}.complete"})
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        else:
            return
        text = f"{scope['method']} {scope['path']} {body.decode()}".rstrip()
        self.seen.append(text)
        length = (b"content-length", b"%d" % len(text.encode()))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": text.encode()})


async def read_reply(reader: asyncio.StreamReader) -> str:
    """Return the body of the next reply if its status is 200, else the status, or ``closed``."""
    head = await reader.readline()
    if not head:
        return "closed"
    length = 0
    while (line := await reader.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    status = head.split()[1].decode()
    body = await reader.readexactly(length)
    return body.decode() if status == "200" else status


async def ask(port: int, pieces: Sequence[bytes], expected: str) -> tuple[list[str], list[str]]:
    """Send the pieces of a row on a new connection; return all replies, and the expected ones."""
    wanted = expected.split(" | ")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with patience("the replies"):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            found = [await read_reply(reader) for _ in wanted]
            if wanted[-1].isdigit():
                wanted.append("closed")
            elif wanted[-1] != "closed":
                writer.write(LAST)
                wanted += ["GET /last", "closed"]
            found += [await read_reply(reader) for _ in wanted[len(found) :]]
    finally:
        writer.transport.abort()
    return found, wanted
