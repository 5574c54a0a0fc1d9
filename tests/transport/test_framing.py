"""Test accepted and rejected HTTP replies: one case for each rule of RFC 9112 and each deviation
of real servers.
"""

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import get_args

import pytest
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from dragoman import HttpTransport, InvalidResponseError, NetworkError, ProviderError
from dragoman.transport import Transport, connection
from dragoman.transport.connection import JOINED_BODY, MAX_HEAD
from tests.rows import read_table

from ..waiting import arrival, settle, virtual_time
from .raw import call, listen, read_request, replying

OK = b"HTTP/1.1 200 OK\r\n"
TWO = OK + b"content-length: 2\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"

# Each row: what becomes of the reply, its name, and its bytes. A reply that is "kept" or "closed" is
# valid, and its body is "hi", unless BODIES has another; after one that is "closed", the server
# closes the connection or the client does not reuse it. The others are invalid, and raise an error
# of this name; the client closes the connection.
REPLIES = {(fate, name): text.encode("latin-1") for fate, name, text in read_table("http_replies")}
REPLIES |= {
    ("InvalidResponseError", "head too long"): OK + b"x: y\r\n" * 20_000 + b"\r\n",
    ("InvalidResponseError", "header too long"): OK + b"x: " + b"y" * 2 * MAX_HEAD,
    ("InvalidResponseError", "reason too long"): b"HTTP/1.1 200 " + b"y" * 2 * MAX_HEAD,
    ("InvalidResponseError", "1xx without end"): b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
    ("StreamInterruptedError", "chunk extension too long"): CHUNKED + b"2;" + b"x" * 3 * MAX_HEAD,
    ("StreamInterruptedError", "trailers too long"):
        CHUNKED + b"2\r\nhi\r\n0\r\n" + b"x: y\r\n" * 50_000,
}  # fmt: skip
VALID = ("kept", "closed")
BODIES = {
    "content-length 0": b"",
    "upper-case hexadecimal": b"0123456789",
    "until the end of file, empty": b"",
}


class Fields:
    """Collect the header fields of the last response as llhttp reads them."""

    def __init__(self) -> None:
        self.parser = HttpResponseParser(self)
        self.read: dict[str, str] = {}
        self.arriving: list[tuple[str, str]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.arriving.append((name.decode("latin-1").lower(), value.decode("latin-1").strip()))

    def on_headers_complete(self) -> None:
        if self.parser.get_status_code() >= 200 and not self.read:
            for name, text in self.arriving:
                self.read[name] = f"{self.read[name]}, {text}" if name in self.read else text
        self.arriving.clear()


def fields_by_llhttp(data: bytes) -> dict[str, str]:
    """Return the header fields of a reply as llhttp, an independent parser, reads them."""
    fields = Fields()
    with suppress(HttpParserError, HttpParserUpgrade):
        fields.parser.feed_data(data)
    return fields.read


@pytest.mark.parametrize("pieces", [1, 0], ids=["at once", "byte by byte"])
@pytest.mark.parametrize(("fate", "name"), [key for key in REPLIES if key[0] in VALID])
async def test_valid_http_replies_are_accepted(
    fate: str, name: str, pieces: int, transport: HttpTransport
) -> None:
    kept = fate == "kept"
    data = REPLIES[fate, name]
    body = BODIES.get(name, b"hi")

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            for at in range(len(data)) if not pieces else [0]:
                writer.write(data[at : at + 1] if not pieces else data)
                await asyncio.sleep(0)
            if not kept:
                return

    async with listen(handler) as server:
        for number in (1, 2):
            status, fields, received = await call(transport, server.url)
            assert status == 200
            assert received == body
            assert fields == fields_by_llhttp(data)
            assert server.connections == (1 if kept else number)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("fate", "name"), [key for key in REPLIES if key[0] not in VALID])
async def test_invalid_http_replies_are_rejected(
    fate: str, name: str, stream: bool, transport: HttpTransport
) -> None:
    data = REPLIES[fate, name]
    ended = "end of file" in name

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(data)
        if not ended:
            await reader.read()  # read until the client closes the connection

    async with listen(handler) as server:
        with pytest.raises(ProviderError) as caught:
            await call(transport, server.url, stream=stream)
        assert type(caught.value).__name__ == fate
        assert caught.value.__cause__ is None or caught.value.__cause__.__traceback__ is None
        await arrival(server.closed.wait(), "the connection to close")
        assert transport.open_pool().sizes == (0, 0)


