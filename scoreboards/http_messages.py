"""HTTP/1.1: the client and the gateway against the test vectors of llhttp, the parser of Node."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import ProviderError
from dragoman.gateway.app import create_app
from dragoman.sim import ScriptedProvider
from dragoman.transport import HttpTransport, Timeouts
from dragoman.transport.serving import serving
from dragoman.wire.codec import HttpRequest

from .board import Board
from .install import SOURCES, install_source

TITLE = "HTTP/1.1"
PACKAGE = "aiohttp"  # its source archive contains llhttp with its tests
REPLY = "reply to the client"
REQUEST = "request to the gateway"
_LAST = "chunked must be the last coding, or the length is not known (RFC 9112, 6.3)"
EXPECTED = {
    ("connection: HTTP 101 response*", REPLY): "a reply that switches protocols was not asked for",
    ("*: HTTP version 0.9", REPLY): "HTTP/0.9 is refused",
    ("transfer-encoding: `chunked` before other*", REPLY): _LAST,
    ("transfer-encoding: multiple transfer-encoding*", REPLY): _LAST,
    ("transfer-encoding: `chunkedchunked`*", REPLY): _LAST,
}
_PARTS = re.compile(
    r"^#+ ([^\n]+)$|<!-- meta=(\{.*?\}) -->|```http\n(.*?)```|```log\n(.*?)```", re.M | re.S
)
_BODY = re.compile(r'span\[body\]=(?:"(.*)"|(lf|cr))')
_HEADERS = re.compile(r"headers complete status=(\d+) v=\S+ flags=([0-9a-f]+)")
_CHUNKED = 0x8
_SIZED = 0x20
_TIMEOUTS = Timeouts(connect=10, first_event=10, idle=10, total=20)


class Vector(NamedTuple):
    """A message, and what llhttp makes of it."""

    name: str
    data: bytes
    log: str

    @property
    def is_refused(self) -> bool:
        """Whether llhttp refuses the first message."""
        before, error, _ = self.log.partition("error code")
        return error != "" and "message complete" not in before

    def read_reply(self) -> tuple[int, bytes] | None:
        """Return the status and the body of the final reply, or ``None`` if it is cut off."""
        for message in re.split(r"off=\d+ message begin", self.log)[1:]:
            found = _HEADERS.search(message)
            if found is None:
                return None
            status = int(found[1])
            if 100 <= status < 200 and status != 101:
                continue
            has_end = int(found[2], 16) & (_CHUNKED | _SIZED)
            if has_end and "message complete" not in message:
                return None
            pieces = [
                {"lf": "\n", "cr": "\r"}.get(mark, text) for text, mark in _BODY.findall(message)
            ]
            return status, "".join(pieces).encode("latin-1")
        return None


def read_vectors(tests: Path, kind: str) -> Iterator[Vector]:
    """Yield the vectors of strict parsing; those of a lenient parser or of its API are left out."""
    for path in sorted((tests / kind).glob("*.md")):
        title = ""
        meta = ""
        source = ""
        for heading, about, message, log in _PARTS.findall(path.read_text()):
            title = heading or title
            meta = about or meta
            source = message or source
            is_strict = f'"type": "{kind}"' in meta and "pause" not in meta and "skip" not in meta
            if log and is_strict and "${" not in source:
                yield Vector(f"{path.stem}: {title}", write_bytes(source), log)


def write_bytes(source: str) -> bytes:
    """Return the bytes of a vector: line ends are CRLF, unless a backslash joins the lines."""
    text = source.removesuffix("\n")
    text = re.sub(r"\\\n", "", text).replace("\n", "\r\n")
    for escape, character in (("r", "\r"), ("n", "\n"), ("t", "\t"), ("f", "\f")):
        text = text.replace(f"\\{escape}", character)
    text = re.sub(r"\\x([0-9a-fA-F]{2})", lambda found: chr(int(found[1], 16)), text)
    return text.encode("latin-1", "replace")


@contextlib.asynccontextmanager
async def answering(data: bytes) -> AsyncIterator[str]:
    """Serve the same bytes to every request; yield the address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"


async def try_reply(vector: Vector, data: bytes) -> str:
    """Return an empty text if the client reads a reply, or refuses it, as llhttp does."""
    transport = HttpTransport(proxy=None)
    try:
        async with answering(data) as url:
            reply = await transport.exchange(HttpRequest("GET", url, {}), {}, _TIMEOUTS)
    except ProviderError as error:
        # llhttp waits for the rest of a reply that is cut off
        wanted = None if vector.is_refused else vector.read_reply()
        return "" if wanted is None else f"{type(error).__name__}: {error}"[:150]
    finally:
        await transport.close()
    if vector.is_refused:
        return f"read as {reply.status}"
    wanted = vector.read_reply()
    if wanted != (reply.status, reply.body):
        return f"read as {reply.status} {reply.body!r}, not {wanted!r}"[:200]
    return ""


async def try_request(url: str, data: bytes) -> str:
    """Return an empty text if the gateway refuses a request that llhttp refuses."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    printed = b""
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
        writer.write_eof()
        printed = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    codes = [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3})", printed)]
    is_refused = not codes or 400 <= codes[0] < 500
    return "" if is_refused else f"answered with {codes[0]}"


async def collect(board: Board, tests: Path) -> None:
    """Try every vector, and the damage of the controls."""
    readable = []
    for vector in read_vectors(tests, "response"):
        board.cells[name_cell(board, vector.name, REPLY)] = await try_reply(vector, vector.data)
        wanted = None if vector.is_refused else vector.read_reply()
        if wanted is not None and wanted[1] and vector.data.endswith(wanted[1]):
            readable.append(vector)
    changed = [await try_reply(each, each.data[:-1] + b"|") for each in readable]
    board.controls["last byte of a body changed"] = (sum(map(bool, changed)), len(changed))
    model = ScriptedProvider("Hello.")
    async with serving(create_app({"m": model})) as url:
        refused = [each for each in read_vectors(tests, "request") if each.is_refused]
        for vector in refused:
            board.cells[name_cell(board, vector.name, REQUEST)] = await try_request(
                url, vector.data
            )
        # a correct request, so that a gateway which refuses everything is noticed
        good = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        outcome = await try_request(url, good)
    board.controls["a correct request"] = (int(outcome == "answered with 200"), 1)


def name_cell(board: Board, name: str, column: str) -> tuple[str, str]:
    """Return a cell of its own for a vector, because titles repeat within a file."""
    number = 2
    row = name
    while (row, column) in board.cells:
        row = f"{name} ({number})"
        number += 1
    return row, column


def run() -> Board:
    """Send every vector over a socket."""
    tests = install_source(PACKAGE) / "vendor" / "llhttp" / "test"
    board = Board(
        "http_messages",
        TITLE,
        "The test vectors of llhttp, the parser of Node, over real sockets: replies are read by Dragoman's client, and must\n"
        "have the same status and body; what llhttp refuses must be refused, by the client and by the gateway. Vectors of\n"
        "its lenient mode and of its API are left out.",
        versions={f"the vectors in the source archive of {PACKAGE}": SOURCES[PACKAGE]},
        expected=EXPECTED,
    )
    asyncio.run(collect(board, tests))
    kinds = Counter((column, outcome == "") for (_, column), outcome in board.cells.items())
    lines = ["| vectors | equal | different |", "|---|---|---|"]
    lines += [
        f"| {name} | {kinds[name, True]} | {kinds[name, False]} |" for name in (REPLY, REQUEST)
    ]
    board.counts = "\n".join(lines)
    return board
