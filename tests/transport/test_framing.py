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

from dragoman import HttpTransport, InvalidResponseError, NetworkError, StreamInterruptedError
from dragoman.transport import Transport, connection
from dragoman.transport.connection import JOINED_BODY, MAX_HEAD

from ..waiting import arrival, settle, virtual_time
from .raw import call, listen, read_request, replying

OK = b"HTTP/1.1 200 OK\r\n"
TWO = OK + b"content-length: 2\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"

# Valid replies by name. Their body is "hi", unless BODIES has another.
KEPT: dict[str, bytes] = {
    "content-length": TWO + b"\r\nhi",
    "content-length 0": OK + b"content-length: 0\r\n\r\n",
    "content-length with spaces": OK + b"content-length:  2 \r\n\r\nhi",
    "chunks": CHUNKED + b"1\r\nh\r\n1\r\ni\r\n0\r\n\r\n",
    "upper-case hexadecimal": CHUNKED + b"0A\r\n0123456789\r\n0\r\n\r\n",
    "chunk extension": CHUNKED + b'2;a=b;c="d"\r\nhi\r\n0\r\n\r\n',
    "trailers": CHUNKED + b"2\r\nhi\r\n0\r\nx-checksum: 1\r\nserver-timing: x\r\n\r\n",
    "coding in capitals": OK + b"Transfer-Encoding: Chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "no reason phrase": b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nhi",
    "reason in another script": b"HTTP/1.1 200 \xc3\xa9\r\ncontent-length: 2\r\n\r\nhi",
    "empty line before the head": b"\r\n" + TWO + b"\r\nhi",
    "empty header value": TWO + b"x-empty:\r\n\r\nhi",
    "latin-1 header value": TWO + b"x-name: \xe9\r\n\r\nhi",
    "100 before the reply": b"HTTP/1.1 100 Continue\r\n\r\n" + TWO + b"\r\nhi",
    "102 and 103 before the reply":
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n" + TWO + b"\r\nhi",
    "upgrade that is not followed": TWO + b"connection: upgrade\r\nupgrade: h2c\r\n\r\nhi",
    "HTTP/1.0 with keep-alive":
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi",
    # The following cases are about topics that the tests of h11 and llhttp cover.
    "tabs around content-length": OK + b"content-length:\t2\t\r\n\r\nhi",
    "zeros before content-length": OK + b"content-length: 002\r\n\r\nhi",
    "name that begins like content-length":
        OK + b"content-length-x: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "two spaces before the reason": b"HTTP/1.1 200  OK\r\ncontent-length: 2\r\n\r\nhi",
    "space in place of a reason": b"HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\nhi",
    "tab in the reason": b"HTTP/1.1 200 a\tb\r\ncontent-length: 2\r\n\r\nhi",
    "zero byte in the reason, which is not read":
        b"HTTP/1.1 200 a\0b\r\ncontent-length: 2\r\n\r\nhi",
    "line feed before the head": b"\n" + TWO + b"\r\nhi",
    "signs in a header name": TWO + b"x_$.a!: 1\r\n\r\nhi",
    "colons in a header value": TWO + b"x: a:b::c\r\n\r\nhi",
    "white space as a header value": TWO + b"x: \t \r\n\r\nhi",
    "zeros before a chunk size": CHUNKED + b"0002\r\nhi\r\n000\r\n\r\n",
    "several extensions": CHUNKED + b'2;a;b=c;d="e;f"\r\nhi\r\n0;g="h"\r\n\r\n',
    "quote in an extension": CHUNKED + b'2;a="b\\"c"\r\nhi\r\n0\r\n\r\n',
    "coding in the trailers, which are not read":
        CHUNKED + b"2\r\nhi\r\n0\r\ntransfer-encoding: chunked\r\n\r\n",
    # The HTTP parser llhttp also accepts two other protocols with the syntax of HTTP.
    "RTSP": b"RTSP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
    "ICE": b"ICE/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
}  # fmt: skip
# After these replies the server closes the connection, or the client does not reuse it.
CLOSED: dict[str, bytes] = {
    "connection: close": TWO + b"connection: close\r\n\r\nhi",
    "connection: close and more bytes": TWO + b"connection: close\r\n\r\nhiHTTP/1.1",
    "a second reply": TWO + b"\r\nhi" + TWO + b"\r\nho",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
    "HTTP/1.0 with chunks": CHUNKED.replace(b"/1.1", b"/1.0") + b"2\r\nhi\r\n0\r\n\r\n",
    "HTTP/1.0 until the end of file": b"HTTP/1.0 200 OK\r\n\r\nhi",
    "until the end of file": OK + b"\r\nhi",
    "until the end of file, empty": OK + b"\r\n",
    "keep-alive until the end of file": OK + b"connection: keep-alive\r\n\r\nhi",
    "connection: keep-alive, close": TWO + b"connection: keep-alive, close\r\n\r\nhi",
    "connection in two fields": TWO + b"connection: keep-alive\r\nconnection: close\r\n\r\nhi",
}  # fmt: skip
BODIES = {
    "content-length 0": b"",
    "upper-case hexadecimal": b"0123456789",
    "until the end of file, empty": b"",
}