@pytest.mark.parametrize(
    ("status", "rest"), [(204, b""), (304, b""), (304, b"content-length: 5\r\n")]
)
async def test_replies_with_a_status_that_has_no_body_are_read(
    status: int, rest: bytes, transport: HttpTransport
) -> None:
    reply = b"HTTP/1.1 %d X\r\n%b\r\n" % (status, rest)
    async with listen(replying(reply)) as server:
        for _ in range(2):
            assert (await call(transport, server.url))[::2] == (status, b"")
        assert server.connections == 1


async def test_repeated_reply_headers_are_joined_and_names_are_lower_case(
    transport: HttpTransport,
) -> None:
    reply = TWO + b"X-A: 1\r\nx-a:  2 \r\nRetry-After: 7\r\n\r\nhi"
    async with listen(replying(reply)) as server:
        _, fields, _ = await call(transport, server.url)
    assert fields == {"content-length": "2", "x-a": "1, 2", "retry-after": "7"}


# --- replies that arrive at the wrong time -----------------------------------------------------


async def test_reply_that_arrives_before_the_request_is_sent_is_read(
    transport: HttpTransport,
) -> None:
    """A server at its connection limit replies 503 as soon as a connection is open, and closes it."""

    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\nretry-after: 1\r\n\r\nno")
        await writer.drain()

    async with listen(handler) as server:
        for _ in range(5):
            status, fields, body = await call(transport, server.url)
            assert status == 503
            assert fields["retry-after"] == "1"
            assert body == b"no"


