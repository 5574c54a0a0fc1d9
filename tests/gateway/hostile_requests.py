"""A table of unusual and hostile requests, and what a client and the application must see.

``REQUESTS`` has rows of a name, the bytes that a client sends, and the replies separated by `` | ``:
the status of a rejection, or the request that the application receives (method, path and body).
After a rejection, and after the word ``closed``, the connection must be closed; otherwise it must
still be usable. A request for ``/smuggled`` must never reach the application.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.waiting import patience

GET = b"GET /a HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /a HTTP/1.1\r\nhost: x\r\n"
BODY = b"content-length: 3\r\n\r\nabc"
CHUNKS = b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
NEXT = b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n"
EVIL = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"

Row = tuple[str, bytes, str]

_FRAMING: list[Row] = [
    ("length and chunks", POST + b"content-length: 6\r\n" + CHUNKS[:28] + b"0\r\n\r\n" + EVIL, "400"),
    ("chunks and length", CHUNKED[:-2] + b"content-length: 6\r\n\r\n0\r\n\r\n" + EVIL, "400"),
    ("two equal lengths", POST + b"content-length: 3\r\n" + BODY, "400"),
    ("two lengths", POST + b"content-length: 0\r\n" + BODY[:-3] + EVIL, "400"),
    ("a list of lengths", POST + b"content-length: 3, 3\r\n\r\nabc", "400"),
    ("a signed length", POST + b"content-length: +3\r\n\r\nabc", "400"),
    ("a negative length", POST + b"content-length: -1\r\n\r\nabc", "400"),
    ("a hexadecimal length", POST + b"content-length: 0x3\r\n\r\nabc", "400"),
    ("a length with underscores", POST + b"content-length: 1_0\r\n\r\nabcabcabca", "400"),
    ("an overlong length", POST + b"content-length: 99999999999999999999999\r\n\r\nabc", "400"),
    ("an empty length", POST + b"content-length:\r\n\r\n" + EVIL, "400"),
    ("a length with a space", POST + b"content-length: 3 0\r\n\r\nabc", "400"),
    ("a length after a tab", POST + b"content-length:\t3\r\n\r\nabc", "POST /a abc"),
    ("a length after a vertical tab", POST + b"content-length: \x0b3\r\n\r\nabc", "400"),
    ("a space before the colon", POST + b"content-length : 3\r\n\r\nabc", "400"),
    ("an unknown coding", POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + EVIL, "501"),
    ("a coding before chunked", POST + b"transfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "501"),
    ("a coding after chunked", POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n", "400"),
    ("no coding, as a name", POST + b"transfer-encoding: identity\r\n" + BODY, "400"),
    ("an empty coding", POST + b"transfer-encoding:\r\n" + BODY, "400"),
    ("a coding after a vertical tab", POST + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n", "400"),
    ("chunked twice", POST + b"transfer-encoding: chunked\r\n" + CHUNKS, "400"),
    ("a coding in capitals", POST + CHUNKS.replace(b"chunked", b"CHUNKED"), "POST /a abc"),
    ("chunks in HTTP/1.0", (POST + CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0"), "POST /a abc | closed"),
]  # fmt: skip

_CHUNKS: list[Row] = [
    ("a chunk extension", CHUNKED + b"3;a=b\r\nabc\r\n0;x\r\n\r\n", "POST /a abc"),
    ("a line end in an extension", CHUNKED + b"3;a\nx\r\nabc\r\n0\r\n\r\n" + EVIL, "400"),
    ("a quoted line end in an extension", CHUNKED + b'3;a="\r\nabc\r\n0\r\n\r\n' + EVIL, "400"),
    ("chunks with bare line feeds", CHUNKED + b"3\nabc\n0\n\n" + EVIL, "400"),
    ("a chunk longer than its size", CHUNKED + b"3\r\nabcXX0\r\n\r\n" + EVIL, "400"),
    ("a hexadecimal prefix of a size", CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n" + EVIL, "400"),
    ("a signed size", CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n" + EVIL, "400"),
    ("an overlong size", CHUNKED + b"10000000000000003\r\nabc\r\n0\r\n\r\n" + EVIL, "400"),
    ("a space after a size", CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n" + EVIL, "400"),
    ("an empty size", CHUNKED + b"\r\nabc\r\n0\r\n\r\n" + EVIL, "400"),
    ("a trailer", CHUNKED + b"3\r\nabc\r\n0\r\nauthorization: x\r\n\r\n" + NEXT, "POST /a abc | GET /next"),
    ("a length as a trailer", CHUNKED + b"0\r\ncontent-length: 100\r\n\r\n" + EVIL, "400"),
    ("many trailers", CHUNKED + b"0\r\n" + b"t: v\r\n" * 2000 + b"\r\n", "431"),
    ("one endless trailer", CHUNKED + b"0\r\nt: " + b"a" * 400_000, "431"),
    ("an endless extension", CHUNKED + b"5;" + b"a" * 400_000, "431"),
]  # fmt: skip

_HEADS: list[Row] = [
    ("a folded header", POST + b"x: a\r\n b\r\n" + BODY, "400"),
    ("a folded coding", POST + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n", "400"),
    ("a folded first header", b"GET /a HTTP/1.1\r\n host: x\r\n\r\n", "400"),
    ("bare line feeds", (POST + BODY).replace(b"\r\n", b"\n"), "400"),
    ("a bare line feed in the head", POST[:-2] + b"\n" + BODY, "400"),
    ("a bare carriage return", POST + b"x: a\rcontent-length: 9\r\n" + BODY, "400"),
    ("a null byte in a value", GET + b"x: a\0b\r\n\r\n", "400"),
    ("a null byte in a name", GET + b"x\0: ab\r\n\r\n", "400"),
    ("an empty name", GET + b": ab\r\n\r\n", "400"),
    ("a header without a colon", GET + b"ab\r\n\r\n", "400"),
    ("no host", b"GET /a HTTP/1.1\r\n\r\n", "400"),
    ("two hosts", GET + b"host: y\r\n\r\n", "400"),
    ("no host in HTTP/1.0", b"GET /a HTTP/1.0\r\n\r\n", "GET /a | closed"),
    ("HTTP/0.9", b"GET /a\r\n\r\n", "400"),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
    ("an unknown version", b"GET /a HTTP/2.0\r\nhost: x\r\n\r\n", "400"),
    ("an unknown method", GET.replace(b"GET", b"FOO") + b"\r\n", "400"),
    ("an empty line first", b"\r\n" + GET + b"\r\n", "GET /a"),
    ("the address of a proxy", GET.replace(b"/a", b"http://other:99/a") + b"\r\n", "GET /a"),
    ("an address without a path", GET.replace(b"/a", b"http://other") + b"\r\n", "400"),
    ("a tunnel", b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n" + EVIL, "400"),
    ("a space in the path", GET.replace(b"/a", b"/a b") + b"\r\n", "400"),
    ("other bytes in the path", GET.replace(b"/a", b"/\xff\xfe") + b"\r\n", "400"),
    ("101 headers", GET + b"h: v\r\n" * 100 + b"\r\n", "431"),
    ("100 headers", GET + b"x: " + b"a" * 60_000 + b"\r\n" + b"h: v\r\n" * 98 + b"\r\n", "GET /a"),
    ("one long header", GET + b"x: " + b"a" * 70_000 + b"\r\n\r\n", "431"),
    ("one endless header", GET + b"x: " + b"a" * 400_000, "431"),
    ("a long path", GET.replace(b"/a", b"/" + b"a" * 70_000) + b"\r\n", "431"),
    ("an endless path", b"GET /" + b"a" * 400_000, "431"),
]  # fmt: skip

_UPGRADES: list[Row] = [
    ("h2c", GET + H2C + b"\r\n" + NEXT, "GET /a | GET /next"),
    ("h2c with a body", POST + H2C + BODY + NEXT, "POST /a abc | GET /next"),
    ("h2c with chunks", POST + H2C + CHUNKS + NEXT, "POST /a abc | GET /next"),
    ("a websocket", GET + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n" + NEXT, "GET /a | GET /next"),
    ("h2c with two lengths", POST + H2C + b"content-length: 0\r\n" + BODY + EVIL, "400"),
    ("h2c in the last request", POST + H2C.replace(b"Upgrade,", b"Upgrade, close,") + BODY, "POST /a abc | closed"),
    ("h2c in HTTP/1.0", (POST + H2C + BODY).replace(b"HTTP/1.1", b"HTTP/1.0"), "POST /a abc | closed"),
    ("an expectation", POST + b"expect: 100-continue\r\n" + BODY, "100 | POST /a abc"),
    ("an expectation in HTTP/1.0", (POST + b"expect: 100-continue\r\n" + BODY).replace(b"P/1.1", b"P/1.0"), "POST /a abc | closed"),
]  # fmt: skip

REQUESTS: list[Row] = [*_FRAMING, *_CHUNKS, *_HEADS, *_UPGRADES]

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
    status, body = head.split()[1].decode(), await reader.readexactly(length)
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