# Invalid replies by name, for each error that they raise. The client closes the connection.
REFUSED: dict[type[Exception], dict[str, bytes]] = {
    InvalidResponseError: {
        "content-length twice": TWO + b"content-length: 2\r\n\r\nhi",
        "content-length twice, conflicting": TWO + b"content-length: 3\r\n\r\nhi",
        "content-length as a list": OK + b"content-length: 2, 2\r\n\r\nhi",
        "content-length negative": OK + b"content-length: -2\r\n\r\nhi",
        "content-length with a plus": OK + b"content-length: +2\r\n\r\nhi",
        "content-length in hexadecimal": OK + b"content-length: 0x2\r\n\r\nhi",
        "content-length too large": OK + b"content-length: 99999999999999999999\r\n\r\nhi",
        "content-length empty": OK + b"content-length:\r\n\r\nhi",
        "chunks, content-length": OK + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n",
        "content-length and chunks": TWO + b"transfer-encoding: chunked\r\n\r\n",
        "coding gzip, chunked": OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "coding identity": OK + b"transfer-encoding: identity\r\n\r\nhi",
        "coding unknown": OK + b"transfer-encoding: xchunked\r\n\r\nhi",
        "coding twice": OK + b"transfer-encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n",
        "folded header": TWO + b"x-long: a\r\n b\r\n\r\nhi",
        "space before the first header": OK + b" x: y\r\n\r\nhi",
        "space before the colon": OK + b"content-length : 2\r\n\r\nhi",
        "header without a name": OK + b": 2\r\n\r\nhi",
        "header without a colon": OK + b"nonsense\r\n\r\nhi",
        "zero byte in a header": TWO + b"x: a\0b\r\n\r\nhi",
        "line feed alone": b"HTTP/1.1 200 OK\ncontent-length: 2\n\nhi",
        "line feed alone after a header": TWO + b"x: y\nz: 1\r\n\r\nhi",
        "carriage return alone": TWO + b"x: y\rz: 1\r\n\r\nhi",
        "HTTP/2.0": b"HTTP/2.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        "HTTP/0.9": b"HTTP/0.9 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        "HTTP/1.2": b"HTTP/1.2 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        "no head at all": b"<html>hi</html>",
        "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
        "protocol in small letters": b"http/1.1 200 OK\r\n\r\n",
        "status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
        "status below 100": b"HTTP/1.1 099 OK\r\ncontent-length: 2\r\n\r\nhi",
        "101 with an upgrade": b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        "101 without an upgrade": b"HTTP/1.1 101 X\r\n\r\n",
        "head too long": OK + b"x: y\r\n" * 20_000 + b"\r\n",
        "header too long": OK + b"x: " + b"y" * 2 * MAX_HEAD,
        "reason too long": b"HTTP/1.1 200 " + b"y" * 2 * MAX_HEAD,
        "1xx without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
        "content-length twice, apart": TWO + b"x: y\r\ncontent-length: 2\r\n\r\nhi",
        "two numbers in content-length": OK + b"content-length: 2 2\r\n\r\nhi",
        "content-length in words": OK + b"content-length: two\r\n\r\nhi",
        "content-length with a fraction": OK + b"content-length: 2.0\r\n\r\nhi",
        "content-length of 2^64": OK + b"content-length: 18446744073709551616\r\n\r\nhi",
        "empty coding": OK + b"transfer-encoding:\r\ncontent-length: 2\r\n\r\nhi",
        "coding chunked, deflate": OK + b"transfer-encoding: chunked, deflate\r\n\r\nhi",
        "coding identity, chunked": OK + b"transfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n",
        "coding chunked, then identity":
            OK + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\nhi",
        "coding repeated in one word": OK + b"transfer-encoding: chunkedchunked\r\n\r\n0\r\n\r\n",
        "coding with a comma at its end": OK + b"transfer-encoding: chunked,\r\n\r\n0\r\n\r\n",
        "folded coding": OK + b"transfer-encoding: chunked\r\n x\r\n\r\n0\r\n\r\n",
        "tab before the colon": OK + b"content-length\t: 2\r\n\r\nhi",
        "space in a header name": TWO + b"a b: c\r\n\r\nhi",
        "control character in a header name": TWO + b"a\x01b: c\r\n\r\nhi",
        "latin-1 header name": TWO + b"\xe9: c\r\n\r\nhi",
        "control character in a header": TWO + b"x: a\x01b\r\n\r\nhi",
        "delete character in a header": TWO + b"x: a\x7fb\r\n\r\nhi",
        "line feed alone before the empty line": TWO + b"x: y\n\r\nhi",
        "protocol misspelt": b"HTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        "protocol too long": b"HTTPS/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        "zero before the version": b"HTTP/01.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        "version of two digits": b"HTTP/1.01 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        "letters after the version": b"HTTP/1.1x 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        "tab after the version": b"HTTP/1.1\t200 OK\r\ncontent-length: 2\r\n\r\nhi",
        "two spaces before the status": b"HTTP/1.1  200 OK\r\ncontent-length: 2\r\n\r\nhi",
        "status without a space": b"HTTP/1.1200 OK\r\ncontent-length: 2\r\n\r\nhi",
        "status of one digit": b"HTTP/1.1 2 OK\r\ncontent-length: 2\r\n\r\nhi",
        "letter in the status": b"HTTP/1.1 2x0 OK\r\ncontent-length: 2\r\n\r\nhi",
        "alert of TLS": bytes([21, 3, 3, 0, 2, 2, 40]),
        "settings of HTTP/2": b"\0\0\0\x04\0\0\0\0\0",
    },
    NetworkError: {
        "end of file before a byte": b"",
        "end of file in the head": OK + b"content-le",
        "end of file after a 1xx": b"HTTP/1.1 100 Continue\r\n\r\n",
    },
    StreamInterruptedError: {
        "end of file before the body": TWO + b"\r\n",
        "end of file in the body": TWO + b"\r\nh",
        "end of file in a chunk": CHUNKED + b"2\r\nh",
        "end of file between chunks": CHUNKED + b"2\r\nhi\r\n",
        "end of file in the trailers": CHUNKED + b"2\r\nhi\r\n0\r\nx: y",
        "chunk size is not a number": CHUNKED + b"zz\r\nhi\r\n0\r\n\r\n",
        "chunk size negative": CHUNKED + b"-2\r\nhi\r\n0\r\n\r\n",
        "chunk size with a prefix": CHUNKED + b"0x2\r\nhi\r\n0\r\n\r\n",
        "chunk size too large": CHUNKED + b"f" * 17 + b"\r\nhi\r\n0\r\n\r\n",
        "chunk size empty": CHUNKED + b"\r\nhi\r\n0\r\n\r\n",
        "chunk size and a space": CHUNKED + b"2 \r\nhi\r\n0\r\n\r\n",
        "line feed alone after a chunk size": CHUNKED + b"2\nhi\r\n0\r\n\r\n",
        "chunk longer than its size": CHUNKED + b"2\r\nhiho\r\n0\r\n\r\n",
        "chunk extension too long": CHUNKED + b"2;" + b"x" * 3 * MAX_HEAD,
        "trailers too long": CHUNKED + b"2\r\nhi\r\n0\r\n" + b"x: y\r\n" * 50_000,
        "content-length in the trailers": CHUNKED + b"2\r\nhi\r\n0\r\ncontent-length: 2\r\n\r\n",
        "zero byte in a chunk size": CHUNKED + b"2\0\r\nhi\r\n0\r\n\r\n",
        "extension without a semicolon": CHUNKED + b"2 a\r\nhi\r\n0\r\n\r\n",
        "space before an extension": CHUNKED + b"2; a=b\r\nhi\r\n0\r\n\r\n",
        "semicolon without an extension": CHUNKED + b"2;\r\nhi\r\n0\r\n\r\n",
        "open quote in an extension": CHUNKED + b'2;a="b\r\nhi\r\n0\r\n\r\n',
        "line feed alone after an extension": CHUNKED + b"2;a\nhi\r\n0\r\n\r\n",
        "carriage return in an extension": CHUNKED + b"2;a\rb\r\nhi\r\n0\r\n\r\n",
        "line feed alone after a chunk": CHUNKED + b"2\r\nhi\n0\r\n\r\n",
        "carriage return alone after a chunk": CHUNKED + b"2\r\nhi\rx0\r\n\r\n",
        "other bytes after a chunk": CHUNKED + b"2\r\nhix\n0\r\n\r\n",
        "folded trailer": CHUNKED + b"2\r\nhi\r\n0\r\nx: y\r\n z\r\n\r\n",
        "trailer without a colon": CHUNKED + b"2\r\nhi\r\n0\r\nnonsense\r\n\r\n",
    },
}  # fmt: skip


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
@pytest.mark.parametrize("name", [*KEPT, *CLOSED])
async def test_valid_http_replies_are_accepted(
    name: str, pieces: int, transport: HttpTransport
) -> None:
    kept = name in KEPT
    data, body = KEPT[name] if kept else CLOSED[name], BODIES.get(name, b"hi")

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
            assert (status, received) == (200, body)
            assert fields == fields_by_llhttp(data)
            assert server.connections == (1 if kept else number)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, replies in REFUSED.items() for name in replies]
)
async def test_invalid_http_replies_are_rejected(
    kind: type[Exception], name: str, stream: bool, transport: HttpTransport
) -> None:
    data = REFUSED[kind][name]
    ended = "end of file" in name

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(data)
        if not ended:
            await reader.read()  # read until the client closes the connection

    async with listen(handler) as server:
        with pytest.raises(kind) as caught:
            await call(transport, server.url, stream=stream)
        assert type(caught.value) is kind
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
            assert (status, fields["retry-after"], body) == (503, "1", b"no")


@pytest.mark.parametrize("size", [JOINED_BODY, JOINED_BODY + 1, 600_000])
async def test_request_body_is_sent_completely_after_the_head(
    size: int, transport: HttpTransport
) -> None:
    """A large request body is written after the head, and a small one together with the head."""
    body, received = bytes(range(256)) * (size // 256 + 1), b""

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
        assert (status, body) == (413, b"no")
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

    told, late = asyncio.Event(), asyncio.Event()
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
        assert (requests, server.connections) == (2, 1)


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
    assert (count, idle) == (2, 0)


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
    "identity": (b"identity", TEXT, TEXT),
    "an empty body": (b"gzip", b"", b""),
}
DAMAGED: dict[str, tuple[bytes, bytes, str]] = {
    "cut": (b"gzip", GZIP[:-20], "ends too early"),
    "not compressed": (b"gzip", TEXT, "damaged"),
    "wrong checksum": (b"gzip", GZIP[:-8] + b"\0" * 8, "damaged"),
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
    assert len(rows) == 20