@pytest.mark.parametrize("size", [JOINED_BODY, JOINED_BODY + 1, 600_000])
async def test_request_body_is_sent_completely_after_the_head(
    size: int, transport: HttpTransport
) -> None:
    """A large request body is written after the head, and a small one together with the head."""
    body = bytes(range(256)) * (size // 256 + 1)
    received = b""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        _, received = await read_request(reader)
        writer.write(TWO + b"\r\nhi")

    async with listen(handler) as server:
        assert (await call(transport, server.url, body=body[:size]))[2] == b"hi"
    assert received == body[:size]


async def test_call_ends_if_the_server_replies_before_it_reads_the_body(
    transport: HttpTransport,
) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too large\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()
        await asyncio.Event().wait()  # the server never reads the body

    async with listen(handler) as server:
        status, _, body = await call(transport, server.url, body=b"x" * 20_000_000)
        assert status == 413
        assert body == b"no"
        assert transport.open_pool().sizes[1] == 0


async def test_idle_connection_that_receives_bytes_is_closed(transport: HttpTransport) -> None:
    """nginx and HAProxy send status 408 when they close a connection that was idle for too long."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(TWO + b"\r\nhi")
        await writer.drain()
        told.set()
        await late.wait()
        writer.write(
            b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        )
        await writer.drain()
        await reader.read()

    told = asyncio.Event()
    late = asyncio.Event()
    async with listen(handler) as server:
        assert (await call(transport, server.url))[2] == b"hi"
        assert transport.open_pool().sizes == (1, 1)
        late.set()
        await arrival(server.closed.wait(), "the connection to close")
        assert (await call(transport, server.url))[::2] == (200, b"hi")
        assert server.connections == 2


async def test_no_request_is_lost_if_the_server_closes_after_each_reply(
    transport: HttpTransport,
) -> None:
    """The server closes the connection after each reply, and the client may send the next request
    before its event loop notices.
    """

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        # The head allows keep-alive, but the server closes the connection.
        writer.write(TWO + b"\r\nhi")
        await writer.drain()

    async with listen(handler) as server:
        for number in range(50):
            assert (await call(transport, server.url))[2] == b"hi"
            # Wait until the server has closed the connection, before the client notices.
            while server.open:
                await asyncio.sleep(0)
            assert server.connections == number + 1


async def test_request_is_not_resent_on_a_lost_connection(transport: HttpTransport) -> None:
    requests = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1
        if requests == 1:
            writer.write(TWO + b"\r\nhi")
            await read_request(reader)  # the server closes the connection at the second request
            requests += 1

    async with listen(handler) as server:
        await call(transport, server.url)
        with pytest.raises(NetworkError, match="lost before the reply"):
            await call(transport, server.url)
        assert requests == 2
        assert server.connections == 1


# --- draining after the end mark of a stream ---------------------------------------------------


async def _leave_early(
    transport: Transport, handler: Callable[..., Awaitable[None]]
) -> tuple[int, int]:
    """Abandon a reply after its first bytes and send another request. Return how many connections
    the server received, and how many were idle before the second request.
    """
    from dragoman.wire import HttpRequest

    from .raw import PATIENT

    async with listen(handler) as server:
        request = HttpRequest("POST", f"{server.url}/v1", {}, b"{}")
        async with transport.send(request, {}, PATIENT) as reply:
            assert await reply.receive()
        with virtual_time():
            await asyncio.sleep(2)
        assert isinstance(transport, HttpTransport)
        idle = transport.open_pool().sizes[1]
        await call(transport, server.url)
        count = server.connections
        await transport.close()
    return count, idle


@pytest.mark.usefixtures("virtual_time")
async def test_rest_of_a_reply_is_read_so_that_its_connection_can_be_reused() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(CHUNKED + b"2\r\nhi\r\n")
            await writer.drain()
            await asyncio.sleep(0.04)
            writer.write(b"0\r\n\r\n")

    assert await _leave_early(HttpTransport(), handler) == (1, 1)


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("much", [False, True], ids=["late", "much"])
async def test_connection_is_closed_if_reading_the_rest_of_a_reply_takes_too_long(
    much: bool,
) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = True
        while True:
            await read_request(reader)
            writer.write(CHUNKED + b"2\r\nhi\r\n")
            await writer.drain()
            if not much and (first, first := False)[0]:
                await asyncio.sleep(0.06)
            else:
                await settle()
            writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n" if not much else b"")
            for _ in range(100 if much else 0):
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n")

    count, idle = await _leave_early(HttpTransport(), handler)
    assert count == 2
    assert idle == 0


# --- compressed bodies -------------------------------------------------------------------------


def _pack(data: bytes, window: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    return packer.compress(data) + packer.flush()


TEXT = b"".join(b"%x " % (number * number) for number in range(20_000))
GZIP = _pack(TEXT, 31)
CODINGS: dict[str, tuple[bytes, bytes, bytes]] = {
    "gzip": (b"gzip", GZIP, TEXT),
    "gzip in capitals": (b"GZip", GZIP, TEXT),
    "x-gzip": (b"x-gzip", GZIP, TEXT),
    "gzip of two members": (b"gzip", GZIP + GZIP, TEXT + TEXT),
    "deflate": (b"deflate", _pack(TEXT, 15), TEXT),
    "deflate without its container": (b"deflate", _pack(TEXT, -15), TEXT),
    "deflate without its header alone": (b"deflate", _pack(TEXT, 15)[2:], TEXT),
    "identity": (b"identity", TEXT, TEXT),
    "an empty body": (b"gzip", b"", b""),
}
DAMAGED: dict[str, tuple[bytes, bytes, str]] = {
    "cut": (b"gzip", GZIP[:-20], "ends too early"),
    "not compressed": (b"gzip", TEXT, "damaged"),
    "wrong checksum": (b"gzip", GZIP[:-8] + b"\0" * 8, "damaged"),
    "bytes after gzip": (b"gzip", GZIP + b"JUNK", "damaged"),
    "bytes after deflate": (b"deflate", _pack(TEXT, 15) + b"J", "bytes follow the end"),
    "deflate in two parts": (b"deflate", _pack(TEXT, 15) * 2, "bytes follow the end"),
    "bytes after raw deflate": (b"deflate", _pack(TEXT, -15) + b"JUNK!", "bytes follow the end"),
    "brotli": (b"br", b"\x0b\x00", "not asked for"),
    "twice": (b"gzip, gzip", GZIP, "not asked for"),
}


@pytest.mark.parametrize("name", CODINGS)
async def test_content_encodings_are_decoded(name: str, transport: HttpTransport) -> None:
    coding, data, text = CODINGS[name]
    head = OK + b"content-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (coding, len(data))
    async with listen(replying(head + data)) as server:
        for _ in range(2):
            assert (await call(transport, server.url))[2] == text
        assert server.connections == 1


@pytest.mark.parametrize("name", DAMAGED)
async def test_damaged_compressed_bodies_raise_an_error(
    name: str, transport: HttpTransport
) -> None:
    coding, data, complaint = DAMAGED[name]
    head = OK + b"content-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (coding, len(data))
    async with listen(replying(head + data)) as server:
        with pytest.raises(InvalidResponseError, match=complaint):
            await call(transport, server.url)


def test_documented_state_table_of_a_connection_is_complete() -> None:
    rules = (connection.__doc__ or "").split("\n========  ")[2:3]
    rows = [re.split(r"  +", line) for line in rules[0].splitlines()[1:]]
    named = {state for row in rows for state in (row[0], row[2])}
    assert named == {*get_args(connection.State), "any"}
    assert len(rows) == 24
